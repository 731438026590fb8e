//! The flags of the rate limits.

use microblog_chassis::ProxyProtocol;

use super::address::TrustedProxies;

/// Rate limits for each viewer and each client address, in one gateway process.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
// Flattened into another struct named `Config`: the groups of two would clash.
#[group(skip)]
pub struct Config {
    /// Calls of Follow per minute and viewer: a burst of this many, then at this rate; 0 disables
    /// the limit. This limit and the others here hold for each process: N replicas allow up to N
    /// times as many calls
    #[arg(long, env = "MICROBLOG_FOLLOWS_PER_MINUTE", value_name = "COUNT", default_value_t = 60)]
    pub follows_per_minute: u32,

    /// Calls of Like per minute and viewer, likewise
    #[arg(long, env = "MICROBLOG_LIKES_PER_MINUTE", value_name = "COUNT", default_value_t = 120)]
    pub likes_per_minute: u32,

    /// Calls of Publish and Repost per minute and viewer, likewise. --posts-per-minute of the post
    /// service limits new posts exactly. Set this limit a few times higher: retries count here, but
    /// not there
    #[arg(
        long,
        env = "MICROBLOG_POST_CALLS_PER_MINUTE",
        value_name = "COUNT",
        default_value_t = 240
    )]
    pub post_calls_per_minute: u32,

    /// Calls of Comment per minute and viewer, likewise. --comments-per-minute of the post service
    /// limits new comments exactly
    #[arg(
        long,
        env = "MICROBLOG_COMMENT_CALLS_PER_MINUTE",
        value_name = "COUNT",
        default_value_t = 240
    )]
    pub comment_calls_per_minute: u32,

    /// Calls of Unfollow, RemoveFollower, Block, Unblock, Mute, Unmute, Unlike and UpdateProfile per
    /// minute and viewer, likewise: each leaves a row in the database, even if it changes nothing
    #[arg(
        long,
        env = "MICROBLOG_CHANGE_CALLS_PER_MINUTE",
        value_name = "COUNT",
        default_value_t = 600
    )]
    pub change_calls_per_minute: u32,

    /// Calls of ChangePassword and DeleteAccount per minute and viewer, likewise: each is a
    /// password attempt
    #[arg(
        long,
        env = "MICROBLOG_PASSWORD_CALLS_PER_MINUTE",
        value_name = "COUNT",
        default_value_t = 10
    )]
    pub password_calls_per_minute: u32,

    /// Calls of Login per minute and client address (of IPv6, /64 network), successful or not; 0
    /// disables the limit
    #[arg(long, env = "MICROBLOG_LOGINS_PER_MINUTE", value_name = "COUNT", default_value_t = 60)]
    pub logins_per_minute: u32,

    /// Calls of Register per hour and client address, likewise
    #[arg(
        long,
        env = "MICROBLOG_REGISTRATIONS_PER_HOUR",
        value_name = "COUNT",
        default_value_t = 60
    )]
    pub registrations_per_hour: u32,

    /// Calls of Register per hour from all addresses together, likewise: each may reveal whether an
    /// e-mail address has an account
    #[arg(
        long,
        env = "MICROBLOG_REGISTRATIONS_PER_HOUR_TOTAL",
        value_name = "COUNT",
        default_value_t = 10_000
    )]
    pub registrations_per_hour_total: u32,

    /// Calls of CheckAvailability per minute and client address, likewise: each reveals whether a
    /// name has an account
    #[arg(
        long,
        env = "MICROBLOG_AVAILABILITY_CHECKS_PER_MINUTE",
        value_name = "COUNT",
        default_value_t = 60
    )]
    pub availability_checks_per_minute: u32,

    /// Calls of CheckAvailability per minute from all addresses together, likewise
    #[arg(
        long,
        env = "MICROBLOG_AVAILABILITY_CHECKS_PER_MINUTE_TOTAL",
        value_name = "COUNT",
        default_value_t = 6_000
    )]
    pub availability_checks_per_minute_total: u32,

    /// Open streams of WatchHome and WatchNotices per viewer, of the process's --max-watches; 0 disables
    /// the limit
    #[arg(
        long,
        env = "MICROBLOG_MAX_WATCHES_PER_VIEWER",
        value_name = "COUNT",
        default_value_t = 8
    )]
    pub max_watches_per_viewer: u32,
    /// Open streams of the change feed per service caller, of the process's --max-watches; 0 disables
    /// the limit
    #[arg(
        long,
        env = "MICROBLOG_MAX_CHANGE_STREAMS_PER_CALLER",
        value_name = "COUNT",
        default_value_t = 8
    )]
    pub max_change_streams_per_caller: u32,

    /// Networks (such as 10.0.0.0/8,fd00::/8) of trusted proxies, and of services that call on
    /// behalf of users. The client address is the last one in `x-forwarded-for` that is in none of
    /// these networks; the header is ignored from any other peer. Without this flag, all clients
    /// behind a proxy share one address
    #[arg(long, env = "MICROBLOG_TRUSTED_PROXIES", value_name = "NETWORKS")]
    pub trusted_proxies: Option<TrustedProxies>,

    /// Connections from --trusted-proxies begin with a header of the PROXY protocol, version 1 or 2,
    /// which names the client: for a balancer of layer 4. Those without it are closed. Connections
    /// from other addresses have none
    #[arg(long, env = "MICROBLOG_PROXY_PROTOCOL", requires_if("true", "trusted_proxies"))]
    pub proxy_protocol: bool,
}

impl Config {
    /// Returns the peers that speak the PROXY protocol.
    pub(crate) fn proxy_protocol(&self) -> Option<ProxyProtocol> {
        let proxies = self.trusted_proxies.clone().filter(|_| self.proxy_protocol)?;
        Some(ProxyProtocol::new(move |peer| proxies.contains(peer)))
    }
}
