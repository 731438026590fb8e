//! Locks on PostgreSQL of a process that hangs.

use microblog_testkit::{PATIENCE, PostgresServer, eventually};
use sqlx::Executor as _;

use crate::open;

#[tokio::test]
async fn a_transaction_that_hangs_does_not_keep_its_locks() {
    const LOCK: &str = "SELECT 1 FROM counts FOR UPDATE NOWAIT";
    let server = PostgresServer::start().await;
    server.sql("CREATE TABLE counts (id BIGINT PRIMARY KEY); INSERT INTO counts VALUES (1)");
    let database = open(&server);
    let mut hanging = database.begin().await.unwrap();
    hanging.execute(LOCK).await.unwrap();
    assert!(database.writers().execute(LOCK).await.is_err(), "it is locked");
    eventually("the lock is free", PATIENCE, async || {
        database.writers().execute(LOCK).await.is_ok()
    })
    .await;
    assert!(hanging.execute(LOCK).await.is_err(), "the transaction has ended");
}
