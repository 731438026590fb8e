//! Configuration of what stays in Redis.

use std::time::Duration;

/// Configuration of what stays in Redis, and of what is evicted to the archive.
// Flattened into another struct named `Config`: their argument groups would clash.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Config {
    /// The hot window: the age from which posts may be evicted from Redis to the archive, as
    /// `30days` or `12h`
    #[arg(
        long,
        env = "MICROBLOG_HOT_WINDOW",
        value_name = "TIME",
        default_value = "30days",
        value_parser = humantime::parse_duration
    )]
    pub hot_window: Duration,
    /// How many of an account's newest posts stay in Redis, whatever their age
    #[arg(long, env = "MICROBLOG_HOT_POSTS", value_name = "COUNT", default_value_t = 1_000)]
    pub hot_posts: usize,
    /// The warm window: how long an archived post that is liked, reposted or commented on stays in
    /// Redis
    #[arg(
        long,
        env = "MICROBLOG_WARM_WINDOW",
        value_name = "TIME",
        default_value = "1day",
        value_parser = humantime::parse_duration
    )]
    pub warm_window: Duration,
    /// Evict posts only once a backup of the database has them: whoever backs it up then sets
    /// `backed_up_until` in the table `backup_watermark`
    #[arg(long, env = "MICROBLOG_EVICT_AFTER_BACKUP")]
    pub evict_after_backup: bool,
}
