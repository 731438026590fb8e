//! The only part of the post service that speaks SQL: all posts of all time with their comments,
//! and what those have gathered that left Redis. SQLite or PostgreSQL, by its address; the same
//! statements and the same tables for both. Knows nothing of Redis, nor of when what is written
//! here.
//!
//! Whatever is written may be written again, and later than what follows it: rows of posts and
//! comments are added once and end once, and what has ended does not come back.

mod changes;
mod circuit_breaker;
mod comments;
mod config;
mod connections;
mod erasure;
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

pub use changes::{Changes, WriteTransaction};
pub use config::Config;
pub use error::{Error, OpenError};

use circuit_breaker::CircuitBreaker;
use connections::{Pools, pool};
use operation::Operations;

/// For one transaction of those that write, of which a post with a million likes is one.
const WRITE_TIMEOUT: Duration = Duration::from_secs(120);

/// The number of PostgreSQL's advisory lock that whoever writes holds: any that nobody else of the
/// same database uses.
const WRITE_LOCK: i64 = 0x6d_6963_726f_626c;

/// One thread of the process after the other.
static MIGRATION_LOCK: Mutex<()> = Mutex::const_new(());

/// The archive.
///
/// Cheap to clone. It belongs to the runtime that first uses it: each worker thread opens its own.
/// Connects lazily and recovers by itself; while the database is away, every call ends with
/// [`Error::Unavailable`] within the time-out, and at once where one has just met that.
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

impl Archive {
    /// Opens the archive, without waiting for it: it may be away now and come back later. `None`
    /// where none is configured.
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

    /// Returns whether it is a file of this process: it is there as long as its disk is.
    pub fn is_embedded(&self) -> bool {
        self.inner.url.starts_with("sqlite:")
    }

    /// Creates the tables, or brings them to this version. Any number of threads and processes may do
    /// so at once: PostgreSQL has them wait for each other; SQLite may refuse all processes but one,
    /// for that time.
    pub async fn migrate(&self) -> Result<(), Error> {
        let _turn = MIGRATION_LOCK.lock().await;
        let version = |number, name: &'static str, sql: &'static str| {
            // What SQLite calls the key that is a row's place, and not an index of its own.
            let sql = match self.is_embedded() {
                true => sql.replace("BIGINT NOT NULL PRIMARY KEY", "INTEGER PRIMARY KEY"),
                false => sql.to_owned(),
            };
            let sql = AssertSqlSafe(sql).into_sql_str();
            Migration::new(number, name.into(), MigrationType::Simple, sql, false)
        };
        let archive = version(1, "archive", include_str!("migrations/0001_archive.sql"));
        let erasure = version(2, "erasure", include_str!("migrations/0002_erasure.sql"));
        let mut migrator = Migrator::with_migrations(vec![archive, erasure]);
        // A later version may have made more of it already.
        migrator.set_ignore_missing(true);
        self.write("CREATE", async move {
            // A connection of its own, which is closed whatever happens: then nobody waits for it.
            let pool = pool(&self.inner.url, 1, self.inner.timeout, WRITE_TIMEOUT)?;
            let done = migrator.run(&pool).await;
            pool.close().await;
            done.map_err(|error| sqlx::Error::Migrate(error.into()))
        })
        .await
    }

    // Carries out a read, for a caller who waits; one that finds the database away tells the others.
    // In metrics and traces, it goes by its summary.
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

    // Begins a transaction that writes, once the one before it has ended. Two that touch the same rows
    // in different orders would wait for each other; and it is a job or two that write, not callers.
    async fn begin(&self) -> Result<Transaction<'static, Any>, sqlx::Error> {
        let mut transaction = self.inner.pools.writing.begin().await?;
        // SQLite has one write at a time by itself.
        if transaction.backend_name() != sql::SQLITE {
            let turn = format!("SELECT 1 FROM pg_advisory_xact_lock({WRITE_LOCK})");
            transaction.execute(AssertSqlSafe(turn)).await?;
        }
        Ok(transaction)
    }

    // Carries out a write, for a job: it finds out by itself whether the database is there.
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
