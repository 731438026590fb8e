//! Writes down in the archive what was made and what ended: from what waits in every partition,
//! oldest first, in batches.
//!
//! What waits says only what it is about. The archiver reads how that is now, writes it to the
//! archive, and then strikes it out; killed in between, it begins again, and writes the same once
//! more. A post or comment that is not there any more needs no row: its end waits, too, or its row
//! was written when it was evicted. As long as the archive is away, things wait.
//!
//! Two archivers at once do no harm.

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
    store::{Note, Store},
};

/// How much is written in a transaction at most: much, since a database writes each page that changed
/// once for each of them.
const TRANSACTION_MAX: usize = 10_000;

/// How much of it is read at once, and in memory.
const BATCH_MAX: usize = 500;

/// Writes to the archive what waits.
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

    /// Writes all that waits.
    pub async fn round(&mut self) -> Result<(), Error> {
        while self.pass().await? {}
        self.metrics.waiting(0, None);
        Ok(())
    }

    /// Says that nothing waits here, since another process tells what does.
    pub(crate) fn rest(&self) {
        self.metrics.waiting(0, None);
    }

    /// Writes a page of what waits in each partition. Returns whether there is more.
    pub async fn pass(&mut self) -> Result<bool, Error> {
        let partitions: Vec<_> = Partition::all().collect();
        let pages = self.store.unarchived(&partitions).await?;
        let new = partitions.iter().zip(&pages).filter(|(_, page)| !page.is_archived);
        let new: Vec<_> = new.map(|(&partition, _)| partition).collect();
        if !new.is_empty() {
            self.store.begin_archiving(&new).await?;
        }
        let is_full = |notes: &Vec<(Note, u64)>| notes.len() >= Store::NOTES_MAX;
        let pages: Vec<_> = pages.into_iter().map(|page| page.notes).collect();
        let has_more = pages.iter().any(is_full);
        let mut notes: Vec<_> = pages.into_iter().flatten().collect();
        let count = match has_more {
            true => self.store.unarchived_count().await?,
            false => notes.len() as u64,
        };
        notes.sort_unstable_by_key(|&(_, stamp)| stamp);
        self.metrics.waiting(count, notes.first().map(|&(_, stamp)| age(stamp)));
        if !self.is_migrated {
            self.archive.migrate().await?;
            self.is_migrated = true;
        }
        for notes in notes.chunks(TRANSACTION_MAX) {
            self.write(notes).await?;
        }
        Ok(has_more)
    }

    async fn write(&self, notes: &[(Note, u64)]) -> Result<(), Error> {
        let mut writing = self.archive.begin_writing().await?;
        for notes in notes.chunks(BATCH_MAX) {
            writing.add(&self.changes(notes).await?).await?;
        }
        writing.commit().await?;
        let notes: Vec<_> = notes.iter().map(|&(note, _)| note).collect();
        self.store.archived(&notes).await?;
        self.metrics.archived(notes.len() as u64);
        Ok(())
    }

    async fn changes(&self, notes: &[(Note, u64)]) -> Result<Changes, Error> {
        let mut changes = Changes::default();
        let mut posts: Vec<PostId> = Vec::new();
        let mut comments: HashMap<PostId, Vec<CommentId>> = HashMap::new();
        for &(note, stamp) in notes {
            match note {
                Note::Post(id) => posts.push(id),
                Note::PostEnded(id) => changes.ended_posts.push((id, stamp)),
                Note::Comment(post, id) => comments.entry(post).or_default().push(id),
                Note::CommentEnded(post, id) => changes.ended_comments.push((post, id, stamp)),
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
