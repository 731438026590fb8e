//! The archive: the only part of the post service that accesses SQL. It has all posts of all time
//! with their comments, and the snapshots of evicted posts. SQLite or PostgreSQL, by its URL, with
//! the same statements and tables. Independent of Redis, and of when its callers write.
//!
//! All writes are idempotent and may arrive late: rows of posts and comments are inserted once and
//! deleted once, and tombstones keep deleted ones from coming back.

mod changes;
mod config;
mod posts;
mod snapshots;

use microblog_record::{Database, Error, Migration, OpenError, sql};
use sqlx::{Any, AssertSqlSafe, Executor as _, Transaction};

pub use changes::Changes;
pub use config::Config;

/// The id of PostgreSQL's advisory lock for writers. Any number that other users of the database do
/// not use.
const WRITE_LOCK: i64 = 0x6d_6963_726f_626c;

const MIGRATIONS: [Migration; 1] =
    [(1, "archive", include_str!("archive/migrations/0001_archive.sql"))];

/// The archive.
///
/// Cheap to clone. Belongs to the runtime that first uses it: each worker thread opens its own.
#[derive(Clone)]
pub struct Archive {
    database: Database,
}

/// A transaction of changes. There is one at a time. Dropping it rolls it back.
pub struct WriteTransaction<'a> {
    archive: &'a Archive,
    transaction: Transaction<'static, Any>,
}

impl Archive {
    /// Opens the archive. Connects lazily: the database may be unavailable. Returns `None` if none
    /// is configured.
    pub fn open(config: &microblog_record::Config) -> Result<Option<Self>, OpenError> {
        Ok(Database::open(config)?.map(|database| Self { database }))
    }

    /// Returns whether the archive is a file of this process (SQLite).
    pub fn is_embedded(&self) -> bool {
        self.database.is_embedded()
    }

    /// Creates or upgrades the tables ([`Database::migrate`]).
    pub async fn migrate(&self) -> Result<(), Error> {
        self.database.migrate(&MIGRATIONS).await
    }

    // Begins a write transaction, once the previous one has ended: two that lock the same rows in
    // different orders would deadlock. Only one or two jobs write, so waiting is cheap.
    async fn begin(&self) -> Result<Transaction<'static, Any>, sqlx::Error> {
        let mut transaction = self.database.begin().await?;
        // SQLite serializes writers itself.
        if transaction.backend_name() != sql::SQLITE {
            let turn = format!("SELECT 1 FROM pg_advisory_xact_lock({WRITE_LOCK})");
            transaction.execute(AssertSqlSafe(turn)).await?;
        }
        Ok(transaction)
    }
}
