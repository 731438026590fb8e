//! The partitions of the tables, in PostgreSQL: one for each year of posts. They are made when the first post
//! of a year is written, in its transaction.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use microblog_domain::PostId;
use microblog_storage::Transaction;
use sqlx::{AssertSqlSafe, Row as _};

/// A year of 365.25 days, in the milliseconds of an id.
const YEAR_MS: u64 = 31_557_600_000;

/// The bits of an id below its milliseconds.
const BELOW_MS: u32 = 12;

/// The partitioned tables, with the fill factor of their partitions: rows of posts change in place.
const TABLES: [(&str, u8); 5] =
    [("posts", 70), ("texts", 100), ("likes", 100), ("comments", 100), ("reposts", 100)];

/// The years that have partitions, as far as this process knows.
#[derive(Debug, Default)]
pub(crate) struct Partitions(Mutex<BTreeSet<u64>>);

impl Partitions {
    /// Makes the partitions of some new posts, unless they are there. Those that it makes are known once a
    /// later transaction has found them: this one may be rolled back.
    pub(crate) async fn make(
        &self,
        transaction: &mut Transaction,
        posts: impl Iterator<Item = PostId>,
    ) -> Result<(), sqlx::Error> {
        if transaction.is_sqlite() {
            return Ok(());
        }
        let mut years: BTreeSet<u64> = posts.map(year).collect();
        years.retain(|year| !self.known().contains(year));
        for year in years {
            let find = format!("SELECT to_regclass('posts_{year}')::text");
            let found =
                sqlx::query(AssertSqlSafe(find)).fetch_one(transaction.connection()).await?;
            if found.try_get::<Option<String>, _>(0)?.is_some() {
                self.known().insert(year);
                continue;
            }
            let make = AssertSqlSafe(make_text(year));
            sqlx::raw_sql(make).execute(transaction.connection()).await?;
        }
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the year of a post, counted from the first one of ids.
fn year(post: PostId) -> u64 {
    (post.get() >> BELOW_MS) / YEAR_MS
}

/// Returns the first id of a year.
pub(crate) const fn first_id(year: u64) -> u64 {
    (year * YEAR_MS) << BELOW_MS
}

/// Returns the statements that make the partitions of a year, one process after the other. Attaching takes
/// a lock with which others read and write the table.
pub(crate) fn make_text(year: u64) -> String {
    let [from, to] = [year, year + 1].map(first_id);
    let make = |(table, fill): (&str, u8)| {
        let name = format!("{table}_{year}");
        format!(
            "IF to_regclass('{name}') IS NULL THEN \
             CREATE TABLE {name} (LIKE {table} INCLUDING ALL) WITH (fillfactor = {fill}); \
             ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({from}) TO ({to}); END IF;"
        )
    };
    let make = TABLES.map(make).join(" ");
    // The lock that attaching takes. Behind an advisory lock, what another process has made would not be seen.
    format!("LOCK TABLE posts IN SHARE UPDATE EXCLUSIVE MODE; DO $$ BEGIN {make} END $$")
}
