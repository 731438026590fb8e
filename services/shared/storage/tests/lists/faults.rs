//! Transactions whose end is not known, and stores that are away.

use std::{task::Poll, time::Duration};

use futures::future::join_all;
use microblog_domain::Partition;
use microblog_storage::{Part, WriteError};
use microblog_testkit::{Database as Server, PATIENCE, RedisServer, Store, Topology, eventually};
use tokio::time::{Instant, sleep, timeout};

use crate::lists::{Add, ListItem, Members, Process};

#[tokio::test]
async fn a_commit_without_an_answer_removes_the_entries_and_may_be_repeated() {
    let server = Server::postgres().await;
    let redis = Store::start(Topology::Single).await;
    let process = Process::start(&server, &redis).await;
    assert!(process.writer.write(Add { list: 4, member: 8 }).await.unwrap());
    process.load(4).await;
    // A trigger that runs at the commit ends the connection.
    let trigger = "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS \
            $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$; \
        CREATE CONSTRAINT TRIGGER cut AFTER INSERT ON members DEFERRABLE INITIALLY DEFERRED \
            FOR EACH ROW WHEN (NEW.member = 99) EXECUTE FUNCTION cut()";
    sqlx::raw_sql(trigger).execute(process.database.writers()).await.unwrap();
    let cut = process.writer.write(Add { list: 4, member: 99 }).await;
    assert!(matches!(cut, Err(WriteError::Unknown(_))), "{cut:?}");
    assert_eq!(process.cached(4).await, None);
    let drop = "DROP TRIGGER cut ON members";
    sqlx::raw_sql(drop).execute(process.database.writers()).await.unwrap();
    assert!(process.writer.write(Add { list: 4, member: 99 }).await.unwrap());
}

/// Locks the row of list 4, which exists.
async fn lock(process: &Process) -> sqlx::Transaction<'static, sqlx::Any> {
    let mut lock = process.database.begin().await.unwrap();
    let row = "SELECT id FROM lists WHERE id = 4 FOR UPDATE";
    sqlx::query(row).execute(&mut *lock).await.unwrap();
    lock
}

/// Waits until so many transactions wait for a lock.
async fn wait_for_waiting(process: &Process, count: u64) {
    let waits = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    eventually("transactions wait for a lock", PATIENCE, async || {
        let row = sqlx::query(waits).fetch_one(process.database.readers()).await.unwrap();
        microblog_record::sql::read(&row, 0).unwrap() == count
    })
    .await;
}

#[tokio::test]
async fn a_caller_that_goes_away_does_not_end_its_group() {
    let server = Server::postgres().await;
    let redis = Store::start(Topology::Single).await;
    let process = Process::start(&server, &redis).await;
    process.writer.write(Add { list: 4, member: 8 }).await.unwrap();
    process.load(4).await;
    let lock = lock(&process).await;
    let writer = process.writer.clone();
    let call = tokio::spawn(async move { writer.write(Add { list: 4, member: 12 }).await });
    wait_for_waiting(&process, 1).await;
    call.abort();
    lock.rollback().await.unwrap();
    eventually("the call is committed and applied", PATIENCE, async || {
        process.stored(4).await.1.len() == 2 && process.cached(4).await.unwrap().1.len() == 2
    })
    .await;
}

/// What a caller has given up must not undo what was acknowledged later.
#[tokio::test]
async fn a_call_that_is_given_up_before_its_group_begins_is_not_written() {
    let server = Server::postgres().await;
    let redis = Store::start(Topology::Single).await;
    let process = Process::start(&server, &redis).await;
    process.writer.write(Add { list: 4, member: 8 }).await.unwrap();
    let lock = lock(&process).await;
    // Both groups of the worker.
    let mut groups = Vec::new();
    for (waiting, member) in [(1, 12), (2, 16)] {
        let writer = process.writer.clone();
        groups.push(tokio::spawn(async move { writer.write(Add { list: 4, member }).await }));
        wait_for_waiting(&process, waiting).await;
    }
    {
        let mut given_up = Box::pin(process.writer.write(Add { list: 20, member: 12 }));
        assert!(futures::poll!(&mut given_up).is_pending());
    }
    lock.rollback().await.unwrap();
    for group in groups {
        group.await.unwrap().unwrap();
    }
    process.writer.write(Add { list: 20, member: 16 }).await.unwrap();
    let (_, members) = process.stored(20).await;
    assert_eq!(members.iter().map(|member| member.id).collect::<Vec<_>>(), [16]);
}

#[tokio::test]
async fn a_silent_database_fails_calls_in_time() {
    let (server, redis) = (Server::postgres().await, Store::start(Topology::Single).await);
    let process = Process::start(&server, &redis).await;
    let add = async |member| process.writer.write(Add { list: 4, member }).await;
    add(8).await.unwrap();
    let Server::Postgres(postgres) = &server else { unreachable!("it is PostgreSQL") };
    postgres.pause();
    let all = join_all([12, 16, 20].map(add));
    for failed in timeout(PATIENCE, all).await.expect("no call waits for ever") {
        assert!(matches!(failed, Err(WriteError::Unavailable(_))), "{failed:?}");
    }
    postgres.resume();
    eventually("writes go on", PATIENCE, async || add(24).await.is_ok()).await;
    let (_, members) = process.stored(4).await;
    assert_eq!(members.iter().map(|member| member.id).collect::<Vec<_>>(), [8, 24]);
}

/// For longer than a mark is relied on that nobody keeps: it is silent, and then gone.
#[tokio::test]
async fn reads_go_on_while_the_database_is_away() {
    let (server, redis) = (Server::postgres().await, Store::start(Topology::Cluster).await);
    let process = Process::start(&server, &redis).await;
    process.writer.write(Add { list: 4, member: 8 }).await.unwrap();
    let verifier = tokio::spawn(process.verifier().run());
    process.trusted(4).await;
    process.load(4).await;
    let Server::Postgres(postgres) = &server else { unreachable!("it is PostgreSQL") };
    let reads_for = async |seconds| {
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until {
            assert_eq!(process.read(4).await, [8]);
            sleep(Duration::from_millis(50)).await;
        }
    };
    postgres.pause();
    reads_for(16).await;
    let miss = Part { item: ListItem, id: 8, view: Members };
    assert!(process.reader.read(&miss).await.is_err(), "what is not cached cannot be read");
    postgres.resume();
    postgres.kill();
    reads_for(5).await;
    postgres.restart().await;
    let add = async || process.writer.write(Add { list: 4, member: 12 }).await.is_ok();
    eventually("writes go on", PATIENCE, add).await;
    assert_eq!(process.read(4).await, [8, 12]);
    verifier.abort();
}

/// A process that does not know of the other history yet must not read on from the entries of this one.
#[tokio::test]
async fn a_write_in_another_history_ends_the_marks_of_the_last() {
    let (server, redis) = (Server::postgres().await, Store::start(Topology::Single).await);
    let (process, other) =
        (Process::start(&server, &redis).await, Process::start(&server, &redis).await);
    process.writer.write(Add { list: 4, member: 8 }).await.unwrap();
    process.verified(&mut process.verifier()).await;
    other.trusted(4).await;
    let marks = async || {
        let keys = microblog_keyspace::redis::cmd("KEYS").arg("rel:*:mark").take();
        let keys: Vec<String> =
            keys.query_async(&mut redis.nodes()[0].admin().await).await.unwrap();
        keys.len()
    };
    process.writer.write(Add { list: 4, member: 12 }).await.unwrap();
    assert_eq!(marks().await, 1, "of this history");
    let renew = "UPDATE history SET random = random + 1";
    sqlx::query(renew).execute(process.database.writers()).await.unwrap();
    process.writer.write(Add { list: 4, member: 16 }).await.unwrap();
    assert_eq!(marks().await, 0);
    eventually("the other process trusts no more", PATIENCE, async || {
        other.trust.of(Partition::of_id(4)).is_none()
    })
    .await;
    assert_eq!(other.read(4).await, [8, 12, 16]);
}

#[tokio::test]
async fn calls_beyond_those_that_may_wait_are_rejected() {
    let (server, redis) = (Server::sqlite(), Store::start(Topology::Single).await);
    let process = Process::start(&server, &redis).await;
    // No task runs between these polls.
    let calls = (0..5_000).map(|n| Box::pin(process.writer.write(Add { list: 4, member: 4 * n })));
    let (mut waiting, mut rejected) = (Vec::new(), 0);
    for mut call in calls {
        match futures::poll!(&mut call) {
            Poll::Pending => waiting.push(call),
            Poll::Ready(Err(WriteError::Overloaded)) => rejected += 1,
            Poll::Ready(other) => panic!("{other:?}"),
        }
    }
    assert_eq!((waiting.len(), rejected), (4_096, 904));
    drop(waiting);
    eventually("there is room again", PATIENCE, async || {
        process.writer.write(Add { list: 4, member: 1_000_000 }).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn writes_go_on_without_redis() {
    let (server, redis) = (Server::sqlite(), RedisServer::start().await);
    let redis = Store::Single(redis);
    let process = Process::start(&server, &redis).await;
    redis.nodes()[0].kill();
    assert!(process.writer.write(Add { list: 4, member: 8 }).await.unwrap());
    assert_eq!(process.stored(4).await.1.len(), 1);
}

#[tokio::test]
async fn a_database_that_is_away_fails_calls_and_writes_nothing() {
    let (server, redis) = (Server::postgres().await, Store::start(Topology::Single).await);
    let process = Process::start(&server, &redis).await;
    assert!(process.writer.write(Add { list: 4, member: 8 }).await.unwrap());
    let Server::Postgres(postgres) = &server else { unreachable!("it is PostgreSQL") };
    postgres.kill();
    let failed = process.writer.write(Add { list: 4, member: 12 }).await;
    assert!(matches!(failed, Err(WriteError::Unavailable(_))), "{failed:?}");
    postgres.restart().await;
    assert!(process.writer.write(Add { list: 4, member: 12 }).await.unwrap());
    assert_eq!(process.stored(4).await.1.len(), 2);
}

/// Returns PostgreSQL's code of a failed write.
fn code(failed: &Result<bool, WriteError>) -> Option<String> {
    let Err(WriteError::Unavailable(Some(error))) = failed else { return None };
    Some(error.as_database_error()?.code()?.into_owned())
}

#[tokio::test]
async fn a_transaction_of_a_history_that_was_renewed_fails() {
    let (server, redis) = (Server::postgres().await, Store::start(Topology::Single).await);
    let process = Process::start(&server, &redis).await;
    assert!(process.writer.write(Add { list: 4, member: 8 }).await.unwrap());
    let failed = loop {
        let lock = lock(&process).await;
        let writer = process.writer.clone();
        let call = tokio::spawn(async move { writer.write(Add { list: 4, member: 12 }).await });
        let waits = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let waiting = async || {
            let count = sqlx::query(waits).fetch_one(process.database.readers()).await.unwrap();
            microblog_record::sql::read(&count, 0).unwrap() > 0
        };
        while !waiting().await && !call.is_finished() {}
        let renew = "UPDATE history SET random = random + 1";
        sqlx::query(renew).execute(process.database.writers()).await.unwrap();
        lock.commit().await.unwrap();
        let failed = call.await.unwrap();
        // On a slow machine, the lock was not free in time.
        if code(&failed).as_deref() != Some("55P03") {
            break failed;
        }
    };
    assert_eq!(code(&failed).as_deref(), Some("40001"), "{failed:?}");
    assert_eq!(process.stored(4).await.1.len(), 1);
    assert!(process.writer.write(Add { list: 4, member: 12 }).await.unwrap());
}
