//! Building blocks of statements, in the SQL that SQLite and PostgreSQL share.

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

/// Returns a statement. Its text must consist of constants and placeholders.
pub fn statement(text: String) -> Query<'static, Any, AnyArguments> {
    sqlx::query(AssertSqlSafe(text))
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
/// the key as its first columns, orders by them, and has placeholders: the key that the page begins
/// behind, then the number of rows. It selects rows of what has ended, too, which `change`
/// leaves out: a condition would have it read any number of them. What does not decode is left out with
/// a warning.
pub async fn existing_page(
    database: &Database,
    statement: impl SqlSafeStr,
    after: [i64; 2],
    change: fn(&AnyRow) -> Result<Option<Change>, sqlx::Error>,
) -> Result<(Vec<Change>, Option<[i64; 2]>), Error> {
    let query = after.into_iter().fold(sqlx::query(statement), Query::bind);
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
fn key_behind(first: Option<i64>, second: Option<i64>) -> Option<[i64; 2]> {
    match (first, second) {
        (Some(first), Some(second)) => Some([first, second]),
        (Some(first), None) => Some([first.saturating_add(1), i64::MIN]),
        (None, _) => None,
    }
}
