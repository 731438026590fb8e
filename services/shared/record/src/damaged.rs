//! Damaged rows: their values do not decode, or contradict each other. A recovery leaves them out, and
//! names them by table and key. Neither texts nor secrets are named.

use std::{
    fmt::Display,
    sync::{LazyLock, Mutex, PoisonError},
};

use microblog_domain::Partition;
use microblog_proto::common::DamagedRow;
use opentelemetry::{KeyValue, global, metrics::Counter};
use sqlx::{Column as _, Row as _, any::AnyRow};

use crate::{Database, Error, WriteTransaction};

/// The most rows of a recovery that are named. All are logged and counted.
const NAMED_MAX: usize = 1_000;

static COUNTER: LazyLock<Counter<u64>> = LazyLock::new(|| {
    global::meter("microblog-record")
        .u64_counter("microblog.record.damaged")
        .with_unit("{row}")
        .with_description("Damaged rows of the database that were left out of a read")
        .build()
});

/// Collects the damaged rows of a read.
#[derive(Debug)]
pub struct Damaged {
    /// For logs and metrics.
    name: &'static str,
    rows: Mutex<Vec<DamagedRow>>,
}

impl Damaged {
    /// Returns an empty collection, by the name of the recorder.
    pub fn new(name: &'static str) -> Self {
        Self { name, rows: Mutex::default() }
    }

    /// Decodes rows of a table, without the damaged ones. The first `key_columns` columns name a row.
    pub fn decode<T>(
        &self,
        table: &'static str,
        key_columns: usize,
        rows: &[AnyRow],
        decode: impl Fn(&AnyRow) -> Result<T, sqlx::Error>,
    ) -> Vec<T> {
        let decode = |row: &AnyRow| {
            let decoded = decode(row);
            decoded.map_err(|error| self.add(table, key(row, key_columns), error)).ok()
        };
        rows.iter().filter_map(decode).collect()
    }

    /// Adds a row that is left out.
    pub fn add(&self, table: &'static str, key: String, problem: impl Display) {
        let problem = problem.to_string();
        tracing::error!(record = self.name, table, key, problem, "damaged row left out");
        count(self.name, 1);
        let row = DamagedRow { table: table.to_owned(), key, problem };
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        // One may be read by its own partition and by others.
        if rows.len() < NAMED_MAX && !rows.contains(&row) {
            rows.push(row);
        }
    }

    /// Returns what was collected.
    pub(crate) fn into_rows(self) -> Vec<DamagedRow> {
        self.rows.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts damaged rows of a record.
pub(crate) fn count(name: &'static str, rows: u64) {
    COUNTER.add(rows, &[KeyValue::new("backlog", name)]);
}

/// Returns the rows that the last recovery of a partition has left out.
pub(crate) async fn rows_of(
    database: &Database,
    partition: Partition,
) -> Result<Vec<DamagedRow>, Error> {
    let select = "SELECT table_name, row_key, problem FROM damaged_rows WHERE partition = $1";
    let query = sqlx::query(select).bind(i64::from(partition.number()));
    let row = |row: &AnyRow| {
        Ok(DamagedRow { table: row.try_get(0)?, key: row.try_get(1)?, problem: row.try_get(2)? })
    };
    let work = async { query.fetch_all(database.writers()).await?.iter().map(row).collect() };
    database.write("SELECT damaged_rows", work).await
}

/// Replaces the rows that the last recovery of a partition has left out.
pub(crate) async fn replace(
    transaction: &mut WriteTransaction,
    partition: Partition,
    rows: Vec<DamagedRow>,
) -> Result<(), sqlx::Error> {
    let delete = sqlx::query("DELETE FROM damaged_rows WHERE partition = $1");
    let delete = delete.bind(i64::from(partition.number()));
    delete.execute(&mut **transaction).await?;
    add(transaction, partition, rows).await
}

/// Adds rows to those that the last recovery of a partition has left out.
pub(crate) async fn add(
    transaction: &mut WriteTransaction,
    partition: Partition,
    rows: Vec<DamagedRow>,
) -> Result<(), sqlx::Error> {
    let partition = i64::from(partition.number());
    for DamagedRow { table, key, problem } in rows {
        let insert = "INSERT INTO damaged_rows (partition, table_name, row_key, problem) \
                      VALUES ($1, $2, $3, $4)";
        let insert = sqlx::query(insert).bind(partition).bind(table).bind(key).bind(problem);
        insert.execute(&mut **transaction).await?;
    }
    Ok(())
}

/// Returns the names and values of the first columns of a row, which are numbers.
fn key(row: &AnyRow, columns: usize) -> String {
    let column = |index: usize| {
        let value = row.try_get(index).map_or_else(|_| "?".to_owned(), |id: i64| id.to_string());
        format!("{}={value}", row.column(index).name())
    };
    (0..columns).map(column).collect::<Vec<_>>().join(" ")
}
