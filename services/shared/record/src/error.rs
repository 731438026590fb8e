//! Errors of a database.

use std::{borrow::Cow, io};

use microblog_files::UnusableText;
use sqlx::{error::DatabaseError, migrate::MigrateError};

/// PostgreSQL's error code of a lock that was not free in time (`lock_not_available`).
const LOCKED: &str = "55P03";

/// PostgreSQL's error code of a write at a server that only reads (`read_only_sql_transaction`).
const READ_ONLY: &str = "25006";

/// PostgreSQL's error code of a BEGIN with READ WRITE at a standby (`feature_not_supported`).
const NOT_SUPPORTED: &str = "0A000";

/// Why a database cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The address is not a URL.
    #[error("the database's address is no URL")]
    Url(#[source] url::ParseError),
    /// The database system is not supported.
    #[error("the database's address begins with {0:?}: it must be `sqlite` or `postgres`")]
    Scheme(String),
    /// A password has unencoded characters: the URL parses as another one, and would expose parts
    /// of the password.
    #[error(
        "the database's address is ambiguous: percent-encode `/`, `?`, `#` and `@` in its password"
    )]
    UnencodedPassword,
    /// The driver would ignore the parameter, and log its value, which may be a secret.
    #[error("the database's address has the unknown parameter {0:?}")]
    Parameter(String),
    /// Each connection would have its own database.
    #[error("the database cannot be in memory: it must be a file")]
    InMemory,
    /// The service has its data in a database.
    #[error("the service needs a database: --database-url is not set")]
    Missing,
    /// Each statement would leave a prepared one behind at the server, without an end.
    #[error(
        "the database's address has statement-cache-capacity=0, with which the driver prepares a \
         statement for each query and never closes it: leave the parameter out"
    )]
    NoStatementCache,
    /// The password is given twice.
    #[error("--database-password-file and a password in --database-url: give one of them")]
    TwoPasswords,
    /// SQLite has no passwords.
    #[error("--database-password-file is for PostgreSQL, and --database-url is not")]
    NoPassword,
    /// The file with the password is unreadable or empty.
    #[error("the password of the database is unknown")]
    PasswordFile(#[source] UnusableText),
    /// The database is not one that a service can use.
    #[error("the database is not usable")]
    Unusable(#[from] Unusable),
    /// The driver rejects the URL.
    #[error("the database's address is not valid")]
    Address(#[source] sqlx::Error),
}

/// Why a service cannot use a database.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// Texts of users have all characters.
    #[error("the encoding of the database is {0}: create it with ENCODING 'UTF8'")]
    Encoding(String),
    /// Two connections have one lock: writers would not wait for each other.
    #[error(
        "pg_advisory_xact_lock does not lock: a second connection does not wait for the first one"
    )]
    NoLock,
    /// A reader misses what was committed before it.
    #[error("a statement does not see what another connection has committed before it")]
    OldSnapshot,
    /// The role cannot create its tables, or write to them.
    #[error("the role of the database may not create tables in its schema, or not write to them")]
    NoRights(#[source] sqlx::Error),
    /// Another engine than PostgreSQL lacks a function, for example.
    #[error("the database rejects a statement that a service needs")]
    Statement(#[source] sqlx::Error),
}

/// Why an operation of a database failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database is unavailable, or exceeded a timeout.
    #[error("database unavailable")]
    Unavailable(#[source] Option<sqlx::Error>),
    /// The database rejected the operation.
    #[error("the database failed")]
    Failed(#[source] sqlx::Error),
    /// Another transaction kept a lock for longer than this one waits for it.
    #[error("locked by another transaction of the database")]
    Locked(#[source] sqlx::Error),
    /// Another version of the program has changed the tables, by this migration.
    #[error(
        "the tables of the database are those of another version: migration {0} is not one of this \
         version, or differs. Run the version that applied it, or a newer one"
    )]
    OtherVersion(i64),
    /// The database is not one that a service can use.
    #[error("the database is not usable")]
    Unusable(#[from] Unusable),
}

impl Error {
    /// Returns the error of a timeout.
    pub(crate) fn timed_out() -> Self {
        Self::Unavailable(None)
    }

    /// Returns the database's error code: an SQLSTATE, or a result code of SQLite.
    pub(crate) fn database_code(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Unavailable(Some(error)) | Self::Failed(error) | Self::Locked(error) => {
                code(error)
            }
            Self::Unavailable(None) => None,
            Self::OtherVersion(_) | Self::Unusable(_) => None,
        }
    }

    /// Returns the value of `error.type`: the database's code, or `timeout`, `unavailable`, `unusable`
    /// or `malformed`.
    pub(crate) fn error_type(&self) -> Cow<'_, str> {
        let other = match self {
            Self::Unavailable(None | Some(sqlx::Error::PoolTimedOut)) => "timeout",
            Self::Unavailable(_) | Self::Locked(_) => "unavailable",
            Self::Unusable(_) => "unusable",
            Self::Failed(_) | Self::OtherVersion(_) => "malformed",
        };
        self.database_code().unwrap_or(other.into())
    }

    /// Returns whether PostgreSQL has stopped the transaction for another one, in a deadlock.
    pub(crate) fn is_conflict(&self) -> bool {
        self.database_code().is_some_and(|code| code == "40P01")
    }

    /// Returns whether the server only reads: it is a standby, or was made one.
    pub(crate) fn is_read_only(&self) -> bool {
        self.database_code().is_some_and(|code| code == READ_ONLY)
    }

    /// Returns whether an immediate retry is pointless: the database is unavailable.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_)) && !self.is_conflict()
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error as E;
        if let E::Migrate(migrate) = &error
            && let MigrateError::VersionMissing(number) | MigrateError::VersionMismatch(number) =
                **migrate
        {
            return Self::OtherVersion(number);
        }
        if matches!(error, E::Database(_)) && is_locked(&error) {
            return Self::Locked(error);
        }
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

/// Returns the error of a BEGIN: that of a standby means that the database is unavailable.
pub(crate) fn of_begin(error: sqlx::Error) -> sqlx::Error {
    match code(&error).is_some_and(|code| code == NOT_SUPPORTED) {
        true => sqlx::Error::Io(io::Error::other(format!("the server is a standby: {error}"))),
        false => error,
    }
}

/// Returns whether a role lacks the rights for a statement, or has no schema (`insufficient_privilege`,
/// `invalid_schema_name`).
pub(crate) fn is_denied(error: &sqlx::Error) -> bool {
    code(error).is_some_and(|code| ["42501", "3F000"].contains(&&*code))
}

/// Returns whether a lock was not free in time.
pub(crate) fn is_locked(error: &sqlx::Error) -> bool {
    code(error).is_some_and(|code| code == LOCKED)
}

/// Returns the database's error code.
pub(crate) fn code(error: &sqlx::Error) -> Option<Cow<'_, str>> {
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

/// Returns whether a database rejected a faulty statement or value, rather than failing in its
/// current state: full, read-only, starting up, shutting down, without tables, or locked by another
/// writer.
pub(crate) fn is_fault(error: &dyn DatabaseError) -> bool {
    let code = error.code().unwrap_or_default();
    if code.len() == 5 {
        // PostgreSQL's classes: data exception, integrity constraint violation, syntax error or
        // access rule violation. 42P01: undefined table.
        return ["22", "23", "42"].iter().any(|class| code.starts_with(class)) && code != "42P01";
    }
    // SQLite's ERROR, CONSTRAINT, MISMATCH and RANGE.
    let code = code.parse::<u32>().unwrap_or_default() & 0xff;
    [1, 19, 20, 25].contains(&code) && !error.message().starts_with("no such table")
}
