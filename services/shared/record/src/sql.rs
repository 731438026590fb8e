//! Building blocks of statements, in the SQL that SQLite and PostgreSQL share.

use std::fmt::Write as _;

use microblog_domain::Partition;
use sqlx::{
    Any, AssertSqlSafe, Row as _, SqlSafeStr,
    any::{AnyArguments, AnyRow},
    query::Query,
};

use microblog_proto::common::Change;

use crate::{Database, Error};

/// The most rows of a page of what exists.
const EXISTING_PAGE: usize = 1_000;

/// sqlx's name of SQLite.
pub const SQLITE: &str = "SQLite";

/// The most rows of one statement: SQLite looks parameters up more slowly with more.
pub const ROWS_MAX: usize = 50;

/// Returns a statement. Its text must consist of constants and placeholders.
pub fn statement(text: String) -> Query<'static, Any, AnyArguments> {
    sqlx::query(AssertSqlSafe(text))
}

/// Returns placeholders for a list, numbered from `from`: `$3, $4`.
pub fn list(from: usize, count: usize) -> String {
    let mut text = String::with_capacity(5 * count);
    for number in from..from + count {
        let separator = if number == from { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}${number}");
    }
    text
}

/// Returns placeholders for rows: `($1, $2), ($3, $4)`, or `(?, ?), (?, ?)` for SQLite, which would
/// look each numbered one up by name.
pub fn rows(backend: &str, count: usize, columns: usize) -> String {
    let row = |row: usize| match backend {
        SQLITE => format!("(?{})", ", ?".repeat(columns - 1)),
        _ => format!("({})", list(1 + row * columns, columns)),
    };
    (0..count).map(row).collect::<Vec<_>>().join(", ")
}

/// Encodes an id, a stamp or a count as a parameter.
pub fn number(id: u64) -> i64 {
    // Ids and stamps are below 2^53.
    id as i64
}

/// Returns the expression that selects a column of texts, for [`read_text`]. SQLite may have stored
/// one that is not UTF-8, at which the driver would fail for the whole page.
pub fn text_column(database: &Database, column: &str) -> String {
    match database.is_embedded() {
        true => format!("CAST({column} AS BLOB)"),
        false => column.to_owned(),
    }
}

/// Decodes a text.
pub fn read_text(row: &AnyRow, column: usize) -> Result<String, sqlx::Error> {
    let Ok(bytes) = row.try_get::<Vec<u8>, _>(column) else { return row.try_get(column) };
    String::from_utf8(bytes).map_err(|error| sqlx::Error::Decode(error.utf8_error().into()))
}

/// Fails a row whose id is not of the partition that it is stored for.
pub fn check_partition(expected: Partition, id: Partition) -> Result<(), sqlx::Error> {
    match expected == id {
        true => Ok(()),
        false => Err(sqlx::Error::Decode("id of another partition".into())),
    }
}

/// Decodes a partition.
pub fn read_partition(row: &AnyRow, column: usize) -> Result<Partition, sqlx::Error> {
    let number = u16::try_from(read(row, column)?);
    let number = number.ok().filter(|number| *number < Partition::COUNT);
    number.map(Partition::new).ok_or_else(|| sqlx::Error::Decode("no partition".into()))
}

/// Returns what the next page begins behind, if there may be one. Pages are ordered by the first
/// column, a number; what else SQLite may have there is behind all numbers.
pub fn next_page(rows: &[AnyRow], count: usize) -> Option<i64> {
    rows.last().filter(|_| rows.len() == count)?.try_get(0).ok()
}

/// Decodes an id, a stamp or a count.
pub fn read(row: &AnyRow, column: usize) -> Result<u64, sqlx::Error> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// Decodes an id that is not 0.
pub fn read_id<T>(
    row: &AnyRow,
    column: usize,
    new: impl FnOnce(u64) -> Option<T>,
) -> Result<T, sqlx::Error> {
    let no_id = || sqlx::Error::Decode("id is 0 or too large".into());
    new(read(row, column)?).ok_or_else(no_id)
}

/// Reads a page of what exists, for the snapshot of a change feed. The statement has the two numbers of
/// the key as its first columns, orders by them, and has placeholders: `bound`, then the key that the
/// page begins behind, then the number of rows. It selects rows of what has ended, too, which `change`
/// leaves out: a condition would have it read any number of them. What does not decode is left out with
/// a warning.
pub async fn existing_page<const BOUND: usize>(
    database: &Database,
    statement: impl SqlSafeStr,
    bound: [i64; BOUND],
    after: [i64; 2],
    change: fn(&AnyRow) -> Result<Option<Change>, sqlx::Error>,
) -> Result<(Vec<Change>, Option<[i64; 2]>), Error> {
    let query = bound.into_iter().chain(after).fold(sqlx::query(statement), Query::bind);
    let query = query.bind(EXISTING_PAGE as i64);
    let read = async { query.fetch_all(database.readers()).await };
    let rows = database.read("SELECT existing", read).await?;
    let key = |row: &AnyRow| key_behind(row.try_get(0).ok(), row.try_get(1).ok());
    let next = rows.last().filter(|_| rows.len() == EXISTING_PAGE).and_then(key);
    let changes = rows.iter().filter_map(|row| {
        change(row).unwrap_or_else(|error| {
            tracing::warn!(%error, "damaged row left out");
            None
        })
    });
    Ok((changes.collect(), next))
}

/// Returns the key that the page after a row begins behind; `None` if there is none. A value that is not
/// a number, as SQLite may have, is behind all that are.
pub fn key_behind(first: Option<i64>, second: Option<i64>) -> Option<[i64; 2]> {
    match (first, second) {
        (Some(first), Some(second)) => Some([first, second]),
        (Some(first), None) => Some([first.saturating_add(1), i64::MIN]),
        (None, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_numbered() {
        assert_eq!(list(3, 2), "$3, $4");
        assert_eq!(list(1, 0), "");
        assert_eq!(rows("PostgreSQL", 2, 3), "($1, $2, $3), ($4, $5, $6)");
        assert_eq!(rows(SQLITE, 2, 3), "(?, ?, ?), (?, ?, ?)");
        assert_eq!(rows(SQLITE, 1, 1), "(?)");
    }
}
