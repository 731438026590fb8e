//! Recorders and recoveries that wait for PostgreSQL: for the lock of another transaction, or for a
//! server that does not answer.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use microblog_domain::Partition;
use microblog_keyspace::{Change, redis};
use microblog_record::RecordError;
use microblog_testkit::{PATIENCE, PostgresServer, eventually};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tokio::{
    sync::Notify,
    time::{self, timeout},
};

use crate::{JOURNALS, Setup, key};

/// Longer than a step of a recorder waits for locks, and shorter than a write may take.
const BOUND: Duration = Duration::from_secs(30);

/// A server that goes silent.
pub(crate) struct SilentServer {
    server: PostgresServer,
    is_due: AtomicBool,
    is_silent: Notify,
}

impl SilentServer {
    /// Makes the server go silent if that is due. Returns whether it was.
    pub(crate) fn is_due(&self) -> bool {
        let is_due = self.is_due.swap(false, Ordering::Relaxed);
        if is_due {
            self.server.pause();
            self.is_silent.notify_one();
        }
        is_due
    }
}

/// Locks the position of a partition, as a recovery does. Unlike a connection of a pool, this one may
/// be idle for long.
async fn lock(postgres: &PostgresServer, partition: Partition) -> PgConnection {
    let mut connection = PgConnection::connect(&postgres.url()).await.unwrap();
    let lock =
        format!("BEGIN; SELECT 1 FROM journal_positions WHERE partition = {partition} FOR UPDATE");
    connection.execute(AssertSqlSafe(lock)).await.unwrap();
    connection
}

/// Loses the journal of a partition.
async fn lose(setup: &Setup, partition: Partition) {
    let mut admin = setup.redis.admin().await;
    let () = redis::cmd("DEL").arg(key(partition)).query_async(&mut admin).await.unwrap();
}

#[tokio::test]
async fn a_partition_that_another_transaction_has_locked_does_not_stop_the_others() {
    let postgres = PostgresServer::start().await;
    let setup = Setup::with(postgres.url()).await;
    setup.recorder(|_| {}).run().await.unwrap();
    let partitions = [1, 2, 3].map(Partition::new);
    let keyspace = setup.keyspace();
    for partition in partitions {
        let change = Change { version: "1-1".parse().unwrap(), text: "change".to_owned() };
        assert!(JOURNALS.append(&keyspace, partition, &change).await.unwrap());
    }
    let recorded = || {
        postgres.sql(
            "SELECT partition FROM journal_positions WHERE entry = 'change' ORDER BY partition",
        )
    };
    let mut recovery = lock(&postgres, partitions[1]).await;

    // Of a process that has just started.
    let keyspace = setup.keyspace();
    let recorder = setup.recorder_of(keyspace.clone(), |_| {});
    let done = timeout(BOUND, recorder.run()).await.expect("a step does not wait for long");
    assert!(
        matches!(&done, Err(RecordError::Database(error)) if !error.is_unavailable()),
        "{done:?}"
    );
    assert_eq!(recorded(), "1\n3");
    let read = redis::cmd("GET").arg("post:{1}:writer").take();
    keyspace.query::<Option<String>>(read).await.expect("the process serves");

    recovery.execute("ROLLBACK").await.unwrap();
    recorder.run().await.unwrap();
    assert_eq!(recorded(), "1\n2\n3");
}

#[tokio::test]
async fn a_recovery_waits_for_the_lock_of_its_partition() {
    const WAITING: &str = "SELECT COUNT(*) FROM pg_stat_activity \
        WHERE wait_event_type = 'Lock' AND now() - query_start > interval '3 seconds'";
    let postgres = PostgresServer::start().await;
    let setup = Setup::with(postgres.url()).await;
    let (keyspace, partition) = (setup.keyspace(), Partition::new(1));
    let recorder = setup.recorder_of(keyspace.clone(), |_| {});
    recorder.run().await.unwrap();
    lose(&setup, partition).await;
    recorder.run().await.unwrap();
    assert!(keyspace.states().is_closed(partition));

    let mut other = lock(&postgres, partition).await;
    let release = async {
        let waits = async || postgres.sql(WAITING) == "1";
        eventually("the recovery waits longer than a step does", PATIENCE, waits).await;
        other.execute("ROLLBACK").await.unwrap();
    };
    let (recovered, ()) = tokio::join!(recorder.recover_lost(), release);
    recovered.unwrap();
    assert!(!keyspace.states().is_closed(partition));
}

#[tokio::test]
async fn a_recovery_ends_when_the_database_goes_silent() {
    let server = PostgresServer::start().await;
    let setup = Setup::with(server.url()).await;
    let (is_due, is_silent) = (AtomicBool::new(false), Notify::new());
    let silent = Arc::new(SilentServer { server, is_due, is_silent });
    let (keyspace, partition) = (setup.keyspace(), Partition::new(1));
    let recorder =
        setup.recorder_of(keyspace.clone(), |tables| tables.silent = Some(silent.clone()));
    recorder.run().await.unwrap();
    lose(&setup, partition).await;
    recorder.run().await.unwrap();
    assert!(keyspace.states().is_closed(partition));

    silent.is_due.store(true, Ordering::Relaxed);
    let mut recovery = pin!(recorder.recover_lost());
    tokio::select! {
        done = &mut recovery => panic!("the server does not answer: {done:?}"),
        () = silent.is_silent.notified() => {}
    }
    time::pause();
    time::advance(Duration::from_secs(121)).await;
    time::resume();
    let done = timeout(PATIENCE, recovery).await.expect("the recovery ends");
    assert!(
        matches!(&done, Err(RecordError::Database(error)) if error.is_unavailable()),
        "{done:?}"
    );
    silent.server.resume();
    eventually("the partition is recovered", PATIENCE, async || {
        recorder.recover_lost().await.is_ok()
    })
    .await;
    assert!(!keyspace.states().is_closed(partition));
}
