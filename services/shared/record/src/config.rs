//! Configuration of a database: flags and environment variables.

use std::path::PathBuf;

use url::Url;

use crate::{error::OpenError, login::Login};

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
    /// `sqlite:///path/to/file` for a service of one process
    #[arg(long, env = "MICROBLOG_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub database_url: Option<String>,
    /// File with the password of the database's user: plain text, without percent-encoding; a newline at
    /// its end does not count. It is read for each new connection, so a password that changes needs no
    /// restart. Not together with a password in the URL
    #[arg(long, env = "MICROBLOG_DATABASE_PASSWORD_FILE", value_name = "FILE")]
    pub database_password_file: Option<PathBuf>,
    /// Timeout of a read of the database, and of a write that waits for it
    #[arg(
        long,
        env = "MICROBLOG_DATABASE_TIMEOUT_MS",
        value_name = "MILLISECONDS",
        default_value_t = 2_000,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub database_timeout_ms: u64,
    /// The most connections of each worker thread to the database for calls, and as many for jobs. The
    /// most of a process are threads × 2 × this number, and one for migrations
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
    /// Returns what the driver connects with.
    pub(crate) fn login(&self) -> Result<Login, OpenError> {
        let Some(text) = self.database_url.as_deref().filter(|text| !text.is_empty()) else {
            return Err(OpenError::Missing);
        };
        let password_file = self.database_password_file.clone();
        let password_file = password_file.filter(|path| !path.as_os_str().is_empty());
        let mut url = Url::parse(text).map_err(OpenError::Url)?;
        match url.scheme() {
            "postgres" | "postgresql" => {
                check_parts(&url)?;
                let mut names = url.query_pairs().map(|(name, _)| name);
                if password_file.is_some()
                    && (url.password().is_some() || names.any(|name| name == "password"))
                {
                    return Err(OpenError::TwoPasswords);
                }
            }
            "sqlite" => {
                if password_file.is_some() {
                    return Err(OpenError::NoPassword);
                }
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
        // A file that is unusable stops the start.
        let login = Login::new(url, password_file).map_err(OpenError::PasswordFile)?;
        login.options().map_err(OpenError::Address)?;
        Ok(login)
    }
}

/// Rejects parts of a PostgreSQL URL that the driver would ignore, and log, and parameters that do harm.
fn check_parts(url: &Url) -> Result<(), OpenError> {
    // The remainder of a password with an unencoded `/`, `?` or `#` appears here.
    let database = url.path().trim_start_matches('/');
    if database.contains(['/', '@']) || url.fragment().is_some() {
        return Err(OpenError::UnencodedPassword);
    }
    for (name, value) in url.query_pairs() {
        // The driver parses it as a number.
        if name == "statement-cache-capacity" && value.parse() == Ok(0) {
            return Err(OpenError::NoStatementCache);
        }
        if PARAMETERS.contains(&&*name) || name.starts_with("options[") {
            continue;
        }
        let is_word = name.bytes().all(|byte| byte.is_ascii_alphabetic() || b"-_".contains(&byte));
        return Err(match is_word {
            true => OpenError::Parameter(name.into_owned()),
            false => OpenError::UnencodedPassword,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{error::Error as _, fs};

    use super::*;

    const URL: &str = "postgres://post@127.0.0.1/microblog";

    fn login(url: &str, password_file: Option<PathBuf>) -> Result<Login, OpenError> {
        let config = Config {
            database_url: Some(url.to_owned()),
            database_password_file: password_file,
            database_timeout_ms: 1,
            database_connections: 1,
            change_feed_hours: 1,
        };
        config.login()
    }

    #[test]
    fn a_url_without_a_statement_cache_is_rejected() {
        for value in ["0", "000", "+0"] {
            let url = format!("{URL}?application_name=post&statement-cache-capacity={value}");
            let url = url.replace('+', "%2B");
            assert!(matches!(login(&url, None), Err(OpenError::NoStatementCache)), "{value}");
        }
        assert!(login(&format!("{URL}?statement-cache-capacity=100"), None).is_ok());
    }

    #[test]
    fn a_password_in_a_file_and_one_in_the_url_are_rejected() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, "secret").unwrap();
        let path = || Some(file.path().to_owned());
        for url in [&URL.replace("post@", "post:secret@"), &format!("{URL}?password=secret")] {
            assert!(matches!(login(url, path()), Err(OpenError::TwoPasswords)), "{url}");
        }
        let sqlite = "sqlite:///tmp/post.sqlite";
        assert!(matches!(login(sqlite, path()), Err(OpenError::NoPassword)));
        assert!(login(URL, path()).is_ok());
    }

    #[test]
    fn a_password_is_the_text_of_its_file_without_a_newline() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = || Some(file.path().to_owned());
        for (text, expected) in [
            ("secret", "secret"),
            ("secret\n", "secret"),
            ("secret\r\n", "secret"),
            ("secret\n\n", "secret\n"),
            (" %41&a=b+c#/?@:\u{e4} \n", " %41&a=b+c#/?@:\u{e4} "),
        ] {
            fs::write(&file, text).unwrap();
            let options = login(URL, path()).unwrap().options().unwrap();
            let mut pairs = options.database_url.query_pairs();
            let (_, found) = pairs.find(|(name, _)| name == "password").unwrap();
            assert_eq!(found, expected, "{text:?}");
        }
    }

    #[test]
    fn an_unusable_password_file_is_named_and_its_content_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("password");
        for content in [None, Some(&b""[..]), Some(b"\n"), Some(b"secret\xff")] {
            if let Some(content) = content {
                fs::write(&file, content).unwrap();
            }
            let Err(error) = login(URL, Some(file.clone())) else { panic!("{content:?}") };
            let mut text = error.to_string();
            let mut source = error.source();
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            assert!(text.contains(file.to_str().unwrap()) && !text.contains("secret"), "{text}");
        }
    }
}
