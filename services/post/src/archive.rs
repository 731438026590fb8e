//! The archive: the only part of the post service that accesses SQL. It has all posts of all time
//! with their comments, and the snapshots of evicted posts. SQLite or PostgreSQL, by its URL, with
//! the same statements and tables. Independent of Redis, and of when its callers write.
//!
//! All writes are idempotent and may arrive late: rows of posts and comments are inserted once and
//! deleted once, and tombstones keep deleted ones from coming back.

mod changes;
mod circuit_breaker;
mod config;
mod connections;
mod error;
mod operation;
mod posts;
mod snapshots;
mod sql;

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use sqlx::{
    Any, AssertSqlSafe, Executor as _, SqlSafeStr as _, Transaction,
    migrate::{Migration, MigrationType, Migrator},
};
use tokio::sync::Mutex;

pub use changes::Changes;
pub use config::Config;
pub use error::{Error, OpenError};

use circuit_breaker::CircuitBreaker;
use connections::{Pools, pool};
use operation::Operations;

/// The timeout of a write transaction, which may hold a post with a million likes.
const WRITE_TIMEOUT: Duration = Duration::from_secs(120);

/// The id of PostgreSQL's advisory lock for writers. Any number that other users of the database do
/// not use.
const WRITE_LOCK: i64 = 0x6d_6963_726f_626c;

/// Serializes the migrations of the process's threads.
static MIGRATION_LOCK: Mutex<()> = Mutex::const_new(());

/// The archive.
///
/// Cheap to clone. Belongs to the runtime that first uses it: each worker thread opens its own.
/// Connects lazily and reconnects. While the database is unavailable, every call fails with
/// [`Error::Unavailable`] within the timeout, or at once while the circuit breaker is open.
#[derive(Clone)]
pub struct Archive {
    inner: Arc<Inner>,
}

struct Inner {
    url: String,
    pools: Arc<Pools>,
    timeout: Duration,
    breaker: CircuitBreaker,
    operations: Operations,
}

/// A transaction of changes. There is one at a time. Dropping it rolls it back.
pub struct WriteTransaction<'a> {
    archive: &'a Archive,
    transaction: Transaction<'static, Any>,
}

impl Archive {
    /// Opens the archive. Connects lazily: the database may be unavailable. Returns `None` if none
    /// is configured.
    pub fn open(config: &Config) -> Result<Option<Self>, OpenError> {
        let Some(url) = config.database_url()? else { return Ok(None) };
        sqlx::any::install_default_drivers();
        let timeout = Duration::from_millis(config.archive_timeout_ms);
        let pools = Pools::open(&url, config.archive_links, timeout, WRITE_TIMEOUT)
            .map_err(OpenError::Address)?;
        let pools = Arc::new(pools);
        connections::observe(&pools);
        let (breaker, operations) = (CircuitBreaker::new(timeout), Operations::new(&url));
        let inner = Arc::new(Inner { url, pools, timeout, breaker, operations });
        Ok(Some(Self { inner }))
    }

    /// Returns whether the archive is a file of this process (SQLite).
    pub fn is_embedded(&self) -> bool {
        self.inner.url.starts_with("sqlite:")
    }

    /// Creates or upgrades the tables. Any number of threads and processes may call it at once:
    /// PostgreSQL serializes them; SQLite may reject all processes but one.
    pub async fn migrate(&self) -> Result<(), Error> {
        let _turn = MIGRATION_LOCK.lock().await;
        let version = |number, name: &'static str, sql: &'static str| {
            // SQLite's rowid alias: a primary key without an index of its own.
            let sql = match self.is_embedded() {
                true => sql.replace("BIGINT NOT NULL PRIMARY KEY", "INTEGER PRIMARY KEY"),
                false => sql.to_owned(),
            };
            let sql = AssertSqlSafe(sql).into_sql_str();
            Migration::new(number, name.into(), MigrationType::Simple, sql, false)
        };
        let tables = version(1, "archive", include_str!("archive/migrations/0001_archive.sql"));
        let mut migrator = Migrator::with_migrations(vec![tables]);
        // A later version may have applied more migrations.
        migrator.set_ignore_missing(true);
        self.write("CREATE", async move {
            // A dedicated connection, which is always closed: it releases the migration lock.
            let pool = pool(&self.inner.url, 1, self.inner.timeout, WRITE_TIMEOUT)?;
            let done = migrator.run(&pool).await;
            pool.close().await;
            done.map_err(|error| sqlx::Error::Migrate(error.into()))
        })
        .await
    }

    // Executes a read for a call, through the circuit breaker. Metrics and traces name it by
    // `summary`.
    fn read<'a, T: Send + 'a>(
        &'a self,
        summary: &'static str,
        work: impl Future<Output = Result<T, sqlx::Error>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, Error>> {
        Box::pin(async move {
            let Inner { timeout, breaker, .. } = &*self.inner;
            breaker.check()?;
            let done = self.within(*timeout, summary, work).await;
            breaker.record(&done);
            done
        })
    }

    // Begins a write transaction, once the previous one has ended: two that lock the same rows in
    // different orders would deadlock. Only one or two jobs write, so waiting is cheap.
    async fn begin(&self) -> Result<Transaction<'static, Any>, sqlx::Error> {
        let mut transaction = self.inner.pools.writing.begin().await?;
        // SQLite serializes writers itself.
        if transaction.backend_name() != sql::SQLITE {
            let turn = format!("SELECT 1 FROM pg_advisory_xact_lock({WRITE_LOCK})");
            transaction.execute(AssertSqlSafe(turn)).await?;
        }
        Ok(transaction)
    }

    // Executes a write for a job, which probes the database itself, without the circuit breaker.
    fn write<'a, T: Send + 'a>(
        &'a self,
        summary: &'static str,
        work: impl Future<Output = Result<T, sqlx::Error>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, Error>> {
        self.within(WRITE_TIMEOUT, summary, work)
    }

    fn within<'a, T: Send + 'a>(
        &'a self,
        limit: Duration,
        summary: &'static str,
        work: impl Future<Output = Result<T, sqlx::Error>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, Error>> {
        Box::pin(async move {
            let operation = self.inner.operations.begin(summary);
            let done = tokio::time::timeout(limit, work).await;
            let done = done.map_err(|_| Error::timed_out()).and_then(|done| Ok(done?));
            operation.end(&done);
            done
        })
    }
}
