//! The flags that say how much an account, or an address, may do.

use super::TrustedProxies;

/// How often a viewer, and an address, may make certain calls of one gateway process.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
// Flattened into another struct named `Config`: the groups of two would clash.
#[group(skip)]
pub struct Config {
    /// Calls of Follow that a viewer may make per minute: so many at once, and then one each so many
    /// parts of a minute; 0 for any number. This limit and the others here hold for each process:
    /// with N replicas up to N times as many calls get through
    #[arg(long, env = "MICROBLOG_FOLLOWS_PER_MINUTE", value_name = "COUNT", default_value_t = 60)]
    pub follows_per_minute: u32,

    /// Calls of Like that a viewer may make per minute, likewise
    #[arg(long, env = "MICROBLOG_LIKES_PER_MINUTE", value_name = "COUNT", default_value_t = 120)]
    pub likes_per_minute: u32,

    /// Calls of Publish and Repost that a viewer may make per minute, likewise. How many posts come
    /// of them, --posts-per-minute of the post service limits exactly; this one is to be some times
    /// higher, since repeated calls count here and not there
    #[arg(
        long,
        env = "MICROBLOG_POST_CALLS_PER_MINUTE",
        value_name = "COUNT",
        default_value_t = 240
    )]
    pub post_calls_per_minute: u32,

    /// Calls of Comment that a viewer may make per minute, likewise; --comments-per-minute of the
    /// post service limits the comments that come of them
    #[arg(
        long,
        env = "MICROBLOG_COMMENT_CALLS_PER_MINUTE",
        value_name = "COUNT",
        default_value_t = 240
    )]
    pub comment_calls_per_minute: u32,

    /// Calls of ChangePassword and DeleteAccount that a viewer may make per minute, likewise: each
    /// tries a password
    #[arg(
        long,
        env = "MICROBLOG_PASSWORD_CALLS_PER_MINUTE",
        value_name = "COUNT",
        default_value_t = 10
    )]
    pub password_calls_per_minute: u32,

    /// Calls of Login per minute that may come from one address (of IPv6, from one /64 network),
    /// whether they succeed or not; 0 for any number
    #[arg(long, env = "MICROBLOG_LOGINS_PER_MINUTE", value_name = "COUNT", default_value_t = 60)]
    pub logins_per_minute: u32,

    /// Calls of Register per hour that may come from one address, likewise
    #[arg(
        long,
        env = "MICROBLOG_REGISTRATIONS_PER_HOUR",
        value_name = "COUNT",
        default_value_t = 60
    )]
    pub registrations_per_hour: u32,

    /// Calls of Register per hour that may come from all addresses together, likewise: each may tell
    /// whether an e-mail address has an account
    #[arg(
        long,
        env = "MICROBLOG_REGISTRATIONS_PER_HOUR_TOTAL",
        value_name = "COUNT",
        default_value_t = 10_000
    )]
    pub registrations_per_hour_total: u32,

    /// Calls of CheckAvailability per minute that may come from one address, likewise: each tells
    /// whether a name has an account
    #[arg(
        long,
        env = "MICROBLOG_AVAILABILITY_CHECKS_PER_MINUTE",
        value_name = "COUNT",
        default_value_t = 60
    )]
    pub availability_checks_per_minute: u32,

    /// Calls of CheckAvailability per minute that may come from all addresses together, likewise
    #[arg(
        long,
        env = "MICROBLOG_AVAILABILITY_CHECKS_PER_MINUTE_TOTAL",
        value_name = "COUNT",
        default_value_t = 6_000
    )]
    pub availability_checks_per_minute_total: u32,

    /// Streams of WatchHome that a viewer may have open at once, of the process's --max-watches; 0
    /// for any number
    #[arg(
        long,
        env = "MICROBLOG_MAX_WATCHES_PER_VIEWER",
        value_name = "COUNT",
        default_value_t = 8
    )]
    pub max_watches_per_viewer: u32,

    /// Networks (such as 10.0.0.0/8,fd00::/8) of proxies, and of services that call for people, which
    /// say in `x-forwarded-for` for whom: the address that counts is the last one there that is in
    /// none of these networks. What others say there is not looked at. Without it all who come
    /// through a proxy share one address
    #[arg(
        long,
        env = "MICROBLOG_TRUSTED_PROXIES",
        value_name = "NETWORKS",
        default_value = "",
        hide_default_value = true
    )]
    pub trusted_proxies: TrustedProxies,
}
