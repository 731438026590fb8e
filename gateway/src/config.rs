//! The flags of the gateway, and their environment variables.

use std::net::SocketAddr;

use http::HeaderValue;
use microblog_chassis as chassis;
use url::Url;

use crate::{callers::Callers, limits};

/// The gateway of microblog: composes the services' calls into what applications call
#[derive(Clone, clap::Parser)]
#[command(name = "microblog-gateway", version = microblog_chassis::VERSION)]
pub struct Config {
    /// Address to listen on
    #[arg(
        long,
        env = "MICROBLOG_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:50050"
    )]
    pub listen: SocketAddr,

    /// URL of the user service, or several, separated by commas. A host name resolves to all of its
    /// addresses
    #[arg(
        long,
        env = "MICROBLOG_USER_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50051"
    )]
    pub user_url: String,

    /// URL of the relation service, or several, separated by commas. A host name resolves to all of
    /// its addresses
    #[arg(
        long,
        env = "MICROBLOG_RELATION_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50052"
    )]
    pub relation_url: String,

    /// URL of the post service, or several, separated by commas. A host name resolves to all of its
    /// addresses
    #[arg(
        long,
        env = "MICROBLOG_POST_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50053"
    )]
    pub post_url: String,

    /// URL of the timeline service, or several, separated by commas. A host name resolves to all of
    /// its addresses
    #[arg(
        long,
        env = "MICROBLOG_TIMELINE_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50054"
    )]
    pub timeline_url: String,

    /// URL of the notice service, or several, separated by commas. A host name resolves to all of its
    /// addresses
    #[arg(
        long,
        env = "MICROBLOG_NOTICE_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:50055"
    )]
    pub notice_url: String,

    /// How often an idle stream checks its session, in milliseconds. Each message checks it, too
    #[arg(long, env = "MICROBLOG_SESSION_CHECK_MS", value_name = "MS", default_value_t = 30_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub session_check_ms: u64,

    /// How long a stream may be silent, in milliseconds, before it has a message without content, so that
    /// proxies do not end it. By default, HAProxy waits for 50 seconds and nginx for 60; 0 disables these
    /// messages
    #[arg(long, env = "MICROBLOG_WATCH_HEARTBEAT_MS", value_name = "MS", default_value_t = 20_000)]
    pub watch_heartbeat_ms: u64,

    /// JSON file of the service callers, with hashes of their secrets; read again within seconds when
    /// it changes. Without it, only people call
    #[arg(long, env = "MICROBLOG_CALLERS_FILE", value_name = "FILE")]
    pub callers_file: Option<Callers>,

    /// Origins whose pages may call the gateway in a browser, separated by commas, such as
    /// `https://example.org`. By default, no pages from elsewhere may
    #[arg(long, env = "MICROBLOG_ALLOWED_ORIGINS", value_name = "ORIGINS", value_delimiter = ',',
          value_parser = origin)]
    pub allowed_origins: Vec<HeaderValue>,

    /// Serves a page for browsers at /, to look at the system and to try it
    #[arg(long, env = "MICROBLOG_PAGE")]
    pub page: bool,

    /// Serves the metrics of the process at /metrics too, and shows them on the page, in a tab for
    /// operators. For a system on one machine: all callers of the gateway can read them. Needs
    /// --metrics-listen
    #[arg(long, env = "MICROBLOG_PAGE_METRICS", requires = "page")]
    pub page_metrics: bool,

    /// Rate limits
    #[command(flatten)]
    pub limits: limits::Config,

    /// Settings of every server
    #[command(flatten)]
    pub chassis: chassis::Config,
}

/// Parses an origin as a browser sends it.
fn origin(text: &str) -> Result<HeaderValue, String> {
    let origin = Url::parse(text).map_err(|error| error.to_string())?.origin();
    match origin.is_tuple() && origin.ascii_serialization() == text {
        true => HeaderValue::from_str(text).map_err(|error| error.to_string()),
        false => Err("must be a scheme, a host and, unless it is the default, a port".to_owned()),
    }
}
