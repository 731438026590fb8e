//! The database of a service: an SQLite file or a PostgreSQL server.

use tempfile::TempDir;

use crate::PostgresServer;

/// A database, removed when dropped.
pub enum Database {
    /// An SQLite file in this directory.
    Sqlite(TempDir),
    /// A PostgreSQL server.
    Postgres(PostgresServer),
}

impl Database {
    /// Returns an SQLite file that does not exist yet.
    pub fn sqlite() -> Self {
        Self::Sqlite(TempDir::with_prefix("microblog-record-").expect("make a directory"))
    }

    /// Starts a PostgreSQL server.
    pub async fn postgres() -> Self {
        Self::Postgres(PostgresServer::start().await)
    }

    /// Returns one of each kind.
    pub async fn both() -> [Self; 2] {
        [Self::sqlite(), Self::postgres().await]
    }

    /// Returns the name of its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "SQLite",
            Self::Postgres(_) => "PostgreSQL",
        }
    }

    /// Returns the URL.
    pub fn url(&self) -> String {
        match self {
            Self::Sqlite(directory) => {
                format!("sqlite://{}/record.db?mode=rwc", directory.path().display())
            }
            Self::Postgres(server) => server.url(),
        }
    }

    /// Returns the flag of a service.
    pub fn flag(&self) -> String {
        format!("--database-url={}", self.url())
    }
}
