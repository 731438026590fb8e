//! What can go wrong with the archive.

/// Why the archive cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The address is none.
    #[error("the archive's address is no URL")]
    Url(#[source] url::ParseError),
    /// It is one of another kind of database.
    #[error("the archive's address begins with {0:?}: it must be `sqlite` or `postgres`")]
    Scheme(String),
    /// Every connection would have a database of its own.
    #[error("the archive cannot be in memory: it must be a file")]
    InMemory,
    /// The driver cannot understand it.
    #[error("the archive's address is not valid")]
    Address(#[source] sqlx::Error),
}

/// Why the archive did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database is away, or too slow.
    #[error("the archive does not answer")]
    Unavailable(#[source] Option<sqlx::Error>),
    /// There are posts in an archive, but none is configured.
    #[error("what is asked for is in an archive, and none is configured")]
    Missing,
    /// The database refused.
    #[error("the archive failed")]
    Failed(#[source] sqlx::Error),
    /// What is stored makes no sense.
    #[error("the archive holds what nobody wrote there: {0}")]
    Malformed(&'static str),
}

impl Error {
    /// Returns what tells that there was no answer in time.
    pub(super) fn late() -> Self {
        Self::Unavailable(None)
    }

    /// Returns whether it is of no use to go on at once.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Missing)
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error as E;
        let is_outage = match &error {
            E::Io(_) | E::Tls(_) | E::PoolTimedOut | E::PoolClosed | E::WorkerCrashed => true,
            // A connection that breaks in the middle of a message.
            E::Protocol(_) => true,
            E::Database(error) => error.code().is_some_and(|code| is_outage(&code)),
            E::Migrate(error) => {
                matches!(&**error, sqlx::migrate::MigrateError::Execute(E::Io(_) | E::PoolTimedOut))
            }
            _ => false,
        };
        if is_outage { Self::Unavailable(Some(error)) } else { Self::Failed(error) }
    }
}

/// PostgreSQL's classes 08 (connection), 53 (resources) and 57 (operator: shutting down, starting
/// up), the tables that nobody has made yet (42P01); SQLite's BUSY (5), CANTOPEN (14) and the ones
/// that extend them.
fn is_outage(code: &str) -> bool {
    let is_of_postgres = code.len() == 5
        && (["08", "53", "57"].iter().any(|class| code.starts_with(class)) || code == "42P01");
    let is_of_sqlite =
        code.len() < 5 && code.parse().is_ok_and(|code: u32| [5, 14].contains(&(code & 0xff)));
    is_of_postgres || is_of_sqlite
}
