//! Watching a home timeline: a look at it each time the caller takes a message, and some moments
//! between looks. Nothing is kept for a caller who does not listen, and no post is kept for one who
//! listens slowly: what came meanwhile is in the timeline.

use std::time::Duration;

use futures::{Stream, stream};
use microblog_domain::{PageSize, UserId};
use tokio::time::{Instant, sleep};

use crate::{
    error::Error,
    list::{Page, Wanted},
    pull::Depth,
    reader::Reader,
    seen::Seen,
    store::{Head, Store, Tail},
};

/// Between two looks: a post shows within a second of its delivery.
const PERIOD: Duration = Duration::from_millis(400);

/// Where all is pulled: how soon somebody is heard of who is followed while one watches.
const FOLLOWINGS_MAX: Duration = Duration::from_secs(5);

/// A home timeline that is watched.
pub(crate) struct Watch {
    reader: Reader,
    store: Store,
    user: UserId,
    // What is read next.
    wanted: Wanted,
    // As it was when it was last read; `None` where none is kept.
    head: Option<Head>,
    // Whose posts are fetched, and where those ended.
    pulls: Vec<UserId>,
    ends: Vec<Tail>,
    read_at: Instant,
}

impl Watch {
    /// Begins to watch. Without `since`, for what comes from now on.
    pub(crate) fn new(reader: Reader, store: Store, user: UserId, since: Option<Seen>) -> Self {
        let wanted = Wanted { size: PageSize::MAX, place: None, since };
        let (pulls, ends, read_at) = (Vec::new(), Vec::new(), Instant::now());
        Self { reader, store, user, wanted, head: None, pulls, ends, read_at }
    }

    /// Returns what comes: first what came since, at once, even if it is nothing, and then each time
    /// there is something.
    pub(crate) fn pages(self) -> impl Stream<Item = Result<Page, Error>> + Send {
        stream::unfold(Some((self, true)), |state| async move {
            let (mut watch, is_first) = state?;
            let page = if is_first { watch.first().await } else { watch.next().await };
            // After a failure, the caller begins anew, with the token of the last message.
            let state = page.is_ok().then_some((watch, false));
            Some((page, state))
        })
    }

    async fn first(&mut self) -> Result<Page, Error> {
        let is_from_now_on = self.wanted.since.is_none();
        let mut page = self.read().await?;
        if is_from_now_on {
            page.entries.clear();
            self.wanted.place = None;
        }
        Ok(page)
    }

    async fn next(&mut self) -> Result<Page, Error> {
        loop {
            if self.wanted.place.is_none() {
                sleep(PERIOD).await;
                if !self.may_have_changed().await? {
                    continue;
                }
            }
            let page = self.read().await?;
            if !page.entries.is_empty() {
                return Ok(page);
            }
        }
    }

    // Whether it is worth the while to read the timeline: one small look for each place where posts
    // come to it.
    async fn may_have_changed(&self) -> Result<bool, Error> {
        if self.head.is_none() && self.read_at.elapsed() > FOLLOWINGS_MAX {
            return Ok(true);
        }
        let head =
            async { if self.head.is_some() { self.store.head(self.user).await } else { Ok(None) } };
        let (head, ends) = tokio::join!(head, self.ends());
        Ok(head? != self.head || ends? != self.ends)
    }

    async fn ends(&self) -> Result<Vec<Tail>, Error> {
        Ok(self.store.tails(&self.pulls, Some(1)).await?)
    }

    async fn read(&mut self) -> Result<Page, Error> {
        // First, so that what comes meanwhile is a change the next time; so is everything, where
        // others are pulled from than before.
        let ends = self.ends().await?;
        let source = self.reader.source(self.user, Depth::Tails).await?;
        self.ends = if source.pulls == self.pulls { ends } else { Vec::new() };
        (self.head, self.pulls, self.read_at) = (source.head, source.pulls, Instant::now());
        if self.wanted.since.is_some() && !source.list.has_any(&self.wanted) {
            let page = Page::new(&self.wanted, Vec::new());
            (self.wanted.place, self.wanted.since) = (None, Some(page.seen.clone()));
            return Ok(page);
        }
        let page = self.reader.home(self.user, &self.wanted).await?;
        self.wanted.place.clone_from(&page.next);
        if page.next.is_none() || self.wanted.since.is_none() {
            let mut seen = page.seen.clone();
            // What is hidden does not make every look a long one.
            source.list.posts(&self.wanted).into_iter().for_each(|post| seen.note(post));
            self.wanted.since = Some(seen);
        }
        Ok(page)
    }
}
