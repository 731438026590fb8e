//! The plans of the statements of calls and jobs: each finds its rows by their keys, in tables of any size.

use microblog_record::Database;
use microblog_storage::{Tables, transaction::make_accounts_text};
use microblog_testkit::PostgresServer;
use sqlx::AssertSqlSafe;

use super::*;
use crate::{
    items,
    tables::{MIGRATIONS, expired_text},
};

const TABLES: [&str; 4] = ["accounts", "notices", "mentions", "positions"];

/// The most parameters of a statement.
const PARAMETERS: usize = 15;

#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    database: microblog_record::Config,
}

async fn open(url: &str) -> Database {
    let flags = <Flags as clap::Parser>::parse_from(["test", "--database-url", url]);
    let database = Database::open(&flags.database).unwrap();
    Tables::new(database.clone(), &MIGRATIONS).database().await.unwrap();
    database
}

fn statements(is_embedded: bool) -> Vec<String> {
    let of_rows = [
        lock_accounts_text,
        notices_text,
        mentions_text,
        empty_notices_text,
        empty_mentions_text,
        items::notices_text,
        items::mentions_text,
    ];
    let mut statements: Vec<String> = of_rows.map(|text| text(is_embedded)).into();
    let written = [change_accounts_text, write_notices_text, add_mentions_text];
    statements.extend(written.map(|text| text(is_embedded, 1)));
    statements.extend([
        make_accounts_text(is_embedded, ACCOUNT.len()),
        position_text(),
        write_position_text(),
        cut_text(NoticeItem::Notices),
        cut_text(NoticeItem::Mentions),
        expired_text(),
    ]);
    statements
}

/// The plans of SQLite, which has no statistics, so they are those of tables of any size.
#[tokio::test]
async fn no_statement_of_a_call_reads_a_whole_table() {
    let directory = tempfile::tempdir().unwrap();
    let database = open(&format!("sqlite://{}/a.db?mode=rwc", directory.path().display())).await;
    for text in statements(true) {
        let numbered = (1..=PARAMETERS).rev().map(|at| format!("${at}"));
        let explain = numbered.fold(text.clone(), |text, at| text.replace(&at, "'[]'"));
        let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {explain}"));
        let plan = sqlx::raw_sql(explain).fetch_all(database.readers()).await;
        for step in plan.unwrap_or_else(|error| panic!("{text}: {error}")) {
            let step: String = step.try_get(3).unwrap();
            let reads_all = TABLES.iter().any(|table| {
                step == format!("SCAN {table}") || step.starts_with(&format!("SCAN {table} "))
            });
            assert!(!reads_all, "{step}: {text}");
        }
    }
}

/// PostgreSQL keeps the plan of a statement while its tables grow.
#[tokio::test]
async fn a_plan_is_good_for_tables_of_any_size() {
    let server = PostgresServer::start().await;
    let database = open(&server.url()).await;
    for (size, accounts) in [("empty", 0), ("tiny", 1), ("small", 20), ("large", 2_000)] {
        server.sql(&format!(
            "TRUNCATE accounts, notices, mentions; \
             INSERT INTO accounts SELECT n, 1, 1, 1, 20, 20, n % 3, 0, 0, 0, 0, 0, 0, 0, 0 \
             FROM generate_series(1, {accounts}) AS n; \
             INSERT INTO notices SELECT n / 20, 7, n, 0, n, n % 10, 0, 'acts' \
             FROM generate_series(1, 20 * {accounts}) AS n; \
             INSERT INTO mentions SELECT n / 20, n FROM generate_series(1, 20 * {accounts}) AS n"
        ));
        for statistics in ["", "ANALYZE", "VACUUM ANALYZE"] {
            if !statistics.is_empty() {
                server.sql(&format!("{statistics} accounts, notices, mentions"));
            }
            for statement in statements(false) {
                let plan = plan(&database, &statement).await;
                for (at, line) in plan.iter().enumerate() {
                    let is_of_table = line.contains("Scan ")
                        && TABLES.iter().any(|table| line.contains(&format!(" on {table}")));
                    let condition = plan.get(at + 1).map_or("", String::as_str);
                    let is_by_key =
                        condition.contains("Index Cond") || condition.contains("Recheck Cond");
                    assert!(
                        !is_of_table || is_by_key,
                        "{size} tables, {statistics}: {statement}\n{}",
                        plan.join("\n")
                    );
                }
            }
        }
    }
}

/// Returns the plan that a connection keeps for a statement.
async fn plan(database: &Database, statement: &str) -> Vec<String> {
    let parameters = (1..=PARAMETERS).filter(|at| statement.contains(&format!("${at}")));
    let nulls = parameters.map(|_| "NULL").collect::<Vec<_>>().join(", ");
    let mut transaction = database.begin().await.unwrap();
    let prepare = AssertSqlSafe(format!("PREPARE explained AS {statement}"));
    let prepared = sqlx::raw_sql(prepare).execute(&mut *transaction).await;
    prepared.unwrap_or_else(|error| panic!("{statement}: {error}"));
    let explain = AssertSqlSafe(format!("EXPLAIN (COSTS OFF) EXECUTE explained({nulls})"));
    let plan = sqlx::raw_sql(explain).fetch_all(&mut *transaction).await.unwrap();
    sqlx::raw_sql("DEALLOCATE explained").execute(&mut *transaction).await.unwrap();
    plan.iter().map(|row| row.try_get(0).unwrap()).collect()
}
