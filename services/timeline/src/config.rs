//! Configuration of the timeline service: flags and environment variables.

use std::net::SocketAddr;

use microblog_chassis as chassis;
use microblog_keyspace as keyspace;

/// The fan-out strategy. Readers see the same timelines in each mode; the cost differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Fan-out on write, but fan-out on read for authors with many followers
    Hybrid,
    /// Fan-out on write (push): a new post is written into the home timelines of active followers
    Push,
    /// Fan-out on read (pull): reading a home timeline fetches the posts of all followings
    Pull,
}

/// The timeline service of microblog: home and friends timelines.
#[derive(Clone, clap::Parser)]
#[command(name = "microblog-timeline", version = microblog_chassis::VERSION)]
pub struct Config {
    /// Address and port to serve gRPC on
    #[arg(
        long,
        env = "MICROBLOG_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:50054"
    )]
    pub listen: SocketAddr,
    /// URL of the relation service, or several URLs separated by commas. All addresses of a host
    /// name are used
    #[arg(
        long,
        env = "MICROBLOG_RELATION_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50052"
    )]
    pub relation_url: String,
    /// URL of the post service, which has the posts of authors that Redis does not have. Several
    /// URLs are separated by commas; all addresses of a host name are used
    #[arg(
        long,
        env = "MICROBLOG_POST_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50053"
    )]
    pub post_url: String,
    /// Fan-out strategy of home timelines; the same for all replicas
    #[arg(long, env = "MICROBLOG_TIMELINE_MODE", value_enum, default_value_t = Mode::Hybrid)]
    pub mode: Mode,
    /// Follower count above which an author's posts use fan-out on read. Below half of it, they use
    /// fan-out on write again
    #[arg(long, env = "MICROBLOG_PULL_THRESHOLD", value_name = "COUNT", default_value_t = 10_000)]
    pub pull_threshold: u64,
    /// Limits, deadlines, logs and telemetry.
    #[command(flatten)]
    pub chassis: chassis::Config,
    /// Redis connection.
    #[command(flatten)]
    pub redis: keyspace::Config,
}
