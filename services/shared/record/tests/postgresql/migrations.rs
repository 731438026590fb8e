//! Migrations on PostgreSQL that take longer than a write may.

use std::{pin::pin, time::Duration};

use microblog_record::{Database, Migration};
use microblog_testkit::{PATIENCE, PostgresServer, eventually};
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::time::{self, timeout};

use crate::open;

/// The second one waits as long as a test holds a lock.
const MIGRATIONS: [Migration; 2] = [
    (
        1,
        "limits",
        "CREATE TABLE limits AS SELECT current_setting('statement_timeout') AS statement",
    ),
    (2, "slow", "SELECT pg_advisory_xact_lock(7); CREATE TABLE slow (id BIGINT)"),
];

/// Takes the lock that a migration waits for.
async fn lock(server: &PostgresServer) -> PgConnection {
    let mut connection = PgConnection::connect(&server.url()).await.unwrap();
    connection.execute("SELECT pg_advisory_lock(7)").await.unwrap();
    connection
}

/// Begins the migrations, and makes them wait for longer than a write may take. `meanwhile` is done when
/// they wait.
async fn migrate(server: &PostgresServer, database: &Database, meanwhile: impl FnOnce()) {
    const WAITING: &str = "SELECT COUNT(*) FROM pg_locks WHERE objid = 7 AND NOT granted";
    let mut migrating = pin!(database.migrate(&MIGRATIONS));
    tokio::select! {
        done = &mut migrating => panic!("the migration does not wait: {done:?}"),
        () = eventually("it waits", PATIENCE, async || server.sql(WAITING) == "1") => {}
    }
    meanwhile();
    time::pause();
    time::advance(Duration::from_secs(121)).await;
    time::resume();
    let done = timeout(PATIENCE, migrating).await.unwrap();
    assert!(done.is_err_and(|error| error.is_unavailable()), "the call does not wait any longer");
}

#[tokio::test]
async fn a_migration_goes_on_for_as_long_as_it_takes() {
    let server = PostgresServer::start().await;
    let (database, mut lock) = (open(&server), lock(&server).await);
    migrate(&server, &database, || {}).await;
    assert_eq!(server.sql("SELECT to_regclass('slow') IS NULL"), "t");
    lock.execute("SELECT pg_advisory_unlock(7)").await.unwrap();
    eventually("the migration is done", PATIENCE, async || {
        server.sql("SELECT to_regclass('slow') IS NOT NULL") == "t"
    })
    .await;
    assert_eq!(server.sql("SELECT statement FROM limits"), "0");
    database.migrate(&MIGRATIONS).await.unwrap();
}

#[tokio::test]
async fn a_migration_ends_when_the_database_goes_silent() {
    let server = PostgresServer::start().await;
    let (database, mut lock) = (open(&server), lock(&server).await);
    migrate(&server, &database, || server.pause()).await;
    // It ends, so the next one has its turn.
    let next = timeout(PATIENCE, database.migrate(&MIGRATIONS)).await.unwrap();
    assert!(next.is_err_and(|error| error.is_unavailable()));
    server.resume();
    lock.execute("SELECT pg_advisory_unlock(7)").await.unwrap();
    eventually("the migrations are done", PATIENCE, async || {
        database.migrate(&MIGRATIONS).await.is_ok()
    })
    .await;
}
