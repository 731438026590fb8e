//! Locks on PostgreSQL of a process that hangs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use clap::Parser as _;
use microblog_record::{Config, Database};
use microblog_testkit::{PATIENCE, PostgresServer, eventually};
use sqlx::Executor as _;

#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    database: Config,
}

#[tokio::test]
async fn a_transaction_that_hangs_does_not_keep_its_locks() {
    const LOCK: &str = "SELECT 1 FROM counts FOR UPDATE NOWAIT";
    let server = PostgresServer::start().await;
    server.sql("CREATE TABLE counts (id BIGINT PRIMARY KEY); INSERT INTO counts VALUES (1)");
    let flags = Flags::parse_from(["test", "--database-url", &server.url()]);
    let database = Database::open(&flags.database).unwrap().unwrap();
    let mut hanging = database.begin().await.unwrap();
    hanging.execute(LOCK).await.unwrap();
    assert!(database.writers().execute(LOCK).await.is_err(), "it is locked");
    eventually("the lock is free", PATIENCE, async || {
        database.writers().execute(LOCK).await.is_ok()
    })
    .await;
    assert!(hanging.execute(LOCK).await.is_err(), "the transaction has ended");
}
