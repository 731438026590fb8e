//! Results of `memory`, as a table and as JSON.

use serde::Serialize;

use crate::system::SqlUsage;

/// The results.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) steps: Vec<Step>,
}

/// One kind of data, and the growth of memory by it.
#[derive(Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) what: String,
    pub(crate) count: u64,
    /// Growth of the memory that Redis uses, in bytes.
    pub(crate) used: i64,
    /// Usage of the databases, if they are in a PostgreSQL server of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sql: Option<SqlUsage>,
}

impl Report {
    /// Returns a table with a row per step.
    pub(super) fn table(&self) -> String {
        let mut table = row("", "count", "bytes each");
        for Step { what, count, used, .. } in &self.steps {
            let each = match count {
                0 => "-".to_owned(),
                count => format!("{:.1}", *used as f64 / *count as f64),
            };
            table += &row(what, &count.to_string(), &each);
        }
        table
    }
}

fn row(name: &str, count: &str, each: &str) -> String {
    format!("{name:<36}{count:>12}{each:>14}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_bytes_of_each_entry() {
        let step = |what: &str, count, used| Step { what: what.to_owned(), count, used, sql: None };
        let table = Report { steps: vec![step("likes", 100, 5000), step("none", 0, 7)] }.table();
        let rows: Vec<Vec<_>> = table.lines().map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows[1..], [["likes", "100", "50.0"], ["none", "0", "-"]]);
    }
}
