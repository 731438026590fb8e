//! What a database has of the follow graph.

use std::collections::BTreeMap;

pub(crate) use microblog_testkit::Database;
use microblog_testkit::{PATIENCE, eventually};
use sqlx::{AnyConnection, Connection as _, Row as _};

pub(crate) const FOLLOWS: i64 = 0;
pub(crate) const BLOCKS: i64 = 3;
pub(crate) const MUTES: i64 = 5;

/// What a database has of the follow graph.
pub(crate) trait Record {
    /// Returns the recorded edges, by kind, source and target; whether they exist. Empty before the
    /// tables are created.
    async fn edges(&self) -> BTreeMap<(i64, u64, u64), bool>;

    /// Returns a number that a statement selects; `None` if there is none.
    async fn number(&self, select: &'static str) -> Option<i64>;

    /// Waits until the database has these edges. An edge that ended before the journal was opened
    /// has no row.
    async fn has(&self, expected: &[((i64, u64, u64), bool)]);
}

impl Record for Database {
    async fn edges(&self) -> BTreeMap<(i64, u64, u64), bool> {
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

    async fn number(&self, select: &'static str) -> Option<i64> {
        sqlx::any::install_default_drivers();
        let mut connection = AnyConnection::connect(&self.url()).await.unwrap();
        sqlx::query(select).fetch_optional(&mut connection).await.ok()??.try_get(0).ok()
    }

    async fn has(&self, expected: &[((i64, u64, u64), bool)]) {
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
