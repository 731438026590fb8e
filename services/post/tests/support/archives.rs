//! An archive for a test: an SQLite file in a temporary directory, or a PostgreSQL server. Removed
//! when dropped.

use std::sync::atomic::{AtomicU32, Ordering};

use microblog_testkit::PostgresServer;
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Row as _};
use tempfile::TempDir;

/// The database system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
}

/// A database server with any number of archives.
pub(crate) struct ArchiveServer {
    place: Place,
    made: AtomicU32,
}

enum Place {
    Directory(TempDir),
    Server(PostgresServer),
}

impl ArchiveServer {
    /// Starts it, with an empty archive.
    pub(crate) async fn start(kind: Kind) -> Self {
        sqlx::any::install_default_drivers();
        let place = match kind {
            Kind::Sqlite => Place::Directory(TempDir::with_prefix("microblog-archive-").unwrap()),
            Kind::Postgres => Place::Server(PostgresServer::start().await),
        };
        Self { place, made: AtomicU32::new(0) }
    }

    /// Returns the URL of its first archive, for `--database-url`.
    pub(crate) fn url(&self) -> String {
        match &self.place {
            Place::Directory(_) => self.file("archive"),
            Place::Server(server) => server.url(),
        }
    }

    /// Creates another archive, and returns its URL.
    pub(crate) async fn another(&self) -> String {
        let name = format!("archive_{}", self.made.fetch_add(1, Ordering::Relaxed));
        match &self.place {
            Place::Directory(_) => self.file(&name),
            Place::Server(server) => {
                let url = server.url();
                execute(&mut connect(&url).await, &format!("CREATE DATABASE {name}")).await;
                let host = url.strip_suffix("/postgres").unwrap();
                format!("{host}/{name}")
            }
        }
    }

    /// Returns the server, to kill, restart or pause it; SQLite has none.
    pub(crate) fn postgres(&self) -> &PostgresServer {
        match &self.place {
            Place::Directory(_) => panic!("SQLite has no server"),
            Place::Server(server) => server,
        }
    }

    fn file(&self, name: &str) -> String {
        let Place::Directory(directory) = &self.place else { unreachable!("a PostgreSQL server") };
        format!("sqlite://{}/{name}.sqlite?mode=rwc", directory.path().display())
    }
}

/// Connects to an archive, to inspect it.
pub(crate) async fn connect(url: &str) -> AnyConnection {
    sqlx::any::install_default_drivers();
    AnyConnection::connect(url).await.unwrap()
}

/// Executes a statement. Returns the number of changed rows.
pub(crate) async fn execute(connection: &mut AnyConnection, statement: &str) -> u64 {
    let statement = sqlx::query(AssertSqlSafe(statement.to_owned()));
    statement.execute(connection).await.unwrap().rows_affected()
}

/// Returns the numbers that a query selects, row by row.
pub(crate) async fn numbers(connection: &mut AnyConnection, query: &str) -> Vec<Vec<i64>> {
    let rows = sqlx::query(AssertSqlSafe(query.to_owned())).fetch_all(connection).await.unwrap();
    rows.iter().map(|row| (0..row.len()).map(|column| row.get(column)).collect()).collect()
}
