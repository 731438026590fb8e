//! Configuration of the post service: flags and environment variables.

use std::net::SocketAddr;

use microblog_chassis as chassis;
use microblog_keyspace as keyspace;

/// The post service of microblog: posts, reposts, likes and comments.
#[derive(Clone, clap::Parser)]
#[command(name = "microblog-post", version = microblog_chassis::VERSION)]
pub struct Config {
    /// Address and port to serve gRPC on
    #[arg(
        long,
        env = "MICROBLOG_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:50053"
    )]
    pub listen: SocketAddr,
    /// URL of the timeline service, to which every post is delivered. Several URLs are separated by
    /// commas; a host name stands for all of its addresses
    #[arg(
        long,
        env = "MICROBLOG_TIMELINE_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50054"
    )]
    pub timeline_url: String,
    /// Rate limit: posts and reposts of an account per minute. The whole limit may be used as a
    /// burst; 0 disables it
    #[arg(long, env = "MICROBLOG_POSTS_PER_MINUTE", value_name = "COUNT", default_value_t = 60)]
    pub posts_per_minute: u32,
    /// Rate limit: comments of an account per minute, likewise
    #[arg(long, env = "MICROBLOG_COMMENTS_PER_MINUTE", value_name = "COUNT", default_value_t = 60)]
    pub comments_per_minute: u32,
    /// Limits, deadlines, logs and telemetry.
    #[command(flatten)]
    pub chassis: chassis::Config,
    /// Redis connection.
    #[command(flatten)]
    pub redis: keyspace::Config,
    /// The database that has the posts.
    #[command(flatten)]
    pub database: microblog_record::Config,
}
