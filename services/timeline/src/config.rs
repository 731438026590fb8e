//! How the timeline service is configured: by flags, or by the environment.

use std::net::SocketAddr;

use microblog_chassis as chassis;
use microblog_keyspace as keyspace;

/// How posts come into home timelines. What readers see is the same; what it costs, and whom, is
/// not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// By push, but those of authors with many followers by pull
    Hybrid,
    /// Written into every active follower's home timeline when they are posted
    Push,
    /// Fetched from the timelines of all followings when a home timeline is read
    Pull,
}

/// The timeline service of microblog: user, home and friends timelines.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "microblog-timeline", version)]
pub struct Config {
    /// Address and port to serve gRPC on
    #[arg(
        long,
        env = "MICROBLOG_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:50054"
    )]
    pub listen: SocketAddr,
    /// Where the relation service is, which knows who follows whom: a URL, or several with commas
    /// between them. A name is all of its addresses
    #[arg(
        long,
        env = "MICROBLOG_RELATION_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50052"
    )]
    pub relation_url: String,
    /// How posts come into home timelines; the same for all replicas
    #[arg(long, env = "MICROBLOG_TIMELINE_MODE", value_enum, default_value_t = Mode::Hybrid)]
    pub mode: Mode,
    /// With how many followers an author's posts are no longer pushed but pulled; pushed again
    /// below half of it
    #[arg(long, env = "MICROBLOG_PULL_THRESHOLD", value_name = "COUNT", default_value_t = 10_000)]
    pub pull_threshold: u64,
    /// Limits, deadlines, logs and telemetry.
    #[command(flatten)]
    pub chassis: chassis::Config,
    /// Where the store is.
    #[command(flatten)]
    pub redis: keyspace::Config,
}
