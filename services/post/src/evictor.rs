//! The evictor: moves old posts from Redis to the archive.
//!
//! 1. *Evictable*, one atomic step in the author's partition. A post that is older than the hot
//!    window, and not among its author's newest, leaves its author's list. The oldest leaves first,
//!    and only if it is recorded. From there on the list continues in the archive. The post itself
//!    is still in Redis.
//! 2. *Marked*, one atomic step: the post gets an eviction mark, a stamp. Every change of its lists
//!    removes the mark.
//! 3. *Recorded*: the recorder writes all changes of the partition up to this moment. The archive
//!    must have what Redis has.
//! 4. *Evicted*, one atomic step, if the post still has the mark: the post and its lists are
//!    deleted from Redis. The archive is authoritative until a
//!    [restore](crate::TieredStore::restore).
//!
//! With `--evict-after-backup`, a marked post waits after step 3 until a backup of the database has
//! it: its score in the set of evictable posts is the moment at which it was recorded, later than its
//! mark. It is evicted once that is before the last backup, if it still has the mark.
//!
//! After a crash at any step, the post is in Redis, or in the archive unchanged. Two evictors may
//! run at once: the later mark wins.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use microblog_domain::{Partition, PostId, Stamp, UserId};
use microblog_record::Recorder;

use crate::{
    archive::{self, Archive},
    error::Error,
    metrics::Metrics,
    record::PostTables,
    store::{PostCount, Store},
};

/// The most posts of one author that one step makes evictable.
const EVICTABLE_MAX: usize = 100;

/// The page size when the unlisted posts of an author are counted.
const COUNT_PAGE: usize = 500;

/// How far the clock of the backup may be ahead of the one of this process.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(60);

/// Evicts old posts to the archive.
#[derive(Clone)]
pub struct Evictor {
    store: Store,
    archive: Archive,
    recorder: Arc<Recorder<PostTables>>,
    metrics: Metrics,
    hot_window: Duration,
    hot_posts: usize,
    warm_window: Duration,
    evict_after_backup: bool,
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
    pub fn new(
        store: Store,
        archive: Archive,
        recorder: Arc<Recorder<PostTables>>,
        config: &archive::Config,
    ) -> Self {
        Self {
            store,
            archive,
            recorder,
            metrics: Metrics::new(),
            hot_window: config.hot_window,
            hot_posts: config.hot_posts,
            warm_window: config.warm_window,
            evict_after_backup: config.evict_after_backup,
        }
    }

    /// Evicts the old posts of a partition; none while it lacks changes.
    pub async fn partition(&self, partition: Partition) -> Result<Evictions, Error> {
        if self.store.keyspace().states().is_closed(partition) {
            return Ok(Evictions::default());
        }
        let (authors, evictable) = self.make_evictable(partition).await?;
        let evicted = self.evict(partition).await?;
        self.metrics.add_evictions(evictable, evicted);
        Ok(Evictions { authors, evictable, evicted })
    }

    /// Deletes expired tombstones and requests from the archive.
    pub async fn purge(&self) -> Result<(), Error> {
        while self.archive.purge().await? > 0 {}
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
            let recorded = self.archive.existing(&old).await?;
            let is_recorded = |id: &&PostId| recorded.contains(*id);
            let old: Vec<_> = old.iter().take_while(is_recorded).copied().collect();
            if old.is_empty() {
                break;
            }
            let done = self.store.make_evictable(author, &old).await?;
            evictable += done as u64;
            left -= done.min(left);
            if done < old.len() || old.len() < page {
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
        let mut until = SystemTime::now();
        if self.evict_after_backup {
            let backed_up = self.archive.backed_up_until().await?;
            self.metrics.set_backed_up_until(backed_up);
            until = until.min(backed_up);
        }
        let until = Stamp::first_at(until, partition).get();
        loop {
            let ids = self.store.evictable(partition, until).await?;
            if ids.is_empty() {
                return Ok(evicted);
            }
            match self.evict_posts(partition, &ids).await? {
                Some(count) => evicted += count,
                None => return Ok(evicted),
            }
        }
    }

    // Evicts posts, or postpones those that cannot be evicted. Returns how many were evicted; `None`
    // if Redis lacks recorded changes.
    async fn evict_posts(
        &self,
        partition: Partition,
        ids: &[PostId],
    ) -> Result<Option<u64>, Error> {
        let mut marked = Vec::new();
        if self.evict_after_backup {
            marked = self.store.marks_of_recorded(ids).await?;
        }
        let mut others = ids.to_vec();
        others.retain(|id| !has(&marked, id));
        let marks = self.store.mark_for_eviction(&others).await?.into_iter();
        let others = others.into_iter().zip(marks).filter_map(|(id, mark)| Some((id, mark?)));
        let mut others: Vec<_> = others.collect();
        if !self.record(partition).await? {
            return Ok(None);
        }
        // Not those without a mark, which may be damaged: they would fail the read.
        let to_compare: Vec<_> = marked.iter().chain(&others).map(|&(id, _)| id).collect();
        let archived = self.archived(&to_compare).await?;
        marked.retain(|(id, _)| archived.contains(id));
        others.retain(|(id, _)| archived.contains(id));
        if self.evict_after_backup {
            let recorded = SystemTime::now() + CLOCK_SKEW_MAX;
            let recorded = Stamp::first_at(recorded, partition).get();
            self.store.set_recorded(&others, recorded).await?;
        } else {
            marked.append(&mut others);
        }
        let evicted = self.store.evict(&marked).await?;
        let mut is_gone = evicted.iter();
        marked.retain(|_| is_gone.next() == Some(&true));
        let mut stay = ids.to_vec();
        stay.retain(|id| !has(&marked, id) && !has(&others, id));
        if !stay.is_empty() {
            let later = Stamp::first_at(SystemTime::now() + self.warm_window, partition).get();
            self.store.postpone_eviction(&stay, later).await?;
        }
        Ok(Some(marked.len() as u64))
    }

    // Returns the posts that are the same in both stores. Others have changed since, which removed
    // their marks, or are not readable.
    async fn archived(&self, ids: &[PostId]) -> Result<HashSet<PostId>, Error> {
        let archived = self.archive.posts(ids, None).await?;
        let archived: HashMap<_, _> = archived.into_iter().map(|post| (post.id, post)).collect();
        let posts = self.store.posts(ids, None).await?.into_iter().flatten();
        let same = posts.filter(|post| archived.get(&post.id) == Some(post));
        Ok(same.map(|post| post.id).collect())
    }

    // Records all changes up to this moment. Returns false if Redis lacks recorded ones.
    async fn record(&self, partition: Partition) -> Result<bool, Error> {
        loop {
            let recorded = self.recorder.record(&[partition]).await?;
            if recorded.more.is_empty() || !recorded.diverged.is_empty() {
                return Ok(recorded.diverged.is_empty());
            }
        }
    }
}

fn has(marked: &[(PostId, u64)], id: &PostId) -> bool {
    marked.iter().any(|(marked, _)| marked == id)
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
        // The recorder may have written a deletion in between.
        count += archive.existing(&ids).await?.len() as u64;
        before = Some(last);
    }
    store.count_unlisted(author, counting, count).await?;
    Ok(())
}
