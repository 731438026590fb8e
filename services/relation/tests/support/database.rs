//! Databases that record the follow graph.

use std::collections::BTreeMap;

use microblog_testkit::{PATIENCE, PostgresServer, eventually};
use sqlx::{AnyConnection, Connection as _, Row as _};
use tempfile::TempDir;

pub(crate) const FOLLOWS: i64 = 0;
pub(crate) const BLOCKS: i64 = 3;
pub(crate) const MUTES: i64 = 5;

/// A database, removed when dropped.
pub(crate) enum Database {
    Sqlite(TempDir),
    Postgres(PostgresServer),
}

impl Database {
    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(TempDir::with_prefix("microblog-record-").unwrap())
    }

    pub(crate) async fn postgres() -> Self {
        Self::Postgres(PostgresServer::start().await)
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Sqlite(directory) => {
                format!("sqlite://{}/relation.db?mode=rwc", directory.path().display())
            }
            Self::Postgres(server) => server.url(),
        }
    }

    pub(crate) fn flag(&self) -> String {
        format!("--database-url={}", self.url())
    }

    /// Returns the recorded edges, by kind, source and target; whether they exist. Empty before the
    /// tables are created.
    pub(crate) async fn edges(&self) -> BTreeMap<(i64, u64, u64), bool> {
        sqlx::any::install_default_drivers();
        let mut connection = AnyConnection::connect(&self.url()).await.unwrap();
        let rows = sqlx::query("SELECT kind, source, target, ended FROM edges")
            .fetch_all(&mut connection)
            .await
            .unwrap_or_default();
        let edge = |row: &sqlx::any::AnyRow| {
            let number = |column: usize| row.get::<i64, _>(column);
            ((number(0), number(1) as u64, number(2) as u64), number(3) == 0)
        };
        rows.iter().map(edge).collect()
    }

    /// Returns a number that a statement selects; `None` if there is none.
    pub(crate) async fn number(&self, select: &'static str) -> Option<i64> {
        sqlx::any::install_default_drivers();
        let mut connection = AnyConnection::connect(&self.url()).await.unwrap();
        sqlx::query(select).fetch_optional(&mut connection).await.ok()??.try_get(0).ok()
    }

    /// Waits until the database has these edges. An edge that ended before the journal was opened
    /// has no row.
    pub(crate) async fn has(&self, expected: &[((i64, u64, u64), bool)]) {
        let existing = |edges: BTreeMap<(i64, u64, u64), bool>| {
            edges.into_iter().filter(|(_, exists)| *exists).map(|(edge, _)| edge).collect()
        };
        let expected: Vec<_> = existing(expected.iter().copied().collect());
        eventually("the changes are recorded", PATIENCE, async || {
            existing(self.edges().await) == expected
        })
        .await;
    }
}

/// Returns one of each kind.
pub(crate) async fn databases() -> [Database; 2] {
    [Database::sqlite(), Database::postgres().await]
}
