//! A database: its pools, its circuit breaker, its migrations, and its operations.

use std::{future, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use sqlx::{
    Any, AssertSqlSafe, Executor as _, SqlSafeStr as _, Transaction,
    migrate::{self, MigrationType, Migrator},
};
use tokio::{
    sync::{Mutex, OnceCell},
    time::{Instant, sleep, timeout},
};

use crate::{
    Config, Error, OpenError,
    circuit_breaker::CircuitBreaker,
    connections::{self, Connections, Pools, Statements},
    login::Login,
    operation::{Operation, Operations},
    start_check,
};

/// The timeout of a write transaction, and of a job's.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(120);

/// The timeout of the check of a database. Longer than that of a read, so that one that is slow is not
/// taken for unavailable. A connection that cannot be made takes no longer than for a read.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// Serializes the migrations of all processes with PostgreSQL. Until the end of the transaction: a lock of
/// the session, as sqlx takes it, stays with a connection that a pooler gives to another client.
const LOCK_MIGRATIONS: &str = "SELECT pg_advisory_xact_lock(7883959205588559725)";

/// How often PostgreSQL is asked during a migration whether it still answers.
const PROBE_PERIOD: Duration = Duration::from_secs(5);

/// Serializes the migrations of the process's threads.
static MIGRATION_LOCK: Mutex<()> = Mutex::const_new(());

/// A change of the tables: its number, its name and its statements, in the SQL that SQLite and
/// PostgreSQL share. For SQLite, a primary key of one BIGINT becomes an INTEGER. For PostgreSQL, what
/// follows `-- postgresql: ` in a line is part of the statement.
pub type Migration = (i64, &'static str, &'static str);

/// A database transaction.
pub type WriteTransaction = Transaction<'static, Any>;

/// A database.
///
/// Cheap to clone. Belongs to the runtime that first uses it: each worker thread opens its own.
/// Connects lazily and reconnects. While the database is unavailable, every operation fails with
/// [`Error::Unavailable`] within the timeout, or at once while the circuit breaker is open.
#[derive(Clone)]
pub struct Database {
    inner: Arc<Inner>,
}

struct Inner {
    login: Arc<Login>,
    pools: Arc<Pools>,
    /// Initialized once PostgreSQL has passed the check.
    checked: OnceCell<()>,
    timeout: Duration,
    breaker: CircuitBreaker,
    operations: Operations,
    change_feed_retention: Duration,
}

impl Database {
    /// Opens the database of a service. Connects lazily: it may be unavailable. [`Self::check`] follows
    /// before the service serves. Statements find rows by their keys: PostgreSQL plans each once for a
    /// connection, and joins by keys alone.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        let login = Arc::new(config.login()?);
        sqlx::any::install_default_drivers();
        let timeout = Duration::from_millis(config.database_timeout_ms);
        let pools = Pools::open(&login, config.database_connections, timeout, WRITE_TIMEOUT)
            .map_err(OpenError::Address)?;
        let pools = Arc::new(pools);
        connections::observe(&pools);
        let (breaker, operations) = (CircuitBreaker::new(timeout), Operations::new(login.url()));
        let change_feed_retention = Duration::from_secs(u64::from(config.change_feed_hours) * 3600);
        let checked = OnceCell::new();
        let inner =
            Inner { login, pools, checked, timeout, breaker, operations, change_feed_retention };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Checks, once, that a service can use the database: the encoding, that a second connection waits
    /// for a lock, that a statement sees what was committed before it, and that the role may write.
    pub async fn check(&self) -> Result<(), Error> {
        let check = async || {
            if self.is_embedded() {
                return Ok(());
            }
            let check = start_check::check(self);
            Ok(self.within(CHECK_TIMEOUT, "CHECK", check).await??)
        };
        self.inner.checked.get_or_try_init(check).await.copied()
    }

    /// Checks the database before its service serves. Succeeds if it is unavailable: the check is made
    /// before the migrations then.
    pub async fn check_at_start(&self) -> Result<(), OpenError> {
        match self.check().await {
            Ok(()) => Ok(()),
            Err(Error::Unusable(reason)) => Err(reason.into()),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "database unavailable at start");
                Ok(())
            }
        }
    }

    /// Returns how long the change feed keeps changes.
    pub fn change_feed_retention(&self) -> Duration {
        self.inner.change_feed_retention
    }

    /// Returns the URL, without the password of a file.
    pub fn url(&self) -> &str {
        self.inner.login.url()
    }

    /// Returns whether the database is a file of this process (SQLite).
    pub fn is_embedded(&self) -> bool {
        self.inner.login.is_embedded()
    }

    /// Returns the connections for the reads of calls, which cannot write.
    pub fn readers(&self) -> &Connections {
        &self.inner.pools.reading
    }

    /// Returns the connections for writes, and for long reads.
    pub fn writers(&self) -> &Connections {
        &self.inner.pools.writing
    }

    /// Creates or upgrades the tables. Any number of threads and processes may call it at
    /// once: the database serializes them. Fails if another version has applied other ones, or if the
    /// database does not pass [`Self::check`]. A migration may take longer than a write, as for an index of a big
    /// table: the call then fails, and the migration goes on.
    pub async fn migrate(&self, migrations: &[Migration]) -> Result<(), Error> {
        let migration = |&(number, name, statements): &Migration| {
            // SQLite's rowid alias: a primary key without an index of its own.
            let statements = match self.is_embedded() {
                true => statements.replace("BIGINT NOT NULL PRIMARY KEY", "INTEGER PRIMARY KEY"),
                false => statements.replace("-- postgresql: ", ""),
            };
            let statements = AssertSqlSafe(statements).into_sql_str();
            migrate::Migration::new(number, name.into(), MigrationType::Simple, statements, false)
        };
        self.check().await?;
        let mut migrator = Migrator::with_migrations(migrations.iter().map(migration).collect());
        migrator.set_locking(false);
        let database = self.clone();
        self.write("CREATE", async move {
            let turn = MIGRATION_LOCK.lock().await;
            let migrating = tokio::spawn(async move {
                let _turn = turn;
                database.apply(migrator).await
            });
            migrating.await.unwrap_or_else(|ended| Err(sqlx::Error::Io(ended.into())))
        })
        .await
    }

    async fn apply(&self, migrator: Migrator) -> Result<(), sqlx::Error> {
        // A connection without a limit on the time of a statement.
        let links = 1;
        let timeout = self.inner.timeout;
        let connections =
            Connections::open(&self.inner.login, links, timeout, Statements::Migrate)?;
        // Each in a transaction of its own: the locks of one must not last for the time of the others.
        let run = async {
            for number in migrator.iter().map(|migration| migration.version) {
                let mut transaction = connections.begin().await?;
                if !self.is_embedded() {
                    transaction.execute(LOCK_MIGRATIONS).await?;
                }
                let done = migrator.run_direct(Some(number), &mut *transaction, false).await;
                done.map_err(|error| sqlx::Error::Migrate(error.into()))?;
                transaction.commit().await?;
            }
            Ok(())
        };
        let done = tokio::select! {
            done = run => done,
            () = self.until_silent() => Err(sqlx::Error::PoolTimedOut),
        };
        connections.close().await;
        done
    }

    // Completes when PostgreSQL has not answered for the timeout of a write: a migration, which has no
    // timeout, would wait for ever.
    async fn until_silent(&self) {
        if self.is_embedded() {
            return future::pending().await;
        }
        let mut answered = Instant::now();
        while answered.elapsed() < WRITE_TIMEOUT {
            sleep(PROBE_PERIOD).await;
            let probe = sqlx::query("SELECT 1").execute(self.writers());
            if timeout(self.inner.timeout, probe).await.is_ok_and(|done| done.is_ok()) {
                answered = Instant::now();
            }
        }
    }

    /// Executes a read for a call, through the circuit breaker. Metrics and traces name it by
    /// `summary`.
    pub fn read<'a, T: Send + 'a>(
        &'a self,
        summary: &'static str,
        work: impl Future<Output = Result<T, sqlx::Error>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, Error>> {
        Box::pin(async move {
            self.inner.breaker.check()?;
            let done = self.within(self.inner.timeout, summary, work).await;
            self.inner.breaker.record(&done);
            done
        })
    }

    /// Executes a write for a job, which probes the database itself, without the circuit breaker.
    pub fn write<'a, T: Send + 'a>(
        &'a self,
        summary: &'static str,
        work: impl Future<Output = Result<T, sqlx::Error>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, Error>> {
        self.within(WRITE_TIMEOUT, summary, work)
    }

    /// Begins to measure an operation that is several statements, such as a transaction. Metrics and traces
    /// name it by `summary`.
    pub fn operation(&self, summary: &'static str) -> Operation<'_> {
        self.inner.operations.begin(summary)
    }

    /// Begins a write transaction, at READ COMMITTED. SQLite has one at a time.
    pub async fn begin(&self) -> Result<WriteTransaction, sqlx::Error> {
        self.writers().begin().await
    }

    // No connection stays at a server that only reads: the address of the database may be another one's
    // by now.
    fn note(&self, error: Option<&Error>) {
        if error.is_some_and(Error::is_read_only) {
            self.inner.pools.replace();
        }
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
            self.note(done.as_ref().err());
            operation.end(done.as_ref().err().map(Into::into));
            done
        })
    }
}
