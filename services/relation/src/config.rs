//! Configuration of the relation service: flags and environment variables.

use std::net::SocketAddr;

use microblog_chassis as chassis;
use microblog_keyspace as keyspace;

/// The relation service of microblog: the follow graph, relation states, blocks and mutes.
#[derive(Clone, clap::Parser)]
#[command(name = "microblog-relation", version = microblog_chassis::VERSION)]
pub struct Config {
    /// Address and port to serve gRPC on
    #[arg(long, env = "MICROBLOG_LISTEN", default_value = "127.0.0.1:50052")]
    pub listen: SocketAddr,
    /// The most accounts that an account may follow
    #[arg(long, env = "MICROBLOG_FOLLOWING_LIMIT", default_value_t = 5_000)]
    pub following_limit: u32,
    /// The most accounts that an account may block, and the most that it may mute
    #[arg(long, env = "MICROBLOG_BLOCKS_LIMIT", default_value_t = 10_000)]
    pub blocks_limit: u32,
    /// Limits, deadlines, logs and telemetry.
    #[command(flatten)]
    pub chassis: chassis::Config,
    /// Redis connection.
    #[command(flatten)]
    pub redis: keyspace::Config,
    /// The database that has the follow graph.
    #[command(flatten)]
    pub database: microblog_record::Config,
}
