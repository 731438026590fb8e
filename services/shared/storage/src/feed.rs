//! The feed of a service: its committed changes, in the order of their commits. A transaction writes
//! its rows last, under a lock that it holds until it has committed, so a row becomes visible after all
//! rows with smaller positions.

use std::fmt::Write as _;

use microblog_record::{
    Database, Error, Migration,
    sql::{number, read, statement},
};
use sqlx::{Row as _, any::AnyRow};

/// PostgreSQL's advisory lock on the feed: an arbitrary number, "feed" in ASCII. Services that share a
/// database have schemas of their own, and this lock in common.
pub(crate) const LOCK: i64 = 0x6665_6564;

/// Returns the migration of the feed, with its number among those of a service.
pub const fn feed(number: i64) -> Migration {
    (number, "feed", include_str!("feed.sql"))
}

/// An item with a revision.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ItemRevision {
    /// The kind of the item: one word.
    pub kind: String,
    /// Its id.
    pub id: u64,
    /// The revision.
    pub revision: u64,
}

/// A committed change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedRow {
    /// The items that changed, with their new revisions.
    pub items: Vec<ItemRevision>,
    /// What changed, in the words of the service: letters, digits, spaces and `-`.
    pub change: String,
}

/// A committed change at its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positioned {
    /// The position: grows by one with each row.
    pub position: u64,
    /// The time of the transaction, in milliseconds since 1970.
    pub time_ms: u64,
    /// The change.
    pub row: FeedRow,
}

/// Returns the statement that appends rows: in text, so that it goes out together with the lock and the
/// commit.
pub(crate) fn append(rows: &[FeedRow], time_ms: u64) -> Result<String, sqlx::Error> {
    let mut text = String::from(
        "INSERT INTO feed (position, time_ms, items, change) \
         SELECT (SELECT COALESCE(MAX(position), 0) FROM feed) + column1, column2, column3, column4 \
         FROM (VALUES ",
    );
    for (at, FeedRow { items, change }) in rows.iter().enumerate() {
        let items = items.iter().map(|item| format!("{} {} {}", item.kind, item.id, item.revision));
        let items = items.collect::<Vec<_>>().join(" ");
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b" -_".contains(&byte);
        if !items.bytes().chain(change.bytes()).all(is_plain) {
            return Err(sqlx::Error::Encode("a change of the feed has other characters".into()));
        }
        let separator = if at == 0 { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}({}, {time_ms}, '{items}', '{change}')", at + 1);
    }
    text.push_str(") AS appended");
    Ok(text)
}

/// Returns up to `count` rows behind a position, in order.
pub async fn read_behind(
    database: &Database,
    position: u64,
    count: usize,
) -> Result<Vec<Positioned>, Error> {
    const BEHIND: &str = "SELECT position, time_ms, items, change FROM feed WHERE position > $1 \
        ORDER BY position LIMIT $2";
    let work = async {
        let query = statement(BEHIND.to_owned()).bind(number(position)).bind(count as i64);
        query.fetch_all(database.readers()).await?.iter().map(positioned).collect()
    };
    database.read("SELECT feed", work).await
}

/// Returns the positions of the oldest row and of the newest one; `None` if there are none.
pub async fn ends(database: &Database) -> Result<Option<(u64, u64)>, Error> {
    let work = async {
        let ends = "SELECT COALESCE(MIN(position), 0), COALESCE(MAX(position), 0) FROM feed";
        let row = sqlx::query(ends).fetch_one(database.readers()).await?;
        let (oldest, newest) = (read(&row, 0)?, read(&row, 1)?);
        Ok((newest > 0).then_some((oldest, newest)))
    };
    database.read("SELECT feed", work).await
}

fn positioned(row: &AnyRow) -> Result<Positioned, sqlx::Error> {
    let items: String = row.try_get(2)?;
    Ok(Positioned {
        position: read(row, 0)?,
        time_ms: read(row, 1)?,
        row: FeedRow { items: parse_items(&items)?, change: row.try_get(3)? },
    })
}

fn parse_items(text: &str) -> Result<Vec<ItemRevision>, sqlx::Error> {
    let malformed = || sqlx::Error::Decode("malformed items in the feed".into());
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let items = words.chunks(3).map(|words| {
        let [kind, id, revision] = words else { return Err(malformed()) };
        Ok(ItemRevision {
            kind: (*kind).to_owned(),
            id: id.parse().map_err(|_| malformed())?,
            revision: revision.parse().map_err(|_| malformed())?,
        })
    });
    items.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_characters_are_rejected() {
        let row = |change: &str| FeedRow { items: Vec::new(), change: change.to_owned() };
        assert!(append(&[row("follow 4 8")], 1).is_ok());
        for change in ["it's", "a\\", "a;b", "\0", "é"] {
            assert!(append(&[row("a"), row(change)], 1).is_err(), "{change:?}");
        }
    }

    #[test]
    fn items_are_read_as_they_were_written() {
        let item = |kind: &str, id| ItemRevision { kind: kind.to_owned(), id, revision: 7 };
        assert_eq!(
            parse_items("outgoing 4 7 incoming 8 7").unwrap(),
            [item("outgoing", 4), item("incoming", 8)]
        );
        assert_eq!(parse_items("").unwrap(), []);
        for text in ["outgoing", "outgoing 4", "outgoing 4 x", "outgoing 4 7 incoming"] {
            assert!(parse_items(text).is_err(), "{text}");
        }
    }
}
