//! Fan-out on read (pull): merges the user timelines of several authors.

use std::sync::Arc;

use microblog_domain::UserId;
use tokio::sync::Semaphore;

use crate::{
    author_posts::{AuthorPosts, PostLists},
    entry::{Entry, newest},
    error::Error,
    list::{HOME_MAX, List},
    store::{Store, Tail},
};

/// The total number of posts to fetch first, at 10 to 50 for each author: a few pages of a home
/// timeline.
const TAILS: usize = 20_000;

/// How far down user timelines are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchDepth {
    /// The newest posts of each author.
    Tails,
    /// The newest posts of all authors together, up to the maximum length.
    Full,
    /// As `Full`, for all followings, including those with fan-out on write.
    AllFollowings,
}

/// Completions of user timelines at once, in a worker thread. Callers that wait for one often find
/// their authors completed by it.
const COMPLETIONS_AT_ONCE: usize = 4;

/// The user timelines of authors. Where Redis has lost one, the post service has its posts.
#[derive(Clone)]
pub(crate) struct AuthorLists {
    store: Store,
    posts: Option<PostLists>,
    permits: Arc<Semaphore>,
}

impl AuthorLists {
    /// Without `posts`, posts are missing that Redis does not have.
    pub(crate) fn new(store: Store, posts: Option<PostLists>) -> Self {
        Self { store, posts, permits: Arc::new(Semaphore::new(COMPLETIONS_AT_ONCE)) }
    }

    /// Returns the merged posts of authors. One round trip to each partition, all concurrent, and
    /// at most one more for more than tails.
    pub(crate) async fn list(&self, authors: &[UserId], depth: FetchDepth) -> Result<List, Error> {
        if depth != FetchDepth::Tails {
            return Ok(List::new(self.newest_of(authors, HOME_MAX).await?, None));
        }
        let tails = self.tails(authors, Some(tail(authors))).await?;
        let known_down_to = tails.iter().filter_map(|tail| tail.known_down_to).max();
        Ok(List::new(tails.into_iter().flat_map(|tail| tail.entries).collect(), known_down_to))
    }

    /// Returns the newest posts of authors, up to `max`, newest first. Fetches tails first, then
    /// the whole timelines of those authors that may have more among the newest, and at last their
    /// posts from the post service if the timelines lack some.
    pub(crate) async fn newest_of(
        &self,
        authors: &[UserId],
        max: usize,
    ) -> Result<Vec<Entry>, Error> {
        let tails = self.tails(authors, Some(tail(authors))).await?;
        let found =
            newest(tails.iter().flat_map(|tail| tail.entries.iter().copied()).collect(), max);
        let prolific = lacking(authors, &tails, &found, max);
        if prolific.is_empty() {
            return Ok(found);
        }
        let (incomplete, found) = self.whole(&prolific, found, max).await?;
        let Some(posts) = self.posts.as_ref().filter(|_| !incomplete.is_empty()) else {
            return Ok(found);
        };
        // Never closed.
        let _permit = self.permits.acquire().await;
        // Another caller may have completed them meanwhile.
        let (incomplete, mut found) = self.whole(&incomplete, found, max).await?;
        for batch in posts.newest(&incomplete).await? {
            self.complete(&batch).await?;
            found.extend(batch.entries);
        }
        Ok(newest(found, max))
    }

    async fn tails(&self, authors: &[UserId], count: Option<usize>) -> Result<Vec<Tail>, Error> {
        let mut tails = self.store.tails(authors, count).await?;
        // Nothing else has posts of timelines that are in Redis only.
        if self.posts.is_none() {
            tails.iter_mut().filter(|tail| tail.is_all).for_each(|tail| tail.known_down_to = None);
        }
        Ok(tails)
    }

    // Returns the newest posts with the whole timelines of some authors, and those authors of which
    // posts may still be missing.
    async fn whole(
        &self,
        authors: &[UserId],
        mut found: Vec<Entry>,
        max: usize,
    ) -> Result<(Vec<UserId>, Vec<Entry>), Error> {
        let whole = self.tails(authors, None).await?;
        found.extend(whole.iter().flat_map(|tail| tail.entries.iter().copied()));
        let found = newest(found, max);
        Ok((lacking(authors, &whole, &found, max), found))
    }

    // Any order with the delivery of a post is right. The post service lists a post before it is
    // delivered, and both steps only add posts. So a post is in the list that was read, or its
    // delivery adds it, before or after.
    async fn complete(&self, posts: &AuthorPosts) -> Result<(), Error> {
        let AuthorPosts { authors, entries, known_down_to } = posts;
        match self.store.complete(authors, entries, *known_down_to).await {
            // At Redis' memory limit, the next read asks the post service again.
            Err(error) if error.is_full() => Ok(()),
            done => Ok(done?),
        }
    }
}

// Returns the authors that may have more posts among the newest `max` than was found.
fn lacking(authors: &[UserId], tails: &[Tail], found: &[Entry], max: usize) -> Vec<UserId> {
    let oldest = found.get(max - 1).map(|entry| entry.post);
    let lacks = |tail: &Tail| {
        tail.known_down_to.is_some_and(|known| oldest.is_none_or(|oldest| known > oldest))
    };
    let authors = authors.iter().zip(tails);
    authors.filter_map(|(&author, tail)| lacks(tail).then_some(author)).collect()
}

fn tail(authors: &[UserId]) -> usize {
    (TAILS / authors.len().max(1)).clamp(10, 50)
}
