//! PgBouncer before the server, which gives each transaction another connection of its pool.

use futures::future::join_all;
use microblog_record::{Database, Migration};
use microblog_testkit::{PgBouncer, PoolMode, PostgresServer};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};
use tokio::task::JoinSet;

use crate::open_url;

const MIGRATIONS: [Migration; 2] = [
    (1, "numbers", "CREATE TABLE numbers (id BIGINT); SELECT pg_sleep(0.1)"),
    (2, "texts", "CREATE TABLE texts (text TEXT)"),
];

const MODES: [PoolMode; 2] = [PoolMode::Session, PoolMode::Transaction];

/// Writes and reads on many connections at once, with statements that are prepared.
async fn write_and_read(database: &Database, number: i64) {
    let work = async {
        let mut transaction =
            database.writers().begin_with("; SET LOCAL lock_timeout = '1500ms'").await?;
        for _ in 0..3 {
            let insert = sqlx::query("INSERT INTO numbers VALUES ($1)").bind(number);
            insert.execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
        let select = sqlx::query("SELECT COUNT(*) FROM numbers WHERE id = $1").bind(number);
        select.fetch_one(database.readers()).await?.try_get(0)
    };
    let count: i64 = database.write("INSERT numbers", work).await.unwrap();
    assert_eq!(count, 3);
}

/// Uses the connections of the pool in turns, as other clients do. Never ends.
async fn use_pool(url: String) {
    let mut connection = PgConnection::connect(&url).await.unwrap();
    loop {
        connection.execute("SELECT pg_sleep(0.001)").await.unwrap();
    }
}

#[tokio::test]
async fn processes_that_start_at_once_behind_a_pooler_all_migrate() {
    for mode in MODES {
        let server = PostgresServer::start().await;
        let pooler = PgBouncer::start(&server, mode).await;
        let databases: Vec<_> = (0..3).map(|_| open_url(&pooler.url())).collect();
        let others = (0..4).map(|_| use_pool(pooler.url()));
        let mut traffic = JoinSet::from_iter(others);
        let migrate = async |database: &Database| {
            // As the threads of a process and their jobs do.
            for _ in 0..5 {
                database.migrate(&MIGRATIONS).await.unwrap_or_else(|e| panic!("{mode:?}: {e:?}"));
            }
        };
        join_all(databases.iter().map(migrate)).await;
        assert!(traffic.try_join_next().is_none(), "{mode:?}: another client ended");
        traffic.shutdown().await;
        let left = "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory'";
        assert_eq!(server.sql(left), "0", "{mode:?}: a lock is left behind");
        join_all((0..30).map(|number| write_and_read(&databases[number % 3], number as i64))).await;
    }
}

#[tokio::test]
async fn settings_do_not_reach_the_other_clients_of_a_pooler() {
    const SETTINGS: [&str; 5] = [
        "statement_timeout",
        "idle_in_transaction_session_timeout",
        "plan_cache_mode",
        "enable_seqscan",
        "lock_timeout",
    ];
    let server = PostgresServer::start().await;
    let pooler = PgBouncer::start(&server, PoolMode::Transaction).await;
    let database = open_url(&pooler.url());
    database.migrate(&MIGRATIONS).await.unwrap();
    write_and_read(&database, 1).await;
    for name in SETTINGS {
        let own = server.sql(&format!("SHOW {name}"));
        for _ in 0..8 {
            let other = server.try_sql(&pooler.url(), &format!("SHOW {name}")).unwrap();
            assert_eq!(other, own, "{name}");
        }
    }
    // Both pools, in a transaction.
    let mut transaction = database.begin().await.unwrap();
    let show = AssertSqlSafe("SHOW statement_timeout".to_owned());
    assert_eq!(transaction.fetch_one(show).await.unwrap().get::<String, _>(0), "2min");
}
