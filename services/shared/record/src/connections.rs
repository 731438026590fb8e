//! Connection pools of a database, and their metrics, which follow OpenTelemetry's conventions
//! (<https://opentelemetry.io/docs/specs/semconv/db/database-metrics/>). Observed on each
//! collection.
//!
//! On PostgreSQL, each statement runs in a transaction, which begins with all settings that it needs:
//! a pooler may give the next transaction another connection to the server, so nothing is set for a
//! session. A transaction is of `READ WRITE`, which a standby refuses, also one that only reads.

use std::{
    io,
    sync::{
        Arc, Mutex, Once, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{
    TryFutureExt as _, TryStreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use opentelemetry::{KeyValue, global, metrics::AsyncInstrument};
use sqlx::{
    Any, AnyConnection, AnyPool, AssertSqlSafe, Connection as _, Either, Execute, Executor,
    SqlSafeStr as _, SqlStr, Transaction,
    any::{AnyPoolOptions, AnyQueryResult, AnyRow, AnyStatement, AnyTypeInfo},
    pool::PoolConnection,
};
use tokio::time::timeout;

use crate::{error, login::Login};

/// The connection pools of a database.
pub(crate) struct Pools {
    /// For calls: statements end within the read timeout.
    pub(crate) reading: Connections,
    /// For jobs, and for reads of a whole snapshot.
    pub(crate) writing: Connections,
}

impl Pools {
    /// Returns the pools of a database, each of up to `links` connections. Connects lazily.
    pub(crate) fn open(
        login: &Arc<Login>,
        links: u32,
        read_timeout: Duration,
        write_timeout: Duration,
    ) -> Result<Self, sqlx::Error> {
        let pool = |statements| Connections::open(login, links, read_timeout, statements);
        let reading = pool(Statements::Read(read_timeout))?;
        Ok(Self { reading, writing: pool(Statements::Write(write_timeout))? })
    }

    /// Replaces all connections before their next use.
    pub(crate) fn replace(&self) {
        self.reading.inner.replaced.set();
        self.writing.inner.replaced.set();
    }
}

/// What the statements of a pool do, and how long each may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Statements {
    /// They only read.
    Read(Duration),
    /// They read or write.
    Write(Duration),
    /// Migrations take as long as they take.
    Migrate,
}

/// How PostgreSQL plans the statements of a service: once for a connection, by keys, with a plan that is good
/// for tables of any size. What is off looks dear to it, so it is chosen only where nothing else is possible: a
/// sort of all rows, for example, instead of a few in the order of an index, while a partition has no statistics.
/// PostgreSQL also compiles what looks dear, which takes longer than these statements.
const BY_KEY: &str = "SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_seqscan = off; \
    SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_sort = off; \
    SET LOCAL jit = off; ";

/// A pool of connections to a database, for statements and transactions.
///
/// Cheap to clone. A statement that is executed here is a transaction of its own.
#[derive(Clone)]
pub struct Connections {
    inner: Arc<Inner>,
}

struct Inner {
    pool: AnyPool,
    login: Arc<Login>,
    /// How a transaction begins; `None` for SQLite.
    begin: Option<String>,
    /// Whether transactions end without COMMIT.
    only_reads: bool,
    replaced: Arc<Replaced>,
    /// Of the login, with which the pool connects.
    generation: AtomicU64,
}

/// When all connections were to be replaced: those that are older are closed.
#[derive(Default)]
struct Replaced(Mutex<Option<Instant>>);

impl Replaced {
    fn set(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn is_current(&self, age: Duration) -> bool {
        let replaced = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.is_none_or(|replaced| age < replaced.elapsed())
    }
}

// WAL: readers do not wait for the writer, and writers queue. FULL: commits survive a crash of the
// machine. Posts of many authors each change a page of the index: a cache of 16 MiB holds these,
// and a checkpoint follows every 64 MiB of changes. The rollback journal of a statement stays in
// memory: in a file it took a quarter of the time of an insert.
const PRAGMAS: [&str; 6] = [
    "journal_mode = WAL",
    "synchronous = FULL",
    "busy_timeout = 30000",
    "cache_size = -16384",
    "wal_autocheckpoint = 16384",
    "temp_store = MEMORY",
];

// A process that hangs, or that the network has cut off, must not keep its locks for longer: other
// processes wait for them. Longer than a pause between the statements of a transaction.
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(10);

// A server that answers at all answers a BEGIN, however busy it is. The connection counts until then: with as
// many of a server that has gone as there may be, the one that has taken over its address is not reached.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(10);

// PostgreSQL answers a rollback at once, unless its host is gone. A statement that takes longer runs on
// without its connection.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

impl Connections {
    /// Returns a pool. Connects lazily.
    pub(crate) fn open(
        login: &Arc<Login>,
        links: u32,
        timeout: Duration,
        statements: Statements,
    ) -> Result<Self, sqlx::Error> {
        let replaced = Arc::new(Replaced::default());
        let [acquired, released] = [(); 2].map(|()| replaced.clone());
        let options = AnyPoolOptions::new()
            .max_connections(links)
            .acquire_timeout(timeout)
            .after_release(move |connection, meta| {
                let is_current = released.is_current(meta.age);
                Box::pin(async move { Ok(is_current && answer(connection).await?) })
            });
        let options = match login.is_embedded() {
            true => options.after_connect(|connection, _| Box::pin(prepare(connection))),
            // BEGIN shows whether the connection answers.
            false => options.test_before_acquire(false).before_acquire(move |_, meta| {
                let is_current = acquired.is_current(meta.age);
                Box::pin(async move { Ok(is_current) })
            }),
        };
        let generation = AtomicU64::new(login.generation());
        let pool = options.connect_lazy_with(login.options()?);
        let inner = Inner {
            pool,
            login: login.clone(),
            begin: (!login.is_embedded()).then(|| begin(statements)),
            only_reads: matches!(statements, Statements::Read(_)),
            replaced,
            generation,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Begins a transaction. SQLite has one that writes at a time, and begins it here: one that has read
    /// before its first write could not wait for another writer.
    pub async fn begin(&self) -> Result<Transaction<'static, Any>, sqlx::Error> {
        self.begin_with("").await
    }

    /// Begins a transaction with further settings for PostgreSQL, each behind a semicolon.
    pub async fn begin_with(
        &self,
        settings: &str,
    ) -> Result<Transaction<'static, Any>, sqlx::Error> {
        let inner = &*self.inner;
        let Some(begin) = &inner.begin else {
            return inner.pool.begin_with("BEGIN IMMEDIATE").await;
        };
        let begin = AssertSqlSafe(format!("{begin}{settings}")).into_sql_str();
        let error = match inner.try_begin(begin.clone()).await? {
            Ok(transaction) => return Ok(transaction),
            Err(error) => error,
        };
        // A connection may have ended since its last use, and its server may be a standby by now. So may
        // the others. A connection that has begun, and failed then, would stay in its transaction.
        tracing::debug!(%error, "connections to the database replaced");
        inner.replaced.set();
        inner.try_begin(begin).await?.map_err(|error| {
            inner.replaced.set();
            error::of_begin(error)
        })
    }

    /// Returns how many connections there are.
    pub fn size(&self) -> u32 {
        self.inner.pool.size()
    }

    /// Closes all connections.
    pub(crate) async fn close(&self) {
        self.inner.pool.close().await;
    }
}

impl Inner {
    // The outer error is one of connecting.
    async fn try_begin(
        &self,
        begin: SqlStr,
    ) -> Result<Result<Transaction<'static, Any>, sqlx::Error>, sqlx::Error> {
        let connection = self.acquire().await?;
        // A task, since a BEGIN that is given up would leave its connection in the transaction: the driver
        // counts a transaction when its BEGIN is answered. One that is not answered in time is given up with
        // its connection, which the pool closes since it is replaced.
        let replaced = self.replaced.clone();
        let begun = tokio::spawn(async move {
            let mut begun = Box::pin(Transaction::begin(connection, Some(begin)));
            match timeout(BEGIN_TIMEOUT, &mut begun).await {
                Ok(begun) => begun,
                Err(_elapsed) => {
                    replaced.set();
                    Err(sqlx::Error::PoolTimedOut)
                }
            }
        });
        begun.await.map_err(|ended| sqlx::Error::Io(ended.into()))
    }

    // Connects once more with a password that has changed.
    async fn acquire(&self) -> Result<PoolConnection<Any>, sqlx::Error> {
        self.use_password()?;
        match self.pool.acquire().await {
            Err(error) => {
                self.login.check_now();
                if self.use_password()? { self.pool.acquire().await } else { Err(error) }
            }
            acquired => acquired,
        }
    }

    // Makes the pool connect with the password that the file has. Returns whether it has changed.
    fn use_password(&self) -> Result<bool, sqlx::Error> {
        let generation = self.login.generation();
        if self.generation.swap(generation, Ordering::Relaxed) == generation {
            return Ok(false);
        }
        self.pool.set_connect_options(self.login.options()?);
        Ok(true)
    }

    async fn end(&self, transaction: Transaction<'static, Any>) -> Result<(), sqlx::Error> {
        if self.only_reads {
            // The pool rolls it back, and the caller does not wait for that.
            drop(transaction);
            return Ok(());
        }
        transaction.commit().await
    }
}

/// Returns how a transaction of PostgreSQL begins. What a role or a server has as its defaults does not
/// hold in it. PostgreSQL cancels statements that outlive their callers. A commit is durable on the primary at
/// least, and where the server has more, such as `remote_apply`, that stays. PostgreSQL knows
/// `transaction_timeout` from version 17 on.
fn begin(statements: Statements) -> String {
    let limit = match statements {
        Statements::Read(limit) | Statements::Write(limit) => limit,
        Statements::Migrate => Duration::ZERO,
    };
    let synchronous_commit = match statements {
        Statements::Read(_) => "",
        Statements::Write(_) | Statements::Migrate => {
            ", CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') \
             THEN set_config('synchronous_commit', 'on', true) END"
        }
    };
    let plans = match statements {
        Statements::Read(_) | Statements::Write(_) => BY_KEY,
        Statements::Migrate => "",
    };
    // A standby has refused by then.
    let only_reads = match statements {
        Statements::Read(_) => "; SET TRANSACTION READ ONLY",
        Statements::Write(_) | Statements::Migrate => "",
    };
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = {}; \
         SET LOCAL idle_in_transaction_session_timeout = {}; SET LOCAL lock_timeout = 0; \
         {plans}SELECT CASE WHEN current_setting('transaction_timeout', true) <> '0' \
         THEN set_config('transaction_timeout', '0', true) END{synchronous_commit}{only_reads}",
        limit.as_millis(),
        IDLE_IN_TRANSACTION.as_millis(),
    )
}

type Step = Either<AnyQueryResult, AnyRow>;

impl<'c> Executor<'c> for &'_ Connections {
    type Database = Any;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Step, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Any>,
    {
        let inner = self.inner.clone();
        let steps = async move {
            if inner.begin.is_none() {
                return inner.pool.fetch_many(query).try_collect::<Vec<_>>().await;
            }
            let mut transaction = Connections { inner: inner.clone() }.begin().await?;
            let steps = transaction.fetch_many(query).try_collect::<Vec<_>>().await?;
            inner.end(transaction).await?;
            Ok(steps)
        };
        let steps = steps.map_ok(|steps| stream::iter(steps.into_iter().map(Ok)));
        Box::pin(steps.try_flatten_stream())
    }

    fn fetch_optional<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxFuture<'e, Result<Option<AnyRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Any>,
    {
        let inner = self.inner.clone();
        Box::pin(async move {
            if inner.begin.is_none() {
                return inner.pool.fetch_optional(query).await;
            }
            let mut transaction = Connections { inner: inner.clone() }.begin().await?;
            let row = transaction.fetch_optional(query).await?;
            inner.end(transaction).await?;
            Ok(row)
        })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [AnyTypeInfo],
    ) -> BoxFuture<'e, Result<AnyStatement, sqlx::Error>>
    where
        'c: 'e,
    {
        (&self.inner.pool).prepare_with(sql, parameters)
    }
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Connections").field("size", &self.size()).finish_non_exhaustive()
    }
}

async fn prepare(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    for setting in PRAGMAS {
        let pragma = AssertSqlSafe(format!("PRAGMA {setting}"));
        connection.execute(pragma).await?;
    }
    Ok(())
}

// What a released connection still has to answer: a read or a commit that its caller gave up, and the
// rollback of a transaction. Without any, there is no round trip. The pool closes a connection that does
// not answer; its own check would wait until TCP gives up, and until then no other could take its place.
async fn answer(connection: &mut AnyConnection) -> Result<bool, sqlx::Error> {
    match timeout(RELEASE_TIMEOUT, connection.flush()).await {
        Ok(answered) => answered.map(|()| true),
        Err(_elapsed) => Err(sqlx::Error::Io(io::ErrorKind::TimedOut.into())),
    }
}
/// The pools of all workers of the process; their metrics are summed.
static POOLS: Mutex<Vec<Weak<Pools>>> = Mutex::new(Vec::new());

static OBSERVED: Once = Once::new();

/// Includes the pools in the metrics until they are dropped.
pub(crate) fn observe(pools: &Arc<Pools>) {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(pools));
    OBSERVED.call_once(|| {
        global::meter("microblog-record")
            .i64_observable_up_down_counter("db.client.connection.count")
            .with_unit("{connection}")
            .with_description("Connections to a store that there are")
            .with_callback(count)
            .build();
    });
}

fn count(observer: &dyn AsyncInstrument<i64>) {
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    pools.retain(|pools| pools.strong_count() > 0);
    let open: Vec<_> = pools.iter().filter_map(Weak::upgrade).collect();
    drop(pools);
    count_of(observer, "database reading", open.iter().map(|pools| &pools.reading));
    count_of(observer, "database writing", open.iter().map(|pools| &pools.writing));
}

fn count_of<'a>(
    observer: &dyn AsyncInstrument<i64>,
    name: &'static str,
    pools: impl Iterator<Item = &'a Connections>,
) {
    let (mut idle, mut used) = (0, 0);
    for pool in pools {
        let (all, resting) = (i64::from(pool.size()), pool.inner.pool.num_idle() as i64);
        idle += resting;
        // The two values are not read atomically.
        used += (all - resting).max(0);
    }
    for (state, count) in [("idle", idle), ("used", used)] {
        let attributes = [
            KeyValue::new("db.client.connection.pool.name", name),
            KeyValue::new("db.client.connection.state", state),
        ];
        observer.observe(count, &attributes);
    }
}
