//! What can go wrong with the archive.

use std::borrow::Cow;

use sqlx::{error::DatabaseError, migrate::MigrateError};

/// Why the archive cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The address is none.
    #[error("the archive's address is no URL")]
    Url(#[source] url::ParseError),
    /// It is one of another kind of database.
    #[error("the archive's address begins with {0:?}: it must be `sqlite` or `postgres`")]
    Scheme(String),
    /// It is another one than it was meant to be, and shows parts of what was meant to be secret.
    #[error(
        "the archive's address makes no sense: `/`, `?`, `#` and `@` in a password are to be \
         percent-encoded"
    )]
    Misread,
    /// The driver would ignore it, and show its value in the log, which may be a secret.
    #[error("the archive's address has the parameter {0:?}, which means nothing here")]
    Parameter(String),
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
    pub(super) fn timed_out() -> Self {
        Self::Unavailable(None)
    }

    /// Returns the code of what the database itself said: an SQLSTATE, or a number of SQLite's.
    pub(super) fn database_code(&self) -> Option<Cow<'_, str>> {
        let (Self::Unavailable(Some(error)) | Self::Failed(error)) = self else { return None };
        code(error)
    }

    /// Returns it in a word: what the database said, or `timeout`, `unavailable` or `malformed`.
    pub(super) fn error_type(&self) -> Cow<'_, str> {
        let other = match self {
            Self::Unavailable(None | Some(sqlx::Error::PoolTimedOut)) => "timeout",
            Self::Unavailable(_) | Self::Missing => "unavailable",
            Self::Failed(_) | Self::Malformed(_) => "malformed",
        };
        self.database_code().unwrap_or(other.into())
    }

    /// Returns whether it is of no use to go on at once.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Missing)
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error as E;
        let is_fault = match &error {
            E::Configuration(_) | E::InvalidArgument(_) | E::RowNotFound => true,
            E::TypeNotFound { .. } | E::ColumnIndexOutOfBounds { .. } | E::ColumnNotFound(_) => {
                true
            }
            E::ColumnDecode { .. } | E::Encode(_) | E::Decode(_) | E::AnyDriverError(_) => true,
            E::Database(error) => is_fault(&**error),
            E::Migrate(error) => {
                use MigrateError as M;
                !matches!(&**error, M::Execute(_) | M::ExecuteMigration(..))
            }
            _ => false,
        };
        if is_fault { Self::Failed(error) } else { Self::Unavailable(Some(error)) }
    }
}

fn code(error: &sqlx::Error) -> Option<Cow<'_, str>> {
    use MigrateError as M;
    match error {
        sqlx::Error::Database(error) => error.code(),
        sqlx::Error::Migrate(error) => match &**error {
            M::Execute(error) | M::ExecuteMigration(error, _) => code(error),
            _ => None,
        },
        _ => None,
    }
}

/// Whether a database refused what makes no sense, and not because of the state that it is in: full,
/// read-only, starting up, shutting down, without the tables that nobody has made yet, or busy with
/// what somebody else does.
fn is_fault(error: &dyn DatabaseError) -> bool {
    let code = error.code().unwrap_or_default();
    if code.len() == 5 {
        // PostgreSQL's classes of wrong data, constraints and wrong statements.
        return ["22", "23", "42"].iter().any(|class| code.starts_with(class)) && code != "42P01";
    }
    // SQLite's ERROR, CONSTRAINT, MISMATCH and RANGE.
    let code = code.parse::<u32>().unwrap_or_default() & 0xff;
    [1, 19, 20, 25].contains(&code) && !error.message().starts_with("no such table")
}
