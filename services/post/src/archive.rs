//! The archive: the reads of the record in SQL ([`record`](crate::record)), which has all posts of
//! all time with their lists. SQLite or PostgreSQL, by its URL, with the same statements and tables.
//! Independent of Redis.

mod config;
mod deletions;
mod posts;
mod recovery;
mod snapshots;

use std::time::{Duration, SystemTime};

use microblog_domain::Partition;
use microblog_record::{Database, Error, OpenError, Tables as _};

pub use config::Config;

use crate::record::PostTables;

/// The name of the record in logs and metrics.
pub(crate) const RECORD: &str = "post record";

/// The archive.
///
/// Cheap to clone. Belongs to the runtime that first uses it: each worker thread opens its own.
#[derive(Clone)]
pub struct Archive {
    database: Database,
}

impl Archive {
    /// Opens the archive. Connects lazily: the database may be unavailable. Returns `None` if none
    /// is configured.
    pub fn open(config: &microblog_record::Config) -> Result<Option<Self>, OpenError> {
        Ok(Database::open(config)?.map(Self::new))
    }

    /// Returns the archive in a database.
    pub(crate) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Returns the database.
    pub(crate) fn database(&self) -> &Database {
        &self.database
    }

    /// Creates or upgrades the tables ([`Database::migrate`]).
    pub async fn migrate(&self) -> Result<(), Error> {
        self.database.migrate(PostTables::MIGRATIONS).await
    }

    /// Returns until when the backup of the database is complete.
    pub(crate) async fn backed_up_until(&self) -> Result<SystemTime, Error> {
        let query = sqlx::query("SELECT COALESCE(MIN(backed_up_until), 0) FROM backup_watermark");
        self.database
            .read("SELECT backup_watermark", async move {
                let row = query.fetch_one(self.database.readers()).await?;
                let seconds = microblog_record::sql::read(&row, 0)?;
                Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
            })
            .await
    }

    /// Returns the version of the newest recorded change of a partition; 0 if there is none.
    pub(crate) async fn position(&self, partition: Partition) -> Result<u64, Error> {
        let query = sqlx::query("SELECT version FROM journal_positions WHERE partition = $1")
            .bind(i64::from(partition.number()));
        self.database
            .read("SELECT journal_positions", async move {
                let row = query.fetch_optional(self.database.readers()).await?;
                Ok(row.map(|row| microblog_record::sql::read(&row, 0)).transpose()?.unwrap_or(0))
            })
            .await
    }
}
