//! Transactions whose end is not known, and stores that are away.

use std::time::Duration;

use microblog_storage::WriteError;
use microblog_testkit::{Database as Server, RedisServer, Store, Topology};

use crate::lists::{Add, Process};

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

#[tokio::test]
async fn a_caller_that_goes_away_ends_nothing() {
    let server = Server::sqlite();
    let redis = Store::start(Topology::Single).await;
    let process = Process::start(&server, &redis).await;
    let writer = process.writer.clone();
    process.load(4).await;
    let call = tokio::spawn(async move { writer.write(Add { list: 4, member: 8 }).await });
    tokio::task::yield_now().await;
    call.abort();
    tokio::time::timeout(Duration::from_secs(60), async {
        while process.stored(4).await.1.is_empty() || process.cached(4).await.unwrap().0 == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
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
        let mut lock = process.database.begin().await.unwrap();
        let row = "SELECT id FROM lists WHERE id = 4 FOR UPDATE";
        sqlx::query(row).execute(&mut *lock).await.unwrap();
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
