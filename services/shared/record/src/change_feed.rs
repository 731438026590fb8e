//! The change feed of a service: the recorded changes, in the order in which transactions of the
//! recorder committed. It is a table, which the transaction that records changes writes last.
//!
//! What must hold:
//!   * the feed has exactly the recorded changes, and so none that a failover of Redis can lose, and no
//!     entry that changed nothing;
//!   * changes of a partition have the order of its journal: the recorder holds its position;
//!   * a row becomes visible after all rows with smaller numbers: writers lock the state;
//!   * a change of rows without entries, as by a recovery, ends all earlier positions: a reader takes
//!     a snapshot.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::future::{BoxFuture, FutureExt as _};
use microblog_domain::Partition;
use microblog_proto::common::ChangeKind;
use sqlx::{Row as _, any::AnyRow};
use uuid::Uuid;

use crate::{
    ChangeFeed, ChangeRow, Database, Error, ExistingPage, FeedPosition, Migration, Recorder,
    RowKey, Tables, WriteTransaction,
    sql::{ROWS_MAX, number, read, rows, statement},
};

/// The most entries of a row. Readers continue between rows.
const ENTRIES_MAX: usize = 1_000;

/// The most rows that are removed at once.
const REMOVED_TOGETHER: i64 = 1_000;

/// A row of the feed.
pub(crate) struct FeedRow {
    /// The position behind it.
    pub(crate) position: FeedPosition,
    pub(crate) recorded_at: SystemTime,
    entries: String,
}

impl FeedRow {
    /// Returns the journal entries with their numbers, which grow along the feed.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u64, &str)> {
        let first = self.position.sequence * ENTRIES_MAX as u64;
        (first..).zip(self.entries.lines())
    }
}

/// The change feed of what a recorder records.
pub struct RecordedChanges<T>(pub Arc<Recorder<T>>);

impl<T> Clone for RecordedChanges<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Tables + 'static> RecordedChanges<T> {
    fn row(row: &FeedRow) -> ChangeRow {
        let change = |(number, entry): (u64, &str)| {
            let change = T::change(&T::parse(entry)?);
            Some(change.map(|change| (number, change)))
        };
        let changes = row.entries().map(change).collect::<Option<Vec<_>>>();
        ChangeRow {
            position: row.position,
            recorded_at: row.recorded_at,
            changes: changes.map(|changes| changes.into_iter().flatten().collect()),
        }
    }
}

impl<T: Tables + 'static> ChangeFeed for RecordedChanges<T> {
    const KINDS: &'static [ChangeKind] = T::CHANGE_KINDS;
    // Up to 100 KB each.
    const ROWS_MAX: usize = 32;

    fn newest(&self) -> BoxFuture<'_, Result<Option<ChangeRow>, Error>> {
        async move {
            // The tables may not exist yet. A canceled call must not interrupt their creation.
            let recorder = self.0.clone();
            let tables = tokio::spawn(async move { recorder.identity().await.map(|_| ()) }).await;
            tables.map_err(|ended| Error::Unavailable(Some(sqlx::Error::Io(ended.into()))))??;
            Ok(self.0.database.newest_position().await?.as_ref().map(Self::row))
        }
        .boxed()
    }

    fn oldest(&self) -> BoxFuture<'_, Result<Option<ChangeRow>, Error>> {
        async move { Ok(self.0.database.oldest_row().await?.as_ref().map(Self::row)) }.boxed()
    }

    fn behind(
        &self,
        position: FeedPosition,
        count: usize,
    ) -> BoxFuture<'_, Result<Option<Vec<ChangeRow>>, Error>> {
        async move {
            let rows = self.0.database.changes_after(position, count).await?;
            Ok(rows.map(|rows| rows.iter().map(Self::row).collect()))
        }
        .boxed()
    }

    fn existing(
        &self,
        kind: ChangeKind,
        after: RowKey,
    ) -> BoxFuture<'_, Result<ExistingPage, Error>> {
        self.0.tables.existing(&self.0.database, kind, after)
    }
}

/// Returns the migration of the change feed, with its number among those of a service.
pub const fn change_feed(number: i64) -> Migration {
    (number, "change feed", include_str!("change_feed.sql"))
}

/// Appends journal entries to the change feed. As the last statements of a transaction: until its
/// commit, others wait.
pub async fn append_changes(
    transaction: &mut WriteTransaction,
    entries: &[impl AsRef<str>],
) -> Result<(), sqlx::Error> {
    if entries.is_empty() {
        return Ok(());
    }
    let texts: Vec<_> = entries
        .chunks(ENTRIES_MAX)
        .map(|entries| entries.iter().map(AsRef::as_ref).collect::<Vec<_>>().join("\n"))
        .collect();
    const NEXT: &str = "UPDATE change_feed_state SET newest = newest + $1 RETURNING newest";
    let next = sqlx::query(NEXT).bind(number(texts.len() as u64));
    let newest = read(&next.fetch_one(&mut **transaction).await?, 0)?;
    insert(transaction, newest + 1 - texts.len() as u64, texts).await
}

/// Ends all positions of readers, because rows change without entries in the feed. As the last
/// statements of a transaction.
pub(crate) async fn restart(transaction: &mut WriteTransaction) -> Result<(), sqlx::Error> {
    const NEXT: &str =
        "UPDATE change_feed_state SET newest = newest + 1, oldest = newest + 1 RETURNING newest";
    let newest = read(&sqlx::query(NEXT).fetch_one(&mut **transaction).await?, 0)?;
    insert(transaction, newest, vec![String::new()]).await
}

// Inserts rows with numbers from `first` on.
async fn insert(
    transaction: &mut WriteTransaction,
    first: u64,
    texts: Vec<String>,
) -> Result<(), sqlx::Error> {
    let recorded_at = unix_ms(SystemTime::now());
    let mut numbered = (first..).zip(texts).peekable();
    while numbered.peek().is_some() {
        let part: Vec<_> = numbered.by_ref().take(ROWS_MAX).collect();
        let text = format!(
            "INSERT INTO change_feed (sequence, token, recorded_at, entries) VALUES {}",
            rows(transaction.backend_name(), part.len(), 4)
        );
        let query = part.into_iter().fold(statement(text), |query, (sequence, entries)| {
            // 53 bits, as other numbers of the tables.
            let token = Uuid::new_v4().as_u64_pair().0 >> 11;
            query.bind(number(sequence)).bind(number(token)).bind(recorded_at).bind(entries)
        });
        query.execute(&mut **transaction).await?;
    }
    Ok(())
}

fn unix_ms(time: SystemTime) -> i64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}

impl Database {
    /// Returns the newest position of the feed; `None` until all partitions are filled, since a fill
    /// ends all positions.
    pub(crate) async fn newest_position(&self) -> Result<Option<FeedRow>, Error> {
        const NEWEST: &str = "SELECT sequence, token, recorded_at, '' FROM change_feed \
            WHERE sequence = (SELECT newest FROM change_feed_state) \
            AND (SELECT COUNT(*) FROM journal_positions) = $1";
        let work = async {
            let query = sqlx::query(NEWEST).bind(i64::from(Partition::COUNT));
            query.fetch_optional(self.readers()).await?.as_ref().map(row).transpose()
        };
        self.read("SELECT change_feed", work).await
    }

    /// Returns the oldest row of the feed.
    pub(crate) async fn oldest_row(&self) -> Result<Option<FeedRow>, Error> {
        const OLDEST: &str = "SELECT sequence, token, recorded_at, entries FROM change_feed \
            WHERE sequence >= (SELECT oldest FROM change_feed_state) ORDER BY sequence LIMIT 1";
        let work = async {
            let query = sqlx::query(OLDEST).fetch_optional(self.readers());
            query.await?.as_ref().map(row).transpose()
        };
        self.read("SELECT change_feed", work).await
    }

    /// Returns up to `count` rows behind a position; `None` if the position has ended, or if a row is
    /// missing behind it.
    pub(crate) async fn changes_after(
        &self,
        position: FeedPosition,
        count: usize,
    ) -> Result<Option<Vec<FeedRow>>, Error> {
        // The row at the position shows whether it is still there.
        const AFTER: &str = "SELECT sequence, token, recorded_at, \
            CASE WHEN sequence = $1 THEN '' ELSE entries END FROM change_feed \
            WHERE sequence >= $1 AND sequence >= (SELECT oldest FROM change_feed_state) \
            ORDER BY sequence LIMIT $2";
        let work = async {
            let query = sqlx::query(AFTER).bind(number(position.sequence)).bind(count as i64 + 1);
            let rows = query.fetch_all(self.readers()).await?;
            rows.iter().map(row).collect::<Result<Vec<_>, _>>()
        };
        let mut rows = self.read("SELECT change_feed", work).await?;
        let is_there = rows.first().is_some_and(|row| row.position == position);
        let follows = |pair: &[FeedRow]| pair[1].position.sequence - pair[0].position.sequence == 1;
        Ok((is_there && rows.windows(2).all(follows)).then(|| rows.split_off(1)))
    }

    /// Removes what the feed has from before its retention, and from before it was restarted. Keeps
    /// the newest row.
    pub(crate) async fn purge_change_feed(&self) -> Result<(), Error> {
        // Only from its beginning, up to the first newer row: the clocks of the processes that wrote the
        // rows may differ.
        const PURGE: &str = "DELETE FROM change_feed WHERE sequence IN (SELECT sequence \
            FROM change_feed WHERE sequence < (SELECT newest FROM change_feed_state) \
            AND (sequence < (SELECT oldest FROM change_feed_state) OR sequence < COALESCE(\
            (SELECT sequence FROM change_feed WHERE recorded_at >= $1 ORDER BY sequence LIMIT 1), \
            $2)) ORDER BY sequence LIMIT $3)";
        let before = unix_ms(SystemTime::now() - self.change_feed_retention());
        loop {
            let purge = sqlx::query(PURGE).bind(before).bind(i64::MAX).bind(REMOVED_TOGETHER);
            let work = async { purge.execute(self.writers()).await };
            let removed = self.write("DELETE change_feed", work).await?.rows_affected();
            if removed < REMOVED_TOGETHER as u64 {
                return Ok(());
            }
        }
    }
}

fn row(row: &AnyRow) -> Result<FeedRow, sqlx::Error> {
    let position = FeedPosition { sequence: read(row, 0)?, token: read(row, 1)? };
    let recorded_at = SystemTime::UNIX_EPOCH + Duration::from_millis(read(row, 2)?);
    Ok(FeedRow { position, recorded_at, entries: row.try_get(3)? })
}
