//! The evictor: moves old posts from Redis to the archive.
//!
//! 1. *Evictable*, one atomic step in the author's partition. A post that is older than the hot
//!    window, and not among its author's newest, leaves its author's list. The oldest leaves first,
//!    and only if the archive has its row. From there on the list continues in the archive. The
//!    post itself is still in Redis.
//! 2. *Marked*, one atomic step: the post gets an eviction mark, a stamp. Every change of its lists
//!    removes the mark.
//! 3. *Snapshotted*: the post and its lists are read, and written to the archive under the mark in
//!    one transaction, unless the archive has a later snapshot.
//! 4. *Evicted*, one atomic step, if the post still has the mark: the post and its lists are
//!    deleted from Redis. The archive is authoritative until a
//!    [restore](crate::TieredStore::restore).
//!
//! After a crash at any step, the post is in Redis, or in the archive unchanged. Two evictors may
//! run at once: the later mark wins in Redis and in the archive.

use std::time::{Duration, SystemTime};

use microblog_domain::{Partition, PostId, Stamp, UserId};

use crate::{
    archive::{self, Archive},
    error::Error,
    metrics::Metrics,
    post::Post,
    store::{PostCount, Store},
};

/// The most list entries of a batch of posts, unless the batch is one post.
const ENTRIES_MAX: u64 = 50_000;

/// How long rows of deleted posts and comments stay as tombstones: longer than an archiver can lag.
const TOMBSTONE_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The most posts of one author that one step makes evictable.
const EVICTABLE_MAX: usize = 100;

/// The page size when the unlisted posts of an author are counted.
const COUNT_PAGE: usize = 500;

/// Evicts old posts to the archive.
#[derive(Clone)]
pub struct Evictor {
    store: Store,
    archive: Archive,
    metrics: Metrics,
    hot_window: Duration,
    hot_posts: usize,
    warm_window: Duration,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evictions {
    /// Authors that were visited.
    pub authors: usize,
    /// Posts that became evictable.
    pub evictable: u64,
    /// Posts that were evicted.
    pub evicted: u64,
}

impl Evictor {
    /// Returns an evictor.
    pub fn new(store: Store, archive: Archive, config: &archive::Config) -> Self {
        let archive::Config { hot_window, hot_posts, warm_window, .. } = *config;
        Self { store, archive, metrics: Metrics::new(), hot_window, hot_posts, warm_window }
    }

    /// Evicts the old posts of a partition.
    pub async fn partition(&self, partition: Partition) -> Result<Evictions, Error> {
        let (authors, evictable) = self.make_evictable(partition).await?;
        let evicted = self.evict(partition).await?;
        self.metrics.add_evictions(evictable, evicted);
        Ok(Evictions { authors, evictable, evicted })
    }

    /// Deletes expired tombstones from the archive.
    pub async fn purge(&self) -> Result<(), Error> {
        let before = SystemTime::now().checked_sub(TOMBSTONE_TTL).unwrap_or(SystemTime::UNIX_EPOCH);
        let before = Stamp::first_at(before, Partition::new(0)).get();
        while self.archive.purge(before).await? > 0 {}
        Ok(())
    }

    // Returns the number of authors, and of posts that became evictable.
    async fn make_evictable(&self, partition: Partition) -> Result<(usize, u64), Error> {
        let (mut count, mut evictable, mut cursor) = (0, 0, 0);
        loop {
            let (next, authors) = self.store.authors(partition, cursor).await?;
            count += authors.len();
            let post_counts = self.store.post_counts(&authors).await?;
            for (author, PostCount { listed, unlisted }) in authors.into_iter().zip(post_counts) {
                if unlisted.is_none() {
                    count_unlisted(&self.store, &self.archive, author).await?;
                }
                if listed > self.hot_posts {
                    evictable +=
                        self.make_author_posts_evictable(author, listed - self.hot_posts).await?;
                }
            }
            if next == 0 {
                return Ok((count, evictable));
            }
            cursor = next;
        }
    }

    // Makes the old ones of an author's oldest `count` posts evictable.
    async fn make_author_posts_evictable(
        &self,
        author: UserId,
        count: usize,
    ) -> Result<u64, Error> {
        let before = SystemTime::now().checked_sub(self.hot_window);
        let before = Stamp::first_at(before.unwrap_or(SystemTime::UNIX_EPOCH), author.partition());
        let (mut evictable, mut left) = (0, count);
        while left > 0 {
            let page = left.min(EVICTABLE_MAX);
            let mut old = self.store.oldest_of(author, page).await?;
            old.retain(|id| id.get() < before.get());
            let known = self.archive.existing(&old).await?;
            let unknown: Vec<_> = old.iter().copied().filter(|id| !known.contains(id)).collect();
            // Posts from before the archive existed: they become evictable in a later run.
            self.store.enqueue_posts(&unknown).await?;
            let is_known = |id: &&PostId| known.contains(*id);
            let old: Vec<_> = old.iter().take_while(is_known).copied().collect();
            if old.is_empty() {
                break;
            }
            let done = self.store.make_evictable(author, &old).await?;
            evictable += done as u64;
            left -= done.min(left);
            if done < old.len() || !unknown.is_empty() || old.len() < page {
                break;
            }
        }
        Ok(evictable)
    }

    async fn evict(&self, partition: Partition) -> Result<u64, Error> {
        let mut evicted = 0;
        if self.store.is_fenced(partition).await? {
            return Ok(evicted);
        }
        // A post that is postponed to after this moment is not read again.
        let now = Stamp::first_at(SystemTime::now(), partition).get();
        loop {
            let ids = self.store.evictable(partition, now).await?;
            if ids.is_empty() {
                return Ok(evicted);
            }
            evicted += self.evict_posts(partition, &ids).await?;
        }
    }

    // Evicts posts, or postpones those that cannot be evicted.
    async fn evict_posts(&self, partition: Partition, ids: &[PostId]) -> Result<u64, Error> {
        let marks = self.store.mark_for_eviction(ids).await?;
        let posts = self.store.posts(ids, None).await?;
        let marked = posts.into_iter().zip(marks);
        let mut marked: Vec<(Post, u64)> =
            marked.filter_map(|(post, mark)| Some((post?, mark?))).collect();
        let mut evicted: Vec<PostId> = Vec::with_capacity(ids.len());
        while !marked.is_empty() {
            let batch = take_batch(&mut marked);
            match self.snapshot_and_evict(batch.clone()).await {
                Ok(ids) => evicted.extend(ids),
                Err(error) if error.is_outage() => return Err(error),
                // A post that fails must not keep the others in Redis.
                Err(_) => evicted.extend(self.snapshot_and_evict_each(batch).await?),
            }
        }
        let stay: Vec<_> = ids.iter().copied().filter(|id| !evicted.contains(id)).collect();
        if !stay.is_empty() {
            let later = Stamp::first_at(SystemTime::now() + self.warm_window, partition).get();
            self.store.postpone_eviction(&stay, later).await?;
        }
        Ok(evicted.len() as u64)
    }

    async fn snapshot_and_evict_each(
        &self,
        marked: Vec<(Post, u64)>,
    ) -> Result<Vec<PostId>, Error> {
        let mut evicted = Vec::with_capacity(marked.len());
        for (post, mark) in marked {
            let id = post.id.get();
            match self.snapshot_and_evict(vec![(post, mark)]).await {
                Ok(ids) => evicted.extend(ids),
                Err(error) if error.is_outage() => return Err(error),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(post = id, error, "eviction of a post failed");
                }
            }
        }
        Ok(evicted)
    }

    // Returns the posts that were evicted.
    async fn snapshot_and_evict(&self, marked: Vec<(Post, u64)>) -> Result<Vec<PostId>, Error> {
        let mut snapshots = Vec::with_capacity(marked.len());
        for (post, mark) in marked {
            snapshots.push(self.store.read_snapshot(post, mark).await?);
        }
        let written = self.archive.write_snapshots(&snapshots).await?;
        let unwritten = snapshots.iter().map(|snapshot| snapshot.post.id);
        let unwritten: Vec<_> = unwritten.filter(|id| !written.contains(id)).collect();
        self.reenqueue_unknown(&unwritten).await?;
        let written = snapshots.iter().filter(|snapshot| written.contains(&snapshot.post.id));
        let written: Vec<_> = written.map(|snapshot| (snapshot.post.id, snapshot.mark)).collect();
        let evicted = self.store.evict(&written).await?;
        let evicted = written.iter().zip(evicted).filter(|(_, is_gone)| *is_gone);
        Ok(evicted.map(|(&(id, _), _)| id).collect())
    }

    // If the archive has lost the row of an evictable post, archives it again; a later run evicts
    // it.
    async fn reenqueue_unknown(&self, ids: &[PostId]) -> Result<(), Error> {
        let known = self.archive.existing(ids).await?;
        let unknown: Vec<_> = ids.iter().copied().filter(|id| !known.contains(id)).collect();
        self.store.enqueue_posts(&unknown).await?;
        Ok(())
    }
}

/// Counts the unlisted posts of an author: those in the archive that are older than all listed ones
/// and not deleted. Needed where an older version wrote the list, or the count is wrong. If a post
/// becomes evictable or is deleted meanwhile, the result is discarded, and a later run counts
/// again.
pub(crate) async fn count_unlisted(
    store: &Store,
    archive: &Archive,
    author: UserId,
) -> Result<(), Error> {
    let counting = store.begin_count(author).await?;
    let mut before = store.oldest_of(author, 1).await?.pop();
    let mut count = 0;
    loop {
        let mut ids = archive.newest_of(&[author], before, None, COUNT_PAGE).await?;
        let Some(&last) = ids.last() else { break };
        let mut deleted = store.have_tombstones(&ids).await?.into_iter();
        ids.retain(|_| deleted.next() == Some(false));
        // The archiver may have written a tombstone in between.
        count += archive.existing(&ids).await?.len() as u64;
        before = Some(last);
    }
    store.count_unlisted(author, counting, count).await?;
    Ok(())
}

// Takes a batch of posts within [`ENTRIES_MAX`].
fn take_batch(marked: &mut Vec<(Post, u64)>) -> Vec<(Post, u64)> {
    let mut entries = 0;
    let fits = |(post, _): &&(Post, u64)| {
        let counts = post.counts;
        entries += counts.likes + counts.comments + counts.reposts;
        entries <= ENTRIES_MAX
    };
    let count = marked.iter().take_while(fits).count().max(1);
    marked.drain(..count).collect()
}
