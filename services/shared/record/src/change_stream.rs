//! The RPC `StreamChanges`: follows the change feed of a service, or reads all that exists.
//!
//! A stream reads the database only while its reader takes messages, and buffers one message: a slow
//! reader costs nothing.

use std::{
    collections::VecDeque,
    time::{Duration, Instant, SystemTime},
};

use futures::{
    StreamExt as _, TryStreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use microblog_chassis::{self as chassis, status};
use microblog_proto::common::{self as pb, ChangeKind, ErrorReason, FeedPage, FeedQuery};
use tokio::time::sleep;
use tonic::{Code, Status};

use crate::Error;

/// How often the feed is read for new changes.
const POLL_PERIOD: Duration = Duration::from_millis(200);

/// How often a stream without changes has a message.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// The number of changes at which a message is complete. A row of the feed has up to 1,000 more.
const CHANGES_MAX: usize = 1_000;

/// A position in a feed, behind a row of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedPosition {
    /// The number of the row.
    pub sequence: u64,
    /// Tells the row from another one that had its number.
    pub token: u64,
}

/// The key of a row, behind which a page begins.
pub type RowKey = [i64; 3];

/// A page of what exists, and where the next one begins, if there may be one.
pub type ExistingPage = (Vec<pb::Change>, Option<RowKey>);

/// A row of a feed.
pub struct ChangeRow {
    /// The position behind it.
    pub position: FeedPosition,
    /// The time of its transaction.
    pub recorded_at: SystemTime,
    /// The changes with their numbers, which grow along the feed; `None` if they are of a newer version of
    /// the service.
    pub changes: Option<Vec<(u64, pb::Change)>>,
}

/// The changes of a service, in the order of their commits.
pub trait ChangeFeed: Clone + Send + Sync + 'static {
    /// The kinds of changes.
    const KINDS: &'static [ChangeKind];

    /// The most rows that are read at once.
    const ROWS_MAX: usize;

    /// Returns the newest row; one at position 0 if there are none.
    fn newest(&self) -> BoxFuture<'_, Result<ChangeRow, Error>>;

    /// Returns the oldest row; `None` if there are none.
    fn oldest(&self) -> BoxFuture<'_, Result<Option<ChangeRow>, Error>>;

    /// Returns up to `count` rows behind a position; `None` if the position has ended.
    fn behind(
        &self,
        position: FeedPosition,
        count: usize,
    ) -> BoxFuture<'_, Result<Option<Vec<ChangeRow>>, Error>>;

    /// Returns a page of what exists of a kind, behind the key of a row.
    fn existing(
        &self,
        kind: ChangeKind,
        after: RowKey,
    ) -> BoxFuture<'_, Result<ExistingPage, Error>>;
}

/// Streams changes of a service, or what exists there. Without a position to continue behind, the first
/// message has no changes.
pub async fn stream_changes<F: ChangeFeed>(
    feed: F,
    query: FeedQuery,
) -> Result<BoxStream<'static, Result<FeedPage, Status>>, Status> {
    chassis::context::watch()?;
    let is_asked = |kind: &&ChangeKind| query.kinds.contains(&i32::from(**kind));
    let kinds: Vec<_> = F::KINDS.iter().filter(is_asked).copied().collect();
    let newest = feed.newest().await.map_err(status)?;
    let first = page(Changes::default(), newest.position, newest.recorded_at, !query.snapshot);
    if query.snapshot {
        let last = FeedPage { is_end: true, ..FeedPage::default() };
        let existing = existing(feed, newest.position, kinds);
        let existing = stream::iter([Ok(first)]).chain(existing);
        return Ok(existing.chain(stream::iter([Ok(last)])).boxed());
    }
    let after = query.after.map(|after| FeedPosition::from(&after));
    let mut reader = FeedReader {
        feed,
        kinds,
        position: after.unwrap_or(newest.position),
        rows: VecDeque::new(),
        sent_at: None,
    };
    let mut first = Some(Ok(first));
    if after.is_some() {
        first = None;
    } else if query.from_start
        && let Some(row) = reader.feed.oldest().await.map_err(status)?
    {
        (reader.position, first) = (row.position, None);
        reader.rows.push_back(row);
    }
    reader.sent_at = first.is_some().then(Instant::now);
    Ok(stream::iter(first).chain(stream::try_unfold(reader, FeedReader::step)).boxed())
}

/// A reader of a feed.
struct FeedReader<F> {
    feed: F,
    kinds: Vec<ChangeKind>,
    position: FeedPosition,
    /// Rows behind the position that were read.
    rows: VecDeque<ChangeRow>,
    /// When the last message was sent.
    sent_at: Option<Instant>,
}

impl<F: ChangeFeed> FeedReader<F> {
    async fn step(mut self) -> Result<Option<(FeedPage, Self)>, Status> {
        let page = self.next().await?;
        self.sent_at = Some(Instant::now());
        Ok(Some((page, self)))
    }

    /// Waits for changes, or until a message is due without any.
    async fn next(&mut self) -> Result<FeedPage, Status> {
        loop {
            let read_at = SystemTime::now();
            let mut is_end = false;
            if self.rows.is_empty() {
                let rows = self.feed.behind(self.position, F::ROWS_MAX).await;
                self.rows = rows.map_err(status)?.ok_or_else(expired)?.into();
                is_end = self.rows.is_empty();
            }
            let (mut changes, mut recorded_at) = (Changes::default(), read_at);
            while let Some(row) = self.rows.pop_front() {
                for (number, change) in row.changes.ok_or_else(newer_version)? {
                    if self.kinds.contains(&change.kind()) {
                        changes.changes.push(change);
                        changes.numbers.push(number);
                    }
                }
                (self.position, recorded_at) = (row.position, row.recorded_at);
                if changes.numbers.len() >= CHANGES_MAX {
                    break;
                }
            }
            let is_due = self.sent_at.is_none_or(|sent_at| sent_at.elapsed() >= HEARTBEAT);
            if is_due || !changes.numbers.is_empty() {
                return Ok(page(changes, self.position, recorded_at, is_end));
            }
            if is_end {
                sleep(POLL_PERIOD).await;
            }
        }
    }
}

/// Streams all that exists, a kind after the other.
fn existing<F: ChangeFeed>(
    feed: F,
    position: FeedPosition,
    kinds: Vec<ChangeKind>,
) -> impl futures::Stream<Item = Result<FeedPage, Status>> + Send {
    let of_kind = move |kind| {
        let feed = feed.clone();
        stream::try_unfold(Some(RowKey::default()), move |after| {
            let feed = feed.clone();
            async move {
                let Some(after) = after else { return Ok(None) };
                let page = feed.existing(kind, after).await;
                // Nothing continues the snapshot if its position has ended.
                let rows = feed.behind(position, 0).await.map_err(status)?;
                rows.ok_or_else(expired)?;
                page.map(Some).map_err(status)
            }
        })
    };
    let pages = stream::iter(kinds).flat_map(of_kind);
    let pages = pages.try_filter(|changes| std::future::ready(!changes.is_empty()));
    pages.map_ok(|changes| FeedPage { changes, ..FeedPage::default() })
}

/// Changes with their numbers.
#[derive(Default)]
struct Changes {
    changes: Vec<pb::Change>,
    numbers: Vec<u64>,
}

fn page(
    Changes { changes, numbers }: Changes,
    FeedPosition { sequence, token }: FeedPosition,
    recorded_at: SystemTime,
    is_end: bool,
) -> FeedPage {
    let position = Some(pb::FeedPosition { sequence, token });
    let recorded_at = Some(recorded_at.into());
    FeedPage { changes, position, recorded_at, is_end, numbers }
}

impl From<&pb::FeedPosition> for FeedPosition {
    fn from(position: &pb::FeedPosition) -> Self {
        Self { sequence: position.sequence, token: position.token }
    }
}

fn expired() -> Status {
    let text = "the change feed does not have what follows the cursor any more; take a snapshot";
    status::with_reason(Code::OutOfRange, ErrorReason::CursorExpired, text)
}

fn newer_version() -> Status {
    let text = "the change feed has a change of a newer version of the service";
    status::with_reason(Code::Unavailable, ErrorReason::StoreUnavailable, text)
}

fn status(error: Error) -> Status {
    let error = &error as &dyn std::error::Error;
    tracing::warn!(error, "change feed not readable");
    status::store_unavailable()
}
