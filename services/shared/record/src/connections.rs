//! Connection pools of a database, and their metrics, which follow OpenTelemetry's conventions
//! (<https://opentelemetry.io/docs/specs/semconv/db/database-metrics/>). Observed on each
//! collection.

use std::{
    io,
    sync::{Arc, Mutex, Once, PoisonError, Weak},
    time::Duration,
};

use opentelemetry::{KeyValue, global, metrics::AsyncInstrument};
use sqlx::{
    AnyConnection, AnyPool, AssertSqlSafe, Connection as _, Executor as _, any::AnyPoolOptions,
};
use tokio::time::timeout;

use crate::sql;

/// The connection pools of a database.
pub(crate) struct Pools {
    /// For calls: statements end within the read timeout.
    pub(crate) reading: AnyPool,
    /// For jobs, and for reads of a whole snapshot.
    pub(crate) writing: AnyPool,
}

impl Pools {
    /// Returns the pools of a database, each of up to `links` connections. Connects lazily.
    pub(crate) fn open(
        url: &str,
        links: u32,
        read_timeout: Duration,
        write_timeout: Duration,
    ) -> Result<Self, sqlx::Error> {
        let reading = pool(url, links, read_timeout, Some(read_timeout))?;
        Ok(Self { reading, writing: pool(url, links, read_timeout, Some(write_timeout))? })
    }
}

// Returns a pool whose statements end within `limit`, if there is one.
pub(crate) fn pool(
    url: &str,
    links: u32,
    timeout: Duration,
    limit: Option<Duration>,
) -> Result<AnyPool, sqlx::Error> {
    AnyPoolOptions::new()
        .max_connections(links)
        .acquire_timeout(timeout)
        .after_connect(move |connection, _| Box::pin(prepare(connection, limit)))
        .after_release(|connection, _| Box::pin(answer(connection)))
        .connect_lazy(url)
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

// PostgreSQL answers a rollback at once, unless its host is gone. A statement that takes longer runs on
// without its connection.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

// PostgreSQL cancels statements that outlive their callers. It plans each execution: the plan that it
// keeps for a repeated statement is for the size that its tables had. The first recording fills empty
// tables, and read whole ones for each batch.
async fn prepare(
    connection: &mut AnyConnection,
    limit: Option<Duration>,
) -> Result<(), sqlx::Error> {
    if connection.backend_name() == sql::SQLITE {
        for setting in PRAGMAS {
            let pragma = AssertSqlSafe(format!("PRAGMA {setting}"));
            connection.execute(pragma).await?;
        }
        return Ok(());
    }
    let statements = format!(
        "SET statement_timeout = {}; SET idle_in_transaction_session_timeout = {}; \
         SET plan_cache_mode = force_custom_plan",
        limit.unwrap_or_default().as_millis(),
        IDLE_IN_TRANSACTION.as_millis()
    );
    connection.execute(AssertSqlSafe(statements)).await?;
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
    pools: impl Iterator<Item = &'a AnyPool>,
) {
    let (mut idle, mut used) = (0, 0);
    for pool in pools {
        let (all, resting) = (i64::from(pool.size()), pool.num_idle() as i64);
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
