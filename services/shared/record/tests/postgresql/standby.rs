//! A switchover: the old primary comes back as a standby behind the same address, which moves later.

use std::{collections::BTreeSet, time::Duration};

use microblog_record::Database;
use microblog_testkit::{PATIENCE, PostgresServer, Proxy, eventually};
use sqlx::{Executor as _, Row as _};
use tokio::time::timeout;

use crate::open_url;

/// The time within which calls go on after the address has moved: much less than the half hour for which
/// the pool keeps a connection.
const SECONDS: Duration = Duration::from_secs(10);

/// A standby, its primary, and connections to the standby behind an address.
async fn at_a_standby() -> (PostgresServer, PostgresServer, Proxy, Database) {
    let primary = PostgresServer::start_primary().await;
    primary.sql("CREATE TABLE numbers (id BIGINT)");
    let standby = primary.start_standby().await;
    let proxy = Proxy::start(primary.port()).await;
    let database = open_url(&format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port()));
    write(&database).await.unwrap();
    // The primary stops, and is a standby when it starts again: its connections have ended.
    primary.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
    );
    proxy.move_to(standby.port());
    (primary, standby, proxy, database)
}

async fn write(database: &Database) -> Result<(), microblog_record::Error> {
    let insert = async {
        let mut transaction = database.begin().await?;
        transaction.execute("INSERT INTO numbers VALUES (1)").await?;
        transaction.commit().await
    };
    database.write("INSERT numbers", insert).await
}

async fn is_read_from_a_standby(database: &Database) -> Result<bool, microblog_record::Error> {
    let read = async {
        let row = database.readers().fetch_one("SELECT pg_is_in_recovery()").await?;
        row.try_get(0)
    };
    // Without the circuit breaker, which would let the next ones fail.
    database.write("SELECT", read).await
}

#[tokio::test]
async fn writes_go_on_soon_after_the_address_has_moved_from_a_standby() {
    let (primary, _standby, proxy, database) = at_a_standby().await;
    // Each connection of the pool is at the standby.
    for _ in 0..10 {
        let (one, other) = tokio::join!(write(&database), write(&database));
        assert!(one.is_err() && other.is_err(), "a standby accepts no writes");
    }
    proxy.move_to(primary.port());
    let written = timeout(SECONDS, async {
        eventually("a write succeeds", PATIENCE, async || write(&database).await.is_ok()).await;
    });
    written.await.expect("within seconds");
    for _ in 0..10 {
        let (one, other) = tokio::join!(write(&database), write(&database));
        one.unwrap();
        other.unwrap();
    }
}

#[tokio::test]
async fn a_standby_answers_no_reads() {
    let (primary, _standby, proxy, database) = at_a_standby().await;
    for _ in 0..3 {
        let answer = is_read_from_a_standby(&database).await;
        assert!(answer.as_ref().is_err_and(|error| error.is_unavailable()), "{answer:?}");
    }
    proxy.move_to(primary.port());
    let read = timeout(SECONDS, async {
        eventually("a read succeeds", PATIENCE, async || {
            is_read_from_a_standby(&database).await.is_ok_and(|is_standby| !is_standby)
        })
        .await;
    });
    read.await.expect("within seconds");
}

/// A statement of a connection whose server has become a standby meanwhile, as behind a pooler.
#[tokio::test]
async fn connections_are_replaced_when_the_server_refuses_a_write() {
    let server = PostgresServer::start().await;
    let database = open_url(&server.url());
    let connections = || {
        let pids = server.sql(
            "SELECT pid FROM pg_stat_activity \
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        );
        pids.lines().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let use_both = async || {
        database.readers().execute("SELECT 1").await.unwrap();
        database.writers().execute("SELECT 1").await.unwrap();
    };
    use_both().await;
    let before = connections();
    let refused = async {
        let mut transaction = database.begin().await?;
        transaction.execute("SET TRANSACTION READ ONLY").await?;
        transaction.execute("CREATE TABLE numbers (id BIGINT)").await.map(|_| ())
    };
    let error = database.write("CREATE", refused).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    eventually("all connections are replaced", PATIENCE, async || {
        use_both().await;
        connections().is_disjoint(&before)
    })
    .await;
}
