//! The tables of the follow graph, and what their statements have in common.

use std::fmt::{Display, Write as _};

use microblog_domain::UserId;
use microblog_record::{
    Database, Error, Migration,
    sql::{number, read, read_id},
};
use microblog_storage::{Record, feed::feed};
use sqlx::{AssertSqlSafe, Row as _, any::AnyRow};

use crate::graph::{Edge, EdgeKind, List};

/// The migrations of the service.
pub(crate) static MIGRATIONS: [Migration; 2] =
    [feed(1), (2, "follow graph", include_str!("schema.sql"))];

impl EdgeKind {
    /// Returns the table.
    pub(crate) const fn table(self) -> &'static str {
        match self {
            Self::Follow => "follows",
            Self::Block => "blocks",
            Self::Mute => "mutes",
        }
    }
}

impl List {
    /// Returns the rows of the lists of this kind, as a table expression with the columns `owner`, `peer`
    /// and `since`.
    pub(crate) const fn rows(self) -> &'static str {
        match self {
            Self::Following => {
                "(SELECT source AS owner, target AS peer, since FROM follows) AS rows"
            }
            Self::Followers => {
                "(SELECT target AS owner, source AS peer, since FROM follows) AS rows"
            }
            Self::Mutuals => {
                // Of an account that many follow, its own follows must be read, not those of the others. An
                // outer join keeps the order, unless NULL could not pass the condition.
                "(SELECT f.source AS owner, f.target AS peer, \
                 CASE WHEN f.since > g.since THEN f.since ELSE g.since END AS since \
                 FROM follows AS f LEFT JOIN follows AS g \
                 ON g.source = f.target AND g.target = f.source \
                 WHERE COALESCE(g.since, 0) > 0) AS rows"
            }
            Self::Blocks => "(SELECT source AS owner, target AS peer, since FROM blocks) AS rows",
            Self::BlockedBy => {
                "(SELECT target AS owner, source AS peer, since FROM blocks) AS rows"
            }
            Self::Mutes => "(SELECT source AS owner, target AS peer, since FROM mutes) AS rows",
        }
    }
}

/// Joins columns with commas.
pub(crate) fn join(columns: impl IntoIterator<Item = impl Display>) -> String {
    let mut text = String::new();
    for column in columns {
        let separator = if text.is_empty() { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}{column}");
    }
    text
}

/// Reads the ids of a table behind one, up to a number.
pub(crate) async fn ids_behind(
    database: &Database,
    table: &str,
    id: u64,
    count: usize,
) -> Result<Vec<UserId>, Error> {
    let text = format!("SELECT id FROM {table} WHERE id > $1 ORDER BY id LIMIT {count}");
    let read = async {
        let query = sqlx::query(AssertSqlSafe(text)).bind(number(id));
        let rows = query.fetch_all(database.readers()).await?;
        rows.iter().map(|row| read_id(row, 0, UserId::new)).collect()
    };
    database.read("SELECT ids", read).await
}

/// Decodes an edge from two columns.
pub(crate) fn read_edge(row: &AnyRow, column: usize) -> Result<Edge, sqlx::Error> {
    let from = read_id(row, column, UserId::new)?;
    Ok(Edge { from, to: read_id(row, column + 1, UserId::new)? })
}

/// Joins columns, none of which is NULL, to one text. The driver's work grows with the columns of all rows.
pub(crate) fn packed(columns: impl IntoIterator<Item = impl Display>) -> String {
    format!("concat_ws(' ', {})", join(columns))
}

/// Decodes the numbers of columns that [`packed`] has joined.
pub(crate) fn read_packed(row: &AnyRow, column: usize) -> Result<Vec<u64>, sqlx::Error> {
    let text: String = row.try_get(column)?;
    let numbers = text.split_ascii_whitespace().map(str::parse);
    numbers.collect::<Result<_, _>>().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

/// Decodes an entry of a list from two columns: peer and time.
pub(crate) fn read_entry(row: &AnyRow, column: usize) -> Result<Record, sqlx::Error> {
    let id = read_id(row, column, UserId::new)?.get();
    Ok(Record { id, time_ms: read(row, column + 1)? })
}
