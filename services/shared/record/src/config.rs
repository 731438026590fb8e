//! Configuration of a database: flags and environment variables.

use url::Url;

use crate::error::OpenError;

/// The URL parameters of PostgreSQL that sqlx reads, besides `options[…]`
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

/// Configuration of a database.
// Without `Debug`: the URL may contain a password.
// Flattened into another struct named `Config`: their argument groups would clash.
#[derive(Clone, clap::Args)]
#[group(skip)]
pub struct Config {
    /// URL of the service's SQL database: `postgres://user:password@host/database`, or
    /// `sqlite:///path/to/file` for a service of one process. Without one, only Redis has the data.
    /// A service that once had a database must keep it
    #[arg(long, env = "MICROBLOG_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub database_url: Option<String>,
    /// Timeout of a read of the database, and of a write that waits for it (--durability)
    #[arg(
        long,
        env = "MICROBLOG_DATABASE_TIMEOUT_MS",
        value_name = "MILLISECONDS",
        default_value_t = 2_000,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub database_timeout_ms: u64,
    /// The most connections of each worker thread to the database for calls, and as many for jobs
    #[arg(
        long,
        env = "MICROBLOG_DATABASE_CONNECTIONS",
        value_name = "COUNT",
        default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub database_connections: u32,
    /// How long the change feed keeps changes: readers that were away for longer need a snapshot
    #[arg(
        long,
        env = "MICROBLOG_CHANGE_FEED_HOURS",
        value_name = "HOURS",
        default_value_t = 72,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub change_feed_hours: u32,
}

impl Config {
    /// Returns the database URL for the driver.
    pub(crate) fn url(&self) -> Result<Option<String>, OpenError> {
        let Some(text) = self.database_url.as_deref().filter(|text| !text.is_empty()) else {
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

/// Rejects parts of a PostgreSQL URL that the driver would ignore, and log.
fn check_parts(url: &Url) -> Result<(), OpenError> {
    // The remainder of a password with an unencoded `/`, `?` or `#` appears here.
    let database = url.path().trim_start_matches('/');
    if database.contains(['/', '@']) || url.fragment().is_some() {
        return Err(OpenError::UnencodedPassword);
    }
    let means_nothing = |name: &str| !PARAMETERS.contains(&name) && !name.starts_with("options[");
    let Some((name, _)) = url.query_pairs().find(|(name, _)| means_nothing(name)) else {
        return Ok(());
    };
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphabetic() || b"-_".contains(&byte));
    Err(if is_word {
        OpenError::Parameter(name.into_owned())
    } else {
        OpenError::UnencodedPassword
    })
}
