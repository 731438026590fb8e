//! The statements by which a group writes: with PostgreSQL one statement, which takes one round trip.
//!
//! Each writes rows of its own: in one statement, none sees what another one has done.

use microblog_record::{json_rows, number_rows, sql::statement};
use serde_json::Value;
use sqlx::{Any, Row as _, any::AnyArguments, query::Query};

use crate::Transaction;

/// Statements that write rows.
#[derive(Debug)]
pub struct Writes {
    is_sqlite: bool,
    statements: Vec<Statement>,
}

#[derive(Debug)]
struct Statement {
    text: String,
    parameters: Vec<String>,
    /// The rows that it writes.
    rows: u64,
}

impl Writes {
    /// Returns no statements of a transaction.
    pub fn of(transaction: &Transaction) -> Self {
        Self { is_sqlite: transaction.is_sqlite(), statements: Vec::new() }
    }

    /// Adds a statement with rows of numbers, if there are any. `text` is given the number of its first
    /// parameter, and has rows of a [table](number_rows::table).
    pub fn numbers<const COLUMNS: usize>(
        &mut self,
        text: impl FnOnce(bool, usize) -> String,
        rows: impl IntoIterator<Item = [u64; COLUMNS]>,
    ) {
        let rows: Vec<_> = rows.into_iter().collect();
        let parameters = number_rows::parameters(self.is_sqlite, &rows);
        self.add(text, parameters, rows.len());
    }

    /// Adds a statement with rows that have texts, if there are any. `text` is given the number of its
    /// parameter, and has rows of a [table](json_rows::table).
    pub fn texts<const COLUMNS: usize>(
        &mut self,
        text: impl FnOnce(bool, usize) -> String,
        rows: impl IntoIterator<Item = [Value; COLUMNS]>,
    ) {
        let rows: Vec<_> = rows.into_iter().collect();
        let count = rows.len();
        self.add(text, vec![json_rows::parameter(rows)], count);
    }

    fn add(
        &mut self,
        text: impl FnOnce(bool, usize) -> String,
        parameters: Vec<String>,
        rows: usize,
    ) {
        if rows == 0 {
            return;
        }
        // With SQLite, each is executed alone.
        let before = if self.is_sqlite { &[] } else { &self.statements[..] };
        let first = 1 + before.iter().map(|statement| statement.parameters.len()).sum::<usize>();
        let text = text(self.is_sqlite, first);
        self.statements.push(Statement { text, parameters, rows: rows as u64 });
    }

    /// Executes the statements. Fails if one does not write each of its rows.
    pub async fn execute(self, transaction: &mut Transaction) -> Result<(), sqlx::Error> {
        let Self { is_sqlite, statements } = self;
        let wanted: Vec<u64> = statements.iter().map(|statement| statement.rows).collect();
        let written = match statements.len() {
            0 => Vec::new(),
            1.. if is_sqlite => each(transaction, statements).await?,
            1 => each(transaction, statements).await?,
            _ => together(transaction, statements).await?,
        };
        if written == wanted { Ok(()) } else { Err(sqlx::Error::RowNotFound) }
    }
}

async fn each(
    transaction: &mut Transaction,
    statements: Vec<Statement>,
) -> Result<Vec<u64>, sqlx::Error> {
    let mut written = Vec::with_capacity(statements.len());
    for Statement { text, parameters, .. } in statements {
        let done = bind(text, parameters).execute(transaction.connection()).await?;
        written.push(done.rows_affected());
    }
    Ok(written)
}

async fn together(
    transaction: &mut Transaction,
    statements: Vec<Statement>,
) -> Result<Vec<u64>, sqlx::Error> {
    let text = |statements: &[Statement]| {
        let parts = statements.iter().enumerate();
        let parts = parts.map(|(at, part)| format!("write{at} AS ({} RETURNING 1)", part.text));
        let counts = (0..statements.len()).map(|at| format!("(SELECT COUNT(*) FROM write{at})"));
        let [parts, counts] =
            [parts.collect::<Vec<_>>(), counts.collect()].map(|all| all.join(", "));
        format!("WITH {parts} SELECT concat_ws(' ', {counts})")
    };
    let text = text(&statements);
    let parameters = statements.into_iter().flat_map(|statement| statement.parameters);
    let row = bind(text, parameters).fetch_one(transaction.connection()).await?;
    let counts: String = row.try_get(0)?;
    let counts = counts.split(' ').map(str::parse).collect::<Result<_, _>>();
    counts.map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

fn bind(
    text: String,
    parameters: impl IntoIterator<Item = String>,
) -> Query<'static, Any, AnyArguments> {
    parameters.into_iter().fold(statement(text), Query::bind)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use microblog_record::{Migration, json_rows::Type};
    use microblog_testkit::Database;

    use super::*;
    use crate::{Tables, feed::feed};

    static MIGRATIONS: [Migration; 2] = [
        feed(1),
        (
            2,
            "things",
            "CREATE TABLE things (id BIGINT NOT NULL PRIMARY KEY, number BIGINT NOT NULL); \
             CREATE TABLE names (id BIGINT NOT NULL PRIMARY KEY, name TEXT NOT NULL);",
        ),
    ];

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        database: microblog_record::Config,
    }

    fn add(is_sqlite: bool, first: usize) -> String {
        let rows = number_rows::table(is_sqlite, first, 2);
        format!("INSERT INTO things (id, number) SELECT column1, column2 FROM {rows}")
    }

    fn change(is_sqlite: bool, first: usize) -> String {
        let rows = number_rows::table(is_sqlite, first, 2);
        format!("UPDATE things SET number = column2 FROM {rows} WHERE id = column1")
    }

    fn name(is_sqlite: bool, first: usize) -> String {
        let columns = [("new_id", Type::Number), ("new_name", Type::Text)];
        let rows = json_rows::table(is_sqlite, first, &columns);
        format!("INSERT INTO names (id, name) SELECT new_id, new_name FROM {rows}")
    }

    async fn written(transaction: &mut Transaction) -> Vec<String> {
        let text = "SELECT concat_ws(' ', things.id, number, name) FROM things \
             LEFT JOIN names ON names.id = things.id ORDER BY things.id";
        let rows = sqlx::query(text).fetch_all(transaction.connection()).await.unwrap();
        rows.iter().map(|row| row.try_get(0).unwrap()).collect()
    }

    #[tokio::test]
    async fn each_row_is_written_or_the_group_fails() {
        for stored in Database::both().await {
            let flags = ["test", "--database-url", &stored.url()];
            let flags = <Flags as clap::Parser>::parse_from(flags);
            let database = microblog_record::Database::open(&flags.database).unwrap();
            let tables = Tables::new(database, &MIGRATIONS);
            let database = tables.database().await.unwrap();
            let begin = async || Transaction::begin(database, &BTreeSet::new(), 0).await.unwrap();

            let mut transaction = begin().await;
            let mut writes = Writes::of(&transaction);
            writes.numbers(change, [[0; 2]; 0]);
            writes.numbers(add, [[1, 10], [2, 20]]);
            writes.texts(name, [[2.into(), "two; 'or' \"2\"".into()]]);
            writes.execute(&mut transaction).await.unwrap();
            assert_eq!(written(&mut transaction).await, ["1 10", "2 20 two; 'or' \"2\""]);

            let mut writes = Writes::of(&transaction);
            writes.numbers(change, [[1, 11], [2, 21]]);
            writes.numbers(add, [[3, 30]]);
            writes.execute(&mut transaction).await.unwrap();
            assert_eq!(written(&mut transaction).await, ["1 11", "2 21 two; 'or' \"2\"", "3 30"]);
            Writes::of(&transaction).execute(&mut transaction).await.unwrap();

            for others in [vec![], vec![[5, 50]]] {
                let mut writes = Writes::of(&transaction);
                writes.numbers(change, [[1, 12], [4, 40]]);
                writes.numbers(add, others);
                let error = writes.execute(&mut transaction).await.unwrap_err();
                assert!(matches!(error, sqlx::Error::RowNotFound), "{error}");
            }
        }
    }
}
