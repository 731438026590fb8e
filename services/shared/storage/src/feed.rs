//! The feed of a service: its committed changes, in the order of their commits. A transaction writes
//! its rows last, under a lock that it holds until it has committed, so a row becomes visible after all
//! rows with smaller positions.

use std::time::{Duration, SystemTime};

use microblog_record::{
    Database, Error, Migration,
    sql::{number, read, statement},
};
use sqlx::{Row as _, any::AnyRow};

/// PostgreSQL's advisory lock on the feed: an arbitrary number, "feed" in ASCII. Services that share a
/// database have schemas of their own, and this lock in common.
pub(crate) const LOCK: i64 = 0x6665_6564;

/// The most rows that are removed at once: in each round of the verifier, so more than are written.
const PURGED_TOGETHER: i64 = 5_000;

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

/// Returns the statement that appends rows: in text, so that it goes out together with the commit. With
/// PostgreSQL, it fails if the history is not any more the one with a random number.
pub(crate) fn append(
    rows: &[FeedRow],
    time_ms: u64,
    random: i64,
    is_sqlite: bool,
) -> Result<String, sqlx::Error> {
    let items = |row: &FeedRow| {
        let items = row.items.iter();
        let items = items.map(|item| format!("{} {} {}", item.kind, item.id, item.revision));
        items.collect::<Vec<_>>().join(" ")
    };
    let columns: [Vec<String>; 2] =
        [rows.iter().map(items).collect(), rows.iter().map(|row| row.change.clone()).collect()];
    // They are quoted in a list, which is quoted in the statement.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b" -_".contains(&byte);
    if !columns.iter().flatten().flat_map(|text| text.bytes()).all(is_plain) {
        return Err(sqlx::Error::Encode("a change of the feed has other characters".into()));
    }
    let [items, changes] = columns;
    if is_sqlite {
        let pairs = items.iter().zip(&changes);
        let pairs = pairs.map(|(items, change)| format!("[\"{items}\",\"{change}\"]"));
        let pairs = pairs.collect::<Vec<_>>().join(",");
        return Ok(format!(
            "INSERT INTO feed (position, time_ms, items, change) \
             SELECT (SELECT COALESCE(MAX(position), 0) FROM feed) + key + 1, {time_ms}, \
             value ->> 0, value ->> 1 FROM json_each('[{pairs}]')"
        ));
    }
    let array = |texts: Vec<String>| match texts.is_empty() {
        true => String::new(),
        false => format!("\"{}\"", texts.join("\",\"")),
    };
    let (items, changes) = (array(items), array(changes));
    Ok(format!("SELECT append_to_feed({random}, {time_ms}, '{{{items}}}', '{{{changes}}}')"))
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

impl Positioned {
    /// Returns the point behind the row.
    pub fn point(&self) -> Point {
        Point { position: self.position, time_ms: self.time_ms }
    }

    /// Returns the time of the transaction.
    pub fn time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.time_ms)
    }
}

/// A position behind a row of the feed, with the time of the row, which tells it from another one that had
/// its position in a database that has gone back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    /// The position; 0 before the first row.
    pub position: u64,
    /// The time of the row, in milliseconds since 1970; 0 before the first one.
    pub time_ms: u64,
}

/// Returns up to `count` rows behind a point; `None` if its row is not there any more.
pub async fn rows_behind(
    database: &Database,
    Point { position, time_ms }: Point,
    count: usize,
) -> Result<Option<Vec<Positioned>>, Error> {
    // The row at the position shows whether it is still there.
    let before = position.saturating_sub(1);
    let mut rows = read_behind(database, before, count + 1).await?;
    if position == 0 {
        let is_start = time_ms == 0 && rows.first().is_none_or(|first| first.position == 1);
        rows.truncate(count);
        return Ok(is_start.then_some(rows));
    }
    let is_there =
        rows.first().is_some_and(|row| (row.position, row.time_ms) == (position, time_ms));
    Ok(is_there.then(|| rows.split_off(1)))
}

/// Returns the newest row; one at position 0 if there are none.
pub async fn newest(database: &Database) -> Result<Positioned, Error> {
    let newest = one(database, "DESC").await?;
    let row = FeedRow { items: Vec::new(), change: String::new() };
    Ok(newest.unwrap_or(Positioned { position: 0, time_ms: 0, row }))
}

/// Returns the oldest row.
pub async fn oldest(database: &Database) -> Result<Option<Positioned>, Error> {
    one(database, "ASC").await
}

async fn one(database: &Database, order: &str) -> Result<Option<Positioned>, Error> {
    let text = format!(
        "SELECT position, time_ms, items, change FROM feed ORDER BY position {order} LIMIT 1"
    );
    let work = async {
        let row = statement(text).fetch_optional(database.readers()).await?;
        row.as_ref().map(positioned).transpose()
    };
    database.read("SELECT feed", work).await
}

/// Removes the oldest rows, some thousand at most, that are older than a time, in Unix ms, and before a
/// position, and never the newest one. Only up to the first newer row: the clocks of the servers that wrote
/// the rows may differ.
pub(crate) async fn purge(
    database: &Database,
    position: u64,
    older_than_ms: u64,
) -> Result<(), Error> {
    const PURGE: &str = "DELETE FROM feed WHERE position < $1 \
        AND position < (SELECT MAX(position) FROM feed) AND position < COALESCE(\
        (SELECT MIN(position) FROM (SELECT position, time_ms FROM feed ORDER BY position LIMIT $3) AS oldest \
        WHERE time_ms >= $2), \
        (SELECT MAX(position) FROM (SELECT position FROM feed ORDER BY position LIMIT $3) AS oldest))";
    let purge = sqlx::query(PURGE).bind(number(position)).bind(number(older_than_ms));
    let purge = purge.bind(PURGED_TOGETHER);
    let work = async { purge.execute(database.writers()).await.map(drop) };
    database.write("DELETE feed", work).await
}

/// Returns the position of the oldest row, and the point behind the newest one.
pub(crate) async fn ends(database: &Database) -> Result<(u64, Point), Error> {
    const ENDS: &str = "SELECT (SELECT COALESCE(MIN(position), 0) FROM feed), position, time_ms \
        FROM feed ORDER BY position DESC LIMIT 1";
    let work = async {
        let row = sqlx::query(ENDS).fetch_optional(database.readers()).await?;
        let Some(row) = row else { return Ok((0, Point::default())) };
        let newest = Point { position: read(&row, 1)?, time_ms: read(&row, 2)? };
        Ok((read(&row, 0)?, newest))
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
    fn there_is_one_lock() {
        let lock = format!("pg_advisory_xact_lock({LOCK})");
        assert!(include_str!("feed.sql").contains(&lock));
    }

    #[test]
    fn other_characters_are_rejected() {
        let row = |change: &str| FeedRow { items: Vec::new(), change: change.to_owned() };
        assert!(append(&[row("follow 4 8")], 1, 1, true).is_ok());
        for change in ["it's", "a\\", "a;b", "\0", "é"] {
            assert!(append(&[row("a"), row(change)], 1, 1, true).is_err(), "{change:?}");
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
