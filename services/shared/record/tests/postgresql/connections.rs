//! Connections to a PostgreSQL that does not answer, or has ended.

use std::time::Duration;

use microblog_testkit::{PATIENCE, PostgresServer, eventually};
use sqlx::Executor as _;
use tokio::time::timeout;

use crate::{open, open_with};

/// Otherwise a pool would be full of them until TCP gives up.
#[tokio::test]
async fn a_connection_that_does_not_answer_leaves_its_pool() {
    let server = PostgresServer::start().await;
    let database = open(&server);
    let mut reading = database.readers().begin().await.unwrap();
    let mut writing = database.begin().await.unwrap();
    server.pause();
    for connection in [&mut *reading, &mut *writing] {
        let given_up = timeout(Duration::from_millis(100), connection.execute("SELECT 1")).await;
        assert!(given_up.is_err(), "the server does not answer");
    }
    drop((reading, writing));
    for pool in [database.readers(), database.writers()] {
        eventually("the connection is closed", PATIENCE, async || pool.size() == 0).await;
    }
    server.resume();
    eventually("another one takes its place", PATIENCE, async || {
        database.writers().execute("SELECT 1").await.is_ok()
    })
    .await;
}

/// The driver would not end the transaction: it has not seen the answer.
#[tokio::test]
async fn a_begin_that_is_given_up_leaves_no_transaction() {
    let server = PostgresServer::start().await;
    let database = open(&server);
    let pools = [database.readers(), database.writers()];
    for pool in pools {
        pool.execute("SELECT 1").await.unwrap();
    }
    server.pause();
    for pool in pools {
        let given_up = timeout(Duration::from_millis(100), pool.begin()).await;
        assert!(given_up.is_err(), "the server does not answer");
    }
    server.resume();
    let left = "SELECT COUNT(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    eventually("no transaction is left", PATIENCE, async || server.sql(left) == "0").await;
    let log = server.log();
    assert!(!log.contains("idle-in-transaction timeout"), "it was left until the server ended it");
}

#[tokio::test]
async fn a_connection_that_has_ended_is_replaced_before_the_next_call() {
    const END: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let server = PostgresServer::start().await;
    let database = open(&server);
    for _ in 0..3 {
        let three = [(); 3].map(|()| database.writers().execute("SELECT pg_sleep(0.2)"));
        for done in futures::future::join_all(three).await {
            done.unwrap();
        }
        server.sql(END);
    }
    server.restart().await;
    database.writers().execute("SELECT 1").await.unwrap();
}

/// The caller has given up long before.
#[tokio::test]
async fn the_server_cancels_a_read_that_takes_longer_than_its_caller_waits() {
    let server = PostgresServer::start().await;
    let database = open_with(&["--database-url", &server.url()]);
    let cancelled = database.readers().execute("SELECT pg_sleep(60)").await.unwrap_err();
    let code = cancelled.as_database_error().and_then(|error| error.code());
    assert_eq!(code.as_deref(), Some("57014"), "{cancelled:?}");
}
