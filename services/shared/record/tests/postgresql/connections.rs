//! Connections to a PostgreSQL that does not answer.

use std::time::Duration;

use microblog_testkit::{PATIENCE, PostgresServer, eventually};
use sqlx::Executor as _;
use tokio::time::timeout;

use crate::open;

/// Otherwise a pool would be full of them until TCP gives up.
#[tokio::test]
async fn a_connection_that_does_not_answer_leaves_its_pool() {
    let server = PostgresServer::start().await;
    let database = open(&server);
    let mut reading = database.readers().acquire().await.unwrap();
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
