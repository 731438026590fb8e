//! Configuration of the notice service: flags and environment variables.

use std::net::SocketAddr;

use microblog_chassis as chassis;
use microblog_keyspace as keyspace;

/// The notice service of microblog: what others did that concerns an account.
#[derive(Clone, clap::Parser)]
#[command(name = "microblog-notice", version = microblog_chassis::VERSION)]
pub struct Config {
    /// Address and port to serve gRPC on
    #[arg(
        long,
        env = "MICROBLOG_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:50055"
    )]
    pub listen: SocketAddr,
    /// URL of the user service, or several URLs separated by commas. All addresses of a host name are
    /// used
    #[arg(
        long,
        env = "MICROBLOG_USER_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50051"
    )]
    pub user_url: String,
    /// URL of the relation service, or several URLs separated by commas
    #[arg(
        long,
        env = "MICROBLOG_RELATION_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50052"
    )]
    pub relation_url: String,
    /// URL of the post service, or several URLs separated by commas
    #[arg(
        long,
        env = "MICROBLOG_POST_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50053"
    )]
    pub post_url: String,
    /// Limits, deadlines, logs and telemetry.
    #[command(flatten)]
    pub chassis: chassis::Config,
    /// Redis connection.
    #[command(flatten)]
    pub redis: keyspace::Config,
    /// The database that has the notices.
    #[command(flatten)]
    pub database: microblog_record::Config,
}
