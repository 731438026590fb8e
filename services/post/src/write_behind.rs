//! The write-behind archiver: drains the archive outbox of every partition into the archive, oldest
//! entries first, in batches.
//!
//! An outbox entry names a post or comment and has no content. The archiver reads the current
//! content, writes it to the archive, then removes the entry. After a crash it repeats the batch,
//! which writes the same rows again. A post or comment that is gone needs no row: its tombstone is
//! in the outbox too, or the eviction wrote its row. Entries stay in the outbox while the archive
//! is unavailable.
//!
//! Two archivers may run at once.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use futures::future;
use microblog_domain::{CommentId, Partition, PostId, Stamp};

use crate::{
    archive::{Archive, Changes},
    error::Error,
    metrics::Metrics,
    store::{OutboxEntry, Store},
};

/// The most changes of one transaction. Large, since the database writes each changed page once for
/// each transaction.
const TRANSACTION_MAX: usize = 10_000;

/// The most changes that are read, and held in memory, at a time.
const BATCH_MAX: usize = 500;

/// Drains the archive outbox.
pub struct Archiver {
    store: Store,
    archive: Archive,
    metrics: Metrics,
    is_migrated: bool,
}

impl Archiver {
    /// Returns an archiver.
    pub fn new(store: Store, archive: Archive) -> Self {
        Self { store, archive, metrics: Metrics::new(), is_migrated: false }
    }

    /// Drains the outbox of every partition until all are empty.
    pub async fn drain(&mut self) -> Result<(), Error> {
        while self.drain_page().await? {}
        self.metrics.set_backlog(0, None);
        Ok(())
    }

    /// Resets the backlog gauges; another replica holds the lease and reports them.
    pub(crate) fn reset_backlog(&self) {
        self.metrics.set_backlog(0, None);
    }

    /// Writes one page of each partition's outbox. Returns whether there is more.
    pub async fn drain_page(&mut self) -> Result<bool, Error> {
        let partitions: Vec<_> = Partition::all().collect();
        let pages = self.store.archive_outbox(&partitions).await?;
        let new = partitions.iter().zip(&pages).filter(|(_, page)| !page.has_archive);
        let new: Vec<_> = new.map(|(&partition, _)| partition).collect();
        if !new.is_empty() {
            self.store.enable_archive_outbox(&new).await?;
        }
        let is_full = |entries: &Vec<(OutboxEntry, u64)>| entries.len() >= Store::OUTBOX_PAGE_MAX;
        let pages: Vec<_> = pages.into_iter().map(|page| page.entries).collect();
        let has_more = pages.iter().any(is_full);
        let mut entries: Vec<_> = pages.into_iter().flatten().collect();
        let count = match has_more {
            true => self.store.archive_outbox_length().await?,
            false => entries.len() as u64,
        };
        entries.sort_unstable_by_key(|&(_, stamp)| stamp);
        self.metrics.set_backlog(count, entries.first().map(|&(_, stamp)| age(stamp)));
        if !self.is_migrated {
            self.archive.migrate().await?;
            self.is_migrated = true;
        }
        for entries in entries.chunks(TRANSACTION_MAX) {
            self.write(entries).await?;
        }
        Ok(has_more)
    }

    async fn write(&self, entries: &[(OutboxEntry, u64)]) -> Result<(), Error> {
        let mut transaction = self.archive.begin_write().await?;
        for entries in entries.chunks(BATCH_MAX) {
            transaction.add(&self.changes(entries).await?).await?;
        }
        transaction.commit().await?;
        let entries: Vec<_> = entries.iter().map(|&(entry, _)| entry).collect();
        self.store.dequeue(&entries).await?;
        self.metrics.add_archived(entries.len() as u64);
        Ok(())
    }

    async fn changes(&self, entries: &[(OutboxEntry, u64)]) -> Result<Changes, Error> {
        let mut changes = Changes::default();
        let mut posts: Vec<PostId> = Vec::new();
        let mut comments: HashMap<PostId, Vec<CommentId>> = HashMap::new();
        for &(entry, stamp) in entries {
            match entry {
                OutboxEntry::PostCreated(id) => posts.push(id),
                OutboxEntry::PostDeleted(id) => changes.deleted_posts.push((id, stamp)),
                OutboxEntry::CommentCreated(post, id) => comments.entry(post).or_default().push(id),
                OutboxEntry::CommentDeleted(post, id) => {
                    changes.deleted_comments.push((post, id, stamp))
                }
            }
        }
        let contents = self.store.contents(&posts).await?;
        let made = posts.into_iter().zip(contents);
        changes.posts = made.filter_map(|(id, content)| Some((id, content?))).collect();
        let comments = comments.iter().map(|(&post, ids)| self.store.comments(post, ids));
        let comments = future::try_join_all(comments).await?;
        changes.comments = comments.into_iter().flatten().collect();
        Ok(changes)
    }
}

fn age(stamp: u64) -> Duration {
    let since = Stamp::new(stamp).map_or(SystemTime::UNIX_EPOCH, Stamp::time);
    SystemTime::now().duration_since(since).unwrap_or_default()
}
