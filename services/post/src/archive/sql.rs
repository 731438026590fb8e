//! Pieces of statements, in the SQL that SQLite and PostgreSQL have in common.

use std::fmt::Write as _;

use sqlx::{
    Any, AssertSqlSafe, Row as _,
    any::{AnyArguments, AnyRow},
    query::Query,
};

/// What the library calls SQLite.
pub(super) const SQLITE: &str = "SQLite";

/// How many rows one statement writes at most: with more, SQLite takes longer to find its parameters.
pub(super) const ROWS_MAX: usize = 50;

/// Returns a statement. Its text is made of constants and placeholders alone.
pub(super) fn statement(text: String) -> Query<'static, Any, AnyArguments> {
    sqlx::query(AssertSqlSafe(text))
}

/// Returns placeholders for a list: `$3, $4`, from a number on.
pub(super) fn list(from: usize, count: usize) -> String {
    let mut text = String::with_capacity(5 * count);
    for number in from..from + count {
        let separator = if number == from { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}${number}");
    }
    text
}

/// Returns placeholders for rows, as a database wants them: `($1, $2), ($3, $4)`, or `(?, ?), (?, ?)`
/// for SQLite, which would look for each of the others by its name among all.
pub(super) fn rows(backend: &str, count: usize, columns: usize) -> String {
    let row = |row: usize| match backend {
        SQLITE => format!("(?{})", ", ?".repeat(columns - 1)),
        _ => format!("({})", list(1 + row * columns, columns)),
    };
    (0..count).map(row).collect::<Vec<_>>().join(", ")
}

/// Returns an id as it is bound.
pub(super) fn number(id: u64) -> i64 {
    // Ids and stamps are below 2^53.
    id as i64
}

/// Reads an id, a stamp or a count.
pub(super) fn read(row: &AnyRow, column: usize) -> Result<u64, sqlx::Error> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// Reads an id that is not 0.
pub(super) fn read_id<T>(
    row: &AnyRow,
    column: usize,
    new: impl FnOnce(u64) -> Option<T>,
) -> Result<T, sqlx::Error> {
    let no_id = || sqlx::Error::Decode("0 where an id belongs".into());
    new(read(row, column)?).ok_or_else(no_id)
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
