//! Damaged rows: their values do not decode, or contradict each other. A recovery leaves them out, and
//! names them by table and key. Neither texts nor secrets are named.

use std::{
    collections::BTreeMap,
    fmt::Display,
    sync::{LazyLock, Mutex, PoisonError},
};

use microblog_domain::Partition;
use opentelemetry::{KeyValue, global, metrics::Counter};
use sqlx::{Column as _, Row as _, any::AnyRow};

/// The most rows of a recovery that are named. All are counted and logged.
const NAMED_MAX: usize = 100;

static COUNTER: LazyLock<Counter<u64>> = LazyLock::new(|| {
    global::meter("microblog-record")
        .u64_counter("microblog.record.damaged")
        .with_unit("{row}")
        .with_description("Damaged rows of the database that were left out of a read")
        .build()
});

/// What the last recovery of each partition of a record has left out, by the identity of the record.
/// The threads of the process have a recorder each.
static LEFT_OUT: Mutex<BTreeMap<(String, Partition), DamagedRows>> = Mutex::new(BTreeMap::new());

/// Returns what the last recovery of a partition has left out, if this process did it.
pub(crate) fn left_out(identity: &str, partition: Partition) -> DamagedRows {
    let left_out = LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    left_out.get(&(identity.to_owned(), partition)).cloned().unwrap_or_default()
}

/// Replaces what the last recovery of a partition has left out.
pub(crate) fn set_left_out(identity: &str, partition: Partition, damaged: DamagedRows) {
    let mut left_out = LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (identity.to_owned(), partition);
    match damaged.count {
        0 => left_out.remove(&key),
        _ => left_out.insert(key, damaged),
    };
}

/// The name of a damaged row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedRow {
    /// The table.
    pub table: &'static str,
    /// The columns that name the row, with their values.
    pub key: String,
    /// What is wrong.
    pub problem: String,
}

/// The damaged rows of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamagedRows {
    /// Their number.
    pub count: u64,
    /// The first ones.
    pub first: Vec<DamagedRow>,
}

/// Collects damaged rows.
#[derive(Debug)]
pub struct Damaged {
    /// For logs and metrics.
    name: &'static str,
    rows: Mutex<DamagedRows>,
}

impl Damaged {
    /// Returns an empty collection, by the name of the reader.
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
        COUNTER.add(1, &[KeyValue::new("backlog", self.name), KeyValue::new("table", table)]);
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.count += 1;
        if rows.first.len() < NAMED_MAX {
            rows.first.push(DamagedRow { table, key, problem });
        }
    }

    /// Returns what was collected.
    pub(crate) fn into_rows(self) -> DamagedRows {
        self.rows.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the names and values of the first columns of a row, which are numbers.
fn key(row: &AnyRow, columns: usize) -> String {
    let column = |index: usize| {
        let value = row.try_get(index).map_or_else(|_| "?".to_owned(), |id: i64| id.to_string());
        format!("{}={value}", row.column(index).name())
    };
    (0..columns).map(column).collect::<Vec<_>>().join(" ")
}
