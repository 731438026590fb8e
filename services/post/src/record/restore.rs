//! Recovery of a partition of Redis from the record, which has all that Redis has, and what it has
//! lost. Redis' posts are replaced by the recorded ones. Meanwhile, changes are rejected.
//!
//! 1. The clock is raised above all recorded ids, and deleted accounts are marked.
//! 2. The eviction watermark is raised: from here on, the archive has what Redis does not have.
//! 3. All posts leave Redis, also those whose deletion is recorded. Authors' lists are begun anew:
//!    they continue in the archive.
//! 4. The newest posts of each author return, newest first, as many as the evictor would keep. So
//!    an author's list is complete at each moment.
//! 5. The requests of the last day return, and reposts that are on one side only become pending.
//!
//! It may be repeated from the beginning. A post whose content is unreadable is not recorded; it
//! stays, off its author's list.

use std::time::SystemTime;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_domain::{Partition, PostId, Stamp, UserId};
use microblog_keyspace::Recovery;
use microblog_record::{Damaged, RecordError, sql::number};
use uuid::Uuid;

use super::{PAGE, POSTS_AT_ONCE};
use crate::{
    archive::{Archive, Config},
    post::{Counts, MadeByRequest, Post},
    store::{PostSet, REQUEST_TTL, Store, post_ids},
};

/// The most authors whose posts are read at once.
const AUTHORS_AT_ONCE: usize = 8;

/// The most list entries of posts that are written together, unless it is one post: they are in memory,
/// and the leases of the posts must not end meanwhile.
const ENTRIES_TOGETHER: u64 = 50_000;

/// A recovery of a partition.
pub(super) struct Restore<'a> {
    pub(super) store: &'a Store,
    pub(super) archive: Archive,
    pub(super) hot: &'a Config,
    pub(super) recovery: Recovery,
    pub(super) partition: Partition,
    pub(super) damaged: &'a Damaged,
}

impl Restore<'_> {
    /// Writes the rows of the partition to Redis.
    pub(super) async fn run(self) -> Result<(), RecordError> {
        let (newest_post, newest) = self.archive.newest_ids(self.partition).await?;
        self.store.raise_clock(self.partition, newest).await?;
        let deletions = self.archive.deleted_accounts(self.partition, self.damaged).await?;
        for (user, since, is_complete) in deletions {
            self.store.recover_deletion(user, since, is_complete).await?;
        }
        if let Some(newest) = PostId::new(newest_post) {
            self.store.raise_watermark(self.recovery, newest).await?;
        }
        self.drop_posts().await?;
        let mut next = Some(i64::MIN);
        while let Some(after) = next {
            let authors: Vec<(UserId, u64)>;
            (authors, next) =
                self.archive.authors(self.partition, after, PAGE, self.damaged).await?;
            let authors = authors.into_iter().map(|(author, count)| self.author(author, count));
            let authors = stream::iter(authors).buffer_unordered(AUTHORS_AT_ONCE);
            authors.try_collect::<()>().await?;
        }
        self.requests().await?;
        let one_sided = self.archive.one_sided(self.partition, self.damaged).await?;
        Ok(self.store.add_pending(self.partition, &one_sided).await?)
    }

    async fn drop_posts(&self) -> Result<(), RecordError> {
        let mut cursor = 0;
        loop {
            let (next, authors) = self.store.authors(self.partition, cursor).await?;
            for author in authors {
                self.drop_set(PostSet::Of(author)).await?;
                self.store.recover_author(self.recovery, author, 0).await?;
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
        self.drop_set(PostSet::Evictable(self.partition)).await
    }

    async fn drop_set(&self, set: PostSet) -> Result<(), RecordError> {
        let mut after = None;
        loop {
            let page = self.store.post_set(set, after, PAGE).await?;
            let known = self.archive.known(&post_ids(&page.entries)).await?;
            self.store.drop_posts(self.recovery, &known).await?;
            after = page.entries.last().copied();
            if !page.more {
                return Ok(());
            }
        }
    }

    // Writes the newest posts of an author, of `count` in all.
    async fn author(&self, author: UserId, count: u64) -> Result<(), RecordError> {
        self.store.recover_author(self.recovery, author, count).await?;
        let now = SystemTime::now();
        let since = |age| {
            let time = now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
            Stamp::first_at(time, self.partition).get()
        };
        let (hot_from, deliver_from) = (since(self.hot.hot_window), since(REQUEST_TTL));
        let holder = Uuid::new_v4().to_string();
        let (mut kept, mut before) = (0, None);
        loop {
            let ids = self.archive.newest_of(&[author], before, None, POSTS_AT_ONCE).await?;
            let is_hot = |(rank, id): &(usize, &PostId)| {
                kept + rank < self.hot.hot_posts || id.get() >= hot_from
            };
            let hot = ids.iter().enumerate().take_while(is_hot);
            let hot: Vec<PostId> = hot.map(|(_, &id)| id).collect();
            for posts in together(self.archive.newest_first(&hot, self.damaged).await?) {
                let posts = self.archive.with_lists(posts, self.damaged).await?;
                if !self.store.recover_posts(self.recovery, &posts, &holder, deliver_from).await? {
                    return Err(RecordError::Contended(self.partition));
                }
            }
            kept += hot.len();
            before = hot.last().copied();
            if hot.len() < POSTS_AT_ONCE {
                return Ok(());
            }
        }
    }

    async fn requests(&self) -> Result<(), RecordError> {
        let begin = SystemTime::now().checked_sub(REQUEST_TTL).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut next = Some(number(Stamp::first_at(begin, self.partition).get()));
        while let Some(after) = next {
            let requests: Vec<MadeByRequest>;
            (requests, next) =
                self.archive.requests(self.partition, after, PAGE, self.damaged).await?;
            self.store.recover_requests(&requests).await?;
        }
        Ok(())
    }
}

/// Divides posts into those that are written together.
fn together(posts: Vec<Post>) -> Vec<Vec<Post>> {
    let mut groups: Vec<Vec<Post>> = Vec::new();
    let mut entries = 0_u64;
    for post in posts {
        let Counts { likes, comments, reposts } = post.counts;
        let of_post = likes.saturating_add(comments).saturating_add(reposts);
        entries = entries.saturating_add(of_post);
        match groups.last_mut() {
            Some(group) if entries <= ENTRIES_TOGETHER => group.push(post),
            _ => {
                entries = of_post;
                groups.push(vec![post]);
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::post::Content;

    #[test]
    fn posts_with_long_lists_are_written_apart() {
        let post = |n: u64, likes| {
            let author = UserId::new(4).unwrap();
            let content = Content { author, text: String::new(), origin: None };
            let counts = Counts { likes, comments: 0, reposts: 0 };
            Post { id: PostId::new(n).unwrap(), content, counts, liked: false }
        };
        let likes = [20_000, 20_000, 10_000, 1, 60_000, 0, u64::MAX, 50_000];
        let posts = (1..).zip(likes).map(|(n, likes)| post(n, likes)).collect();
        let groups: Vec<Vec<_>> = together(posts)
            .iter()
            .map(|group| group.iter().map(|post| post.id.get()).collect())
            .collect();
        assert_eq!(groups, [vec![1, 2, 3], vec![4], vec![5], vec![6], vec![7], vec![8]]);
        assert!(together(Vec::new()).is_empty());
    }
}
