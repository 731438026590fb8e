//! How the post service is configured: by flags, or by the environment.

use std::net::SocketAddr;

use microblog_chassis as chassis;
use microblog_keyspace as keyspace;

use crate::archive;

/// The post service of microblog: posts, reposts, likes and comments.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "microblog-post", version)]
pub struct Config {
    /// Address and port to serve gRPC on
    #[arg(
        long,
        env = "MICROBLOG_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:50053"
    )]
    pub listen: SocketAddr,
    /// Where the timeline service is, which is told of every post: at once, or as soon as it
    /// answers. A URL, or several with commas between them; a name is all of its addresses
    #[arg(
        long,
        env = "MICROBLOG_TIMELINE_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50054"
    )]
    pub timeline_url: String,
    /// Posts and reposts of an account per minute: so many at once, and then one each so many parts
    /// of a minute; 0 for any number
    #[arg(long, env = "MICROBLOG_POSTS_PER_MINUTE", value_name = "COUNT", default_value_t = 60)]
    pub posts_per_minute: u32,
    /// Comments of an account per minute, likewise
    #[arg(long, env = "MICROBLOG_COMMENTS_PER_MINUTE", value_name = "COUNT", default_value_t = 60)]
    pub comments_per_minute: u32,
    /// Posts of the archive that an account may bring back to Redis per minute, by liking them,
    /// commenting on them or taking that back; likewise
    #[arg(long, env = "MICROBLOG_RESTORES_PER_MINUTE", value_name = "COUNT", default_value_t = 30)]
    pub restores_per_minute: u32,
    /// Limits, deadlines, logs and telemetry.
    #[command(flatten)]
    pub chassis: chassis::Config,
    /// Where the store is.
    #[command(flatten)]
    pub redis: keyspace::Config,
    /// Where the archive is, and what is moved there.
    #[command(flatten)]
    pub archive: archive::Config,
}
