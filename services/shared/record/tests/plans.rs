//! Plans of statements on PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use clap::Parser as _;
use microblog_record::{Config, Database, WriteTransaction, number_rows, sql::statement};
use microblog_testkit::PostgresServer;
use sqlx::{Executor as _, Row as _};

/// Executions after which PostgreSQL considers a plan for all later ones, and some more.
const EXECUTIONS: i64 = 10;

#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    database: Config,
}

async fn find(transaction: &mut WriteTransaction, from: i64) {
    let text = format!("SELECT id FROM numbers WHERE {}", number_rows::contains(false, "id", 1));
    let numbers = (from..from + 50).map(|number| number as u64);
    let query = number_rows::bind_column(statement(text), false, numbers);
    query.fetch_all(&mut **transaction).await.unwrap();
}

/// Returns the rows that the transaction has read without an index.
async fn scanned(transaction: &mut WriteTransaction) -> i64 {
    let read = "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'numbers'";
    transaction.fetch_one(read).await.unwrap().get(0)
}

/// Fills a table after a statement was executed some times, and executes it again.
async fn fill_a_table(database: &Database) -> WriteTransaction {
    let mut transaction = database.begin().await.unwrap();
    transaction.execute("CREATE TABLE numbers (id BIGINT NOT NULL PRIMARY KEY)").await.unwrap();
    for from in 0..EXECUTIONS {
        find(&mut transaction, from).await;
    }
    let fill = "INSERT INTO numbers SELECT generate_series(1, 100000)";
    transaction.execute(fill).await.unwrap();
    let before = scanned(&mut transaction).await;
    find(&mut transaction, EXECUTIONS).await;
    assert_eq!(scanned(&mut transaction).await - before, 0, "rows read without an index");
    transaction
}

#[tokio::test]
async fn a_statement_is_planned_once_and_for_tables_of_any_size() {
    let server = PostgresServer::start_with(&["jit=on"]).await;
    let flags = Flags::parse_from(["test", "--database-url", &server.url()]);
    let database = Database::open(&flags.database).unwrap();
    let mut transaction = fill_a_table(&database).await;
    let plans = "SELECT SUM(custom_plans)::bigint FROM pg_prepared_statements \
                 WHERE statement LIKE 'SELECT id FROM numbers%'";
    assert_eq!(transaction.fetch_one(plans).await.unwrap().get::<i64, _>(0), 0);
    let jit = transaction.fetch_one("SHOW jit").await.unwrap();
    assert_eq!(jit.get::<String, _>(0), "off", "a table of one row looks dear");
}
