//! The flags of the gateway, and their environment variables.

use std::net::SocketAddr;

use microblog_chassis as chassis;

/// The gateway of microblog: composes the services' calls into what applications call
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "microblog-gateway", version)]
pub struct Config {
    /// Address to listen on
    #[arg(
        long,
        env = "MICROBLOG_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:50050"
    )]
    pub listen: SocketAddr,

    /// Where the user service is
    #[arg(
        long,
        env = "MICROBLOG_USER_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50051"
    )]
    pub user_url: String,

    /// Where the relation service is
    #[arg(
        long,
        env = "MICROBLOG_RELATION_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50052"
    )]
    pub relation_url: String,

    /// Where the post service is
    #[arg(
        long,
        env = "MICROBLOG_POST_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50053"
    )]
    pub post_url: String,

    /// What every server has
    #[command(flatten)]
    pub chassis: chassis::Config,
}
