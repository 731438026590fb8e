//! The part of the change feed that a service has: what its feed tells callers.

use std::{marker::PhantomData, time::SystemTime};

use futures::future::{BoxFuture, FutureExt as _};
use microblog_proto::common::{Change, ChangeKind};
use microblog_record::{
    ChangeFeed, ChangeRow, Database, Error, ExistingPage, FeedPosition, RowKey,
};

use crate::{
    Tables,
    feed::{self, Point},
};

/// The most rows that are read at once.
const ROWS: usize = 1_000;

/// What the texts of a service's feed mean.
pub trait FeedTexts: Send + Sync + 'static {
    /// The kinds of changes that the service has.
    const KINDS: &'static [ChangeKind];

    /// Returns the change of a text. The outer `None` is for one of a newer version of the service, the inner
    /// one for what is no change for callers.
    fn parse(text: &str) -> Option<Option<Change>>;

    /// Returns a page of what exists of a kind, behind the key of a row.
    fn existing(
        database: &Database,
        kind: ChangeKind,
        after: RowKey,
    ) -> BoxFuture<'_, Result<ExistingPage, Error>>;
}

/// The feed of a service, as changes for callers.
pub struct FeedChanges<T> {
    tables: Tables,
    texts: PhantomData<fn() -> T>,
}

impl<T> Clone for FeedChanges<T> {
    fn clone(&self) -> Self {
        Self::new(self.tables.clone())
    }
}

impl<T> FeedChanges<T> {
    /// Returns the changes of the feed in a database.
    pub fn new(tables: Tables) -> Self {
        Self { tables, texts: PhantomData }
    }
}

impl<T: FeedTexts> ChangeFeed for FeedChanges<T> {
    const KINDS: &'static [ChangeKind] = T::KINDS;
    const ROWS_MAX: usize = ROWS;

    fn newest(&self) -> BoxFuture<'_, Result<ChangeRow, Error>> {
        async move {
            let newest = row::<T>(feed::newest(self.tables.database().await?).await?);
            let is_empty = newest.position.sequence == 0;
            let recorded_at = if is_empty { SystemTime::now() } else { newest.recorded_at };
            Ok(ChangeRow { recorded_at, ..newest })
        }
        .boxed()
    }

    fn oldest(&self) -> BoxFuture<'_, Result<Option<ChangeRow>, Error>> {
        async move { Ok(feed::oldest(self.tables.database().await?).await?.map(row::<T>)) }.boxed()
    }

    fn behind(
        &self,
        position: FeedPosition,
        count: usize,
    ) -> BoxFuture<'_, Result<Option<Vec<ChangeRow>>, Error>> {
        async move {
            let point = Point { position: position.sequence, time_ms: position.token };
            let rows = feed::rows_behind(self.tables.database().await?, point, count).await?;
            Ok(rows.map(|rows| rows.into_iter().map(row::<T>).collect()))
        }
        .boxed()
    }

    fn existing(
        &self,
        kind: ChangeKind,
        after: RowKey,
    ) -> BoxFuture<'_, Result<ExistingPage, Error>> {
        async move { T::existing(self.tables.database().await?, kind, after).await }.boxed()
    }
}

fn row<T: FeedTexts>(row: feed::Positioned) -> ChangeRow {
    ChangeRow {
        position: FeedPosition { sequence: row.position, token: row.time_ms },
        recorded_at: row.time(),
        changes: T::parse(&row.row.change)
            .map(|change| change.into_iter().map(|change| (row.position, change)).collect()),
    }
}
