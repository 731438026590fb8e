//! Roles and servers with settings of their own, which transactions override.

use microblog_record::{Database, Migration, WriteTransaction};
use microblog_testkit::PostgresServer;
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use crate::{open, open_url};

const MIGRATIONS: [Migration; 1] =
    [(1, "numbers", "SELECT pg_sleep(0.2); CREATE TABLE numbers (id BIGINT)")];

/// Opens a server whose role has this setting.
async fn with_setting(setting: &str) -> (PostgresServer, Database) {
    let server = PostgresServer::start().await;
    server.sql(&format!("ALTER ROLE postgres SET {setting}"));
    let database = open(&server);
    (server, database)
}

async fn setting_in(transaction: &mut WriteTransaction, name: &str) -> String {
    let show = AssertSqlSafe(format!("SHOW {name}"));
    transaction.fetch_one(show).await.unwrap().get(0)
}

/// Writes with all kinds of access to the database, and reads.
async fn check(database: &Database) {
    database.migrate(&MIGRATIONS).await.unwrap();
    let insert = async {
        let mut transaction = database.begin().await?;
        transaction.execute("INSERT INTO numbers SELECT 1 FROM pg_sleep(0.2)").await?;
        transaction.commit().await?;
        database.writers().execute("INSERT INTO numbers SELECT 1 FROM pg_sleep(0.2)").await
    };
    database.write("INSERT numbers", insert).await.unwrap();
    let read = async {
        let select = "SELECT COUNT(*), current_setting('transaction_isolation') FROM numbers, \
            pg_sleep(0.2) GROUP BY 2";
        let row = database.readers().fetch_one(select).await?;
        Ok((row.try_get::<i64, _>(0)?, row.try_get::<String, _>(1)?))
    };
    let (count, isolation) = database.read("SELECT numbers", read).await.unwrap();
    assert_eq!((count, &*isolation), (2, "read committed"));
}

#[tokio::test]
async fn a_role_that_only_reads_by_default_writes() {
    let (_server, database) = with_setting("default_transaction_read_only = on").await;
    check(&database).await;
}

#[tokio::test]
async fn a_short_statement_timeout_of_a_role_does_not_hold() {
    let (_server, database) = with_setting("statement_timeout = '100ms'").await;
    check(&database).await;
    let mut transaction = database.begin().await.unwrap();
    assert_eq!(setting_in(&mut transaction, "statement_timeout").await, "2min");
}

#[tokio::test]
async fn a_short_lock_timeout_of_a_role_does_not_hold() {
    let (_server, database) = with_setting("lock_timeout = '1ms'").await;
    check(&database).await;
    let mut transaction = database.begin().await.unwrap();
    assert_eq!(setting_in(&mut transaction, "lock_timeout").await, "0");
}

#[tokio::test]
async fn transactions_are_read_committed_for_each_role() {
    let setting = "default_transaction_isolation = 'serializable'";
    let (_server, database) = with_setting(setting).await;
    check(&database).await;
    let mut transaction = database.begin().await.unwrap();
    assert_eq!(setting_in(&mut transaction, "transaction_isolation").await, "read committed");
}

#[tokio::test]
async fn a_commit_is_durable_for_each_role() {
    let server = PostgresServer::start().await;
    for (setting, expected) in [
        ("off", "on"),
        ("local", "on"),
        ("remote_write", "on"),
        ("on", "on"),
        // More than is needed.
        ("remote_apply", "remote_apply"),
    ] {
        server.sql(&format!("ALTER ROLE postgres SET synchronous_commit = '{setting}'"));
        let database = open(&server);
        let mut transaction = database.begin().await.unwrap();
        let found = setting_in(&mut transaction, "synchronous_commit").await;
        assert_eq!(found, expected, "{setting}");
    }
}

/// Through a pooler they would reach the sessions of other clients.
#[tokio::test]
async fn a_session_keeps_the_settings_of_its_role() {
    const CHANGED: &str = "SELECT string_agg(name, ', ') FROM pg_settings WHERE source = 'session'";
    let server = PostgresServer::start().await;
    let database = open_url(&format!("{}?application_name=test", server.url()));
    let mut transaction = database.begin().await.unwrap();
    transaction.execute("SELECT 1").await.unwrap();
    transaction.execute("COMMIT; BEGIN").await.unwrap();
    let row = transaction.fetch_one(CHANGED).await.unwrap();
    assert_eq!(row.get::<Option<String>, _>(0), None);
}

/// A read must not change anything by mistake.
#[tokio::test]
async fn the_connections_for_reads_do_not_write() {
    let server = PostgresServer::start().await;
    let database = open(&server);
    let written = database.readers().execute("CREATE TABLE numbers (id BIGINT)").await;
    assert!(written.is_err(), "{written:?}");
}
