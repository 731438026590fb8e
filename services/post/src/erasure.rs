//! The eraser: removes the likes and comments that deleted accounts left on other accounts' posts.
//!
//! Redis has no index of likes and comments by account, since every like would pay for it. One walk
//! over all posts in Redis removes the entries of all accounts that are due when it begins. The
//! archive has such an index.
//!
//! One replica executes a run at a time; another one may resume it. Its stages:
//!
//! 1. *Begun*: the posts of the accounts are deleted, and no call of theirs is in flight. Their
//!    posts and comments have been rejected since, and their tokens are revoked, so no new entries
//!    appear. The run and its accounts are stored.
//! 2. *Fenced*: no post leaves Redis, in any partition.
//! 3. *Archive*: the likes and comments of the accounts are deleted, in one transaction with the
//!    counts.
//! 4. *Walked*, for each partition, behind a second fence. A restore that began before the fence
//!    may have read rows from before stage 3, and must retry. The walk visits all listed posts and
//!    all evictable ones; then the fence is lifted.
//! 5. *Done*: the deletion of the accounts is complete.
//!
//! A post that is in the archive during stage 3 is erased there, and a restore brings back the
//! erased state. A post in Redis stays there until the walk has visited it. An evictor that began
//! before stage 2 may still write a snapshot; that post stays in Redis, and a later snapshot
//! replaces it. Each stage may be repeated.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_domain::{CommentId, Partition, PostId, Stamp, UserId};
use microblog_keyspace::{Entry, Order};
use uuid::Uuid;

use crate::{
    archive::Archive,
    error::Error,
    store::{ErasureRun, ErasureStage, Fence, List, post_ids},
    tiered_store::TieredStore,
};

/// The most accounts of one run: each liked post is searched for all of them.
const ACCOUNTS_MAX: usize = 500;

/// The page size of posts, and of comments on one post.
const PAGE: usize = 500;

/// How many of each author's newest posts are read together with those of other authors.
const AUTHOR_PAGE: usize = 100;

/// The number of posts whose comments are read concurrently.
const POSTS_AT_ONCE: usize = 8;

/// Erases what deleted accounts wrote.
#[derive(Clone)]
pub struct Eraser {
    tiered: TieredStore,
    grace: Duration,
}

impl Eraser {
    /// Returns an eraser for accounts that were deleted at least `grace` ago.
    pub fn new(tiered: TieredStore, grace: Duration) -> Self {
        Self { tiered, grace }
    }

    /// Resumes the current run, or begins one if accounts are due. Returns whether there was work.
    pub async fn run_once(&self) -> Result<bool, Error> {
        let store = self.tiered.store();
        let mut run = match store.erasure().await? {
            Some(run) => run,
            None => match self.begin().await? {
                Some(run) => run,
                None => return Ok(false),
            },
        };
        if run.stage == ErasureStage::Begun {
            self.erase_archived(&run).await?;
            run.stage = ErasureStage::Walking(Partition::new(0));
            store.save_erasure(&run).await?;
        }
        while let ErasureStage::Walking(partition) = run.stage {
            self.walk(partition, &run).await?;
            run.stage = match partition.number() + 1 {
                Partition::COUNT => ErasureStage::Walked,
                next => ErasureStage::Walking(Partition::new(next)),
            };
            store.save_erasure(&run).await?;
        }
        for &account in &run.accounts {
            store.finish_forgetting(account).await?;
        }
        store.delete_erasure().await?;
        Ok(true)
    }

    async fn begin(&self) -> Result<Option<ErasureRun>, Error> {
        let marked = self.tiered.store().forgetting_since().await?;
        let due = marked.into_iter().filter(|&(_, since)| age(since) >= self.grace);
        let due: Vec<_> = due.map(|(account, _)| account).collect();
        // An account whose posts still exist could not be completed.
        let have_posts = self.tiered.store().have_lists(&due).await?;
        let accounts = due.into_iter().zip(have_posts).filter(|(_, has_posts)| !has_posts);
        let accounts: Vec<_> = accounts.map(|(account, _)| account).take(ACCOUNTS_MAX).collect();
        if accounts.is_empty() {
            return Ok(None);
        }
        let run = ErasureRun { id: Uuid::new_v4(), stage: ErasureStage::Begun, accounts };
        self.tiered.store().save_erasure(&run).await?;
        Ok(Some(run))
    }

    async fn archive(&self) -> Result<Option<&Archive>, Error> {
        // If there ever was an archive, erasing requires it.
        let is_needed = || self.tiered.store().has_archive();
        match self.tiered.archive() {
            Ok(archive) => Ok(Some(archive)),
            Err(missing) => {
                if is_needed().await? {
                    Err(missing)
                } else {
                    Ok(None)
                }
            }
        }
    }

    async fn erase_archived(&self, run: &ErasureRun) -> Result<(), Error> {
        let Some(archive) = self.archive().await? else { return Ok(()) };
        let partitions: Vec<_> = Partition::all().collect();
        self.tiered.store().fence(&partitions, run.id, Fence::Archive).await?;
        for &account in &run.accounts {
            while archive.erase_likes(account, PAGE).await? > 0 {}
            while archive.erase_comments(account, PAGE).await? > 0 {}
        }
        Ok(())
    }

    // Visits all posts of a partition that are in Redis.
    async fn walk(&self, partition: Partition, run: &ErasureRun) -> Result<(), Error> {
        let store = self.tiered.store();
        store.fence(&[partition], run.id, Fence::Walk).await?;
        let mut cursor = 0;
        loop {
            let (next, authors) = store.authors(partition, cursor).await?;
            for authors in authors.chunks(AUTHOR_PAGE) {
                self.erase_from_lists(authors, run).await?;
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
        // After the lists, since posts move from the lists to here. Scores of posts in this set
        // only grow.
        let mut after = None;
        loop {
            let page = store.evictable_page(partition, after, PAGE).await?;
            self.erase_from_posts(&post_ids(&page.entries), run).await?;
            after = page.entries.last().copied();
            if !page.more {
                break;
            }
        }
        store.fence(&[partition], run.id, Fence::Lifted).await?;
        Ok(())
    }

    // Visits the listed posts of some authors.
    async fn erase_from_lists(&self, authors: &[UserId], run: &ErasureRun) -> Result<(), Error> {
        let store = self.tiered.store();
        let pages = store.newest_of_each(authors, None, AUTHOR_PAGE).await?;
        let newest: Vec<_> = pages.iter().flatten().copied().filter_map(PostId::new).collect();
        self.erase_from_posts(&newest, run).await?;
        for (&author, page) in
            authors.iter().zip(&pages).filter(|(_, page)| page.len() == AUTHOR_PAGE)
        {
            let mut after = page.last().map(|&id| Entry { member: id, score: id });
            loop {
                let page = store.posts_of(author, after, PAGE).await?;
                self.erase_from_posts(&post_ids(&page.entries), run).await?;
                after = page.entries.last().copied();
                if !page.more {
                    break;
                }
            }
        }
        Ok(())
    }

    // Removes the likes and comments of the accounts from posts.
    async fn erase_from_posts(&self, posts: &[PostId], run: &ErasureRun) -> Result<(), Error> {
        let store = self.tiered.store();
        let accounts: &HashSet<UserId> = &run.accounts.iter().copied().collect();
        for posts in posts.chunks(PAGE) {
            let reactions = store.reactions(posts).await?;
            let posts_with = |which: fn(&(u64, u64)) -> bool| {
                let found = posts.iter().zip(&reactions).filter(move |(_, counts)| which(counts));
                found.map(|(&id, _)| id).collect::<Vec<_>>()
            };
            let (liked, commented) =
                (posts_with(|counts| counts.0 > 0), posts_with(|counts| counts.1 > 0));
            store.erase_likes(&liked, &run.accounts).await?;
            let erase = |id| async move { self.erase_comments(id, accounts).await };
            let erased = stream::iter(commented.into_iter().map(erase));
            erased.buffer_unordered(POSTS_AT_ONCE).try_collect::<()>().await?;
        }
        Ok(())
    }

    async fn erase_comments(&self, post: PostId, by: &HashSet<UserId>) -> Result<(), Error> {
        let (store, mut after) = (self.tiered.store(), None);
        loop {
            let page = store.list(List::Comments(Order::Oldest), post, after, PAGE).await?;
            let key = |entry: &Entry| Some((post, CommentId::new(entry.member)?));
            let keys: Vec<_> = page.entries.iter().filter_map(key).collect();
            for comment in store.comments(&keys).await? {
                if by.contains(&comment.content.author) {
                    store.delete_comment(post, comment.id).await?;
                }
            }
            after = page.entries.last().copied();
            if !page.more {
                return Ok(());
            }
        }
    }
}

/// Returns the age of a stamp.
fn age(stamp: u64) -> Duration {
    let since = Stamp::new(stamp).map_or(SystemTime::UNIX_EPOCH, Stamp::time);
    SystemTime::now().duration_since(since).unwrap_or_default()
}
