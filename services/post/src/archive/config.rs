//! Where the archive is, and what is kept in Redis beside it.

use std::{fmt, time::Duration};

use url::Url;

use super::error::OpenError;

/// What sqlx reads in the address of a PostgreSQL server, beside `options[…]`
/// (<https://docs.rs/sqlx/latest/sqlx/postgres/struct.PgConnectOptions.html>).
const PARAMETERS: [&str; 18] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

/// Where the archive is, and what is kept in Redis beside it.
// Flattened into another struct named `Config`: the groups of the two would clash.
#[derive(Clone, clap::Args)]
#[group(skip)]
pub struct Config {
    /// Where the archive of all posts is: `postgres://user:password@host/database`, or
    /// `sqlite:///path/to/file` for a service that runs in one process; without one, all posts stay
    /// in Redis. Once there was one, the service must have it: what it took from Redis is only there
    #[arg(long, env = "MICROBLOG_ARCHIVE_URL", value_name = "URL", hide_env_values = true)]
    pub archive_url: Option<String>,
    /// How long a read of the archive may take
    #[arg(
        long,
        env = "MICROBLOG_ARCHIVE_TIMEOUT_MS",
        value_name = "MILLISECONDS",
        default_value_t = 2_000,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub archive_timeout_ms: u64,
    /// How many connections to the archive each worker thread has at most for what callers wait for,
    /// and as many for longer work
    #[arg(
        long,
        env = "MICROBLOG_ARCHIVE_LINKS",
        value_name = "COUNT",
        default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub archive_links: u32,
    /// How old posts become before they leave Redis for the archive, as `30days` or `12h`
    #[arg(
        long,
        env = "MICROBLOG_HOT_WINDOW",
        value_name = "TIME",
        default_value = "30days",
        value_parser = humantime::parse_duration
    )]
    pub hot_window: Duration,
    /// How many of an account's newest posts stay in Redis however old they are
    #[arg(long, env = "MICROBLOG_HOT_POSTS", value_name = "COUNT", default_value_t = 1_000)]
    pub hot_posts: usize,
    /// How long an old post stays in Redis when somebody likes, reposts or comments on it
    #[arg(
        long,
        env = "MICROBLOG_WARM_WINDOW",
        value_name = "TIME",
        default_value = "1day",
        value_parser = humantime::parse_duration
    )]
    pub warm_window: Duration,
}

impl Config {
    /// Returns the address as the driver takes it.
    pub(super) fn database_url(&self) -> Result<Option<String>, OpenError> {
        let Some(text) = self.archive_url.as_deref().filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let mut url = Url::parse(text).map_err(OpenError::Url)?;
        match url.scheme() {
            "postgres" | "postgresql" => check_parts(&url)?,
            "sqlite" => {
                if url.path().ends_with(":memory:") || url.query_pairs().any(|(_, v)| v == "memory")
                {
                    return Err(OpenError::InMemory);
                }
                if !url.query_pairs().any(|(name, _)| name == "mode") {
                    url.query_pairs_mut().append_pair("mode", "rwc");
                }
            }
            other => return Err(OpenError::Scheme(other.to_owned())),
        }
        Ok(Some(url.into()))
    }
}

/// Checks that an address of PostgreSQL has nothing that the driver would not read, and would show.
fn check_parts(url: &Url) -> Result<(), OpenError> {
    // What follows a `/`, `?` or `#` in a password comes to stand here.
    let database = url.path().trim_start_matches('/');
    if database.contains(['/', '@']) || url.fragment().is_some() {
        return Err(OpenError::Misread);
    }
    let means_nothing = |name: &str| !PARAMETERS.contains(&name) && !name.starts_with("options[");
    let Some((name, _)) = url.query_pairs().find(|(name, _)| means_nothing(name)) else {
        return Ok(());
    };
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphabetic() || b"-_".contains(&byte));
    Err(if is_word { OpenError::Parameter(name.into_owned()) } else { OpenError::Misread })
}

// The address may carry a password: it never shows.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("archive_timeout_ms", &self.archive_timeout_ms)
            .field("archive_links", &self.archive_links)
            .field("hot_window", &self.hot_window)
            .field("hot_posts", &self.hot_posts)
            .field("warm_window", &self.warm_window)
            .finish_non_exhaustive()
    }
}
