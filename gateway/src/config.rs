//! The flags of the gateway, and their environment variables.

use std::net::SocketAddr;

use microblog_chassis as chassis;

use crate::limits;

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

    /// Where the user service is: a URL, or several with commas between them. A name is all of its
    /// addresses
    #[arg(
        long,
        env = "MICROBLOG_USER_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50051"
    )]
    pub user_url: String,

    /// Where the relation service is: a URL, or several with commas between them. A name is all of its
    /// addresses
    #[arg(
        long,
        env = "MICROBLOG_RELATION_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50052"
    )]
    pub relation_url: String,

    /// Where the post service is: a URL, or several with commas between them. A name is all of its
    /// addresses
    #[arg(
        long,
        env = "MICROBLOG_POST_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50053"
    )]
    pub post_url: String,

    /// Where the timeline service is: a URL, or several with commas between them. A name is all of its
    /// addresses
    #[arg(
        long,
        env = "MICROBLOG_TIMELINE_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50054"
    )]
    pub timeline_url: String,

    /// How long a stream to which nothing comes goes on before its session is looked at again, in
    /// milliseconds; with whatever comes it is looked at anyway
    #[arg(long, env = "MICROBLOG_SESSION_CHECK_MS", value_name = "MS", default_value_t = 30_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub session_check_ms: u64,

    /// How much one viewer, and one address, may ask for
    #[command(flatten)]
    pub limits: limits::Config,

    /// What every server has
    #[command(flatten)]
    pub chassis: chassis::Config,
}
