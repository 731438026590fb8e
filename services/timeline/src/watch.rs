//! `WatchHomeTimeline`: polls a home timeline while the caller consumes the stream. Nothing is
//! buffered: a slow or idle caller reads the missed posts from the timeline.

use std::time::Duration;

use futures::{Stream, stream};
use microblog_domain::{PageSize, UserId};
use tokio::time::{Instant, sleep};

use crate::{
    cursor::SeenPosts,
    error::Error,
    fanout_on_read::FetchDepth,
    list::{List, Page, PageQuery},
    reader::Reader,
    store::{Head, Store, Tail},
};

/// The poll interval: a post shows within a second of its delivery.
const POLL_PERIOD: Duration = Duration::from_millis(400);

/// In pull mode, the interval in which new followings are noticed.
const FOLLOWINGS_REFRESH: Duration = Duration::from_secs(5);

/// A watch of a home timeline.
pub(crate) struct Watch {
    reader: Reader,
    store: Store,
    user: UserId,
    // The next query.
    query: PageQuery,
    // The head at the last read; `None` without a cached home timeline.
    head: Option<Head>,
    // The pulled authors and their newest posts at the last read.
    pulled_authors: Vec<UserId>,
    tails: Vec<Tail>,
    read_at: Instant,
}

impl Watch {
    /// Starts a watch. Without `since`, starts at the current end.
    pub(crate) fn new(
        reader: Reader,
        store: Store,
        user: UserId,
        since: Option<SeenPosts>,
    ) -> Self {
        let query = PageQuery { size: PageSize::MAX, cursor: None, since };
        let (pulled_authors, tails, read_at) = (Vec::new(), Vec::new(), Instant::now());
        Self { reader, store, user, query, head: None, pulled_authors, tails, read_at }
    }

    /// Returns the stream of pages. The first one comes at once, even if it is empty; later ones
    /// are not empty.
    pub(crate) fn pages(self) -> impl Stream<Item = Result<Page, Error>> + Send {
        stream::unfold(Some((self, true)), |state| async move {
            let (mut watch, is_first) = state?;
            let page = if is_first { watch.first().await } else { watch.next().await };
            // The stream ends after an error. The caller resumes with its last `since_token`.
            let state = page.is_ok().then_some((watch, false));
            Some((page, state))
        })
    }

    async fn first(&mut self) -> Result<Page, Error> {
        let is_from_now_on = self.query.since.is_none();
        let mut page = self.read().await?;
        if is_from_now_on {
            page.entries.clear();
            self.query.cursor = None;
        }
        Ok(page)
    }

    async fn next(&mut self) -> Result<Page, Error> {
        loop {
            if self.query.cursor.is_none() {
                sleep(POLL_PERIOD).await;
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

    // Returns whether the timeline may have new posts: checks the head of the cache and the newest
    // post of each pulled author.
    async fn may_have_changed(&self) -> Result<bool, Error> {
        if self.head.is_none() && self.read_at.elapsed() > FOLLOWINGS_REFRESH {
            return Ok(true);
        }
        let head =
            async { if self.head.is_some() { self.store.head(self.user).await } else { Ok(None) } };
        let (head, tails) = tokio::join!(head, self.tails());
        Ok(head? != self.head || tails? != self.tails)
    }

    async fn tails(&self) -> Result<Vec<Tail>, Error> {
        Ok(self.store.tails(&self.pulled_authors, Some(1)).await?)
    }

    async fn read(&mut self) -> Result<Page, Error> {
        // Read before the snapshot, so the next poll notices concurrent posts. If the pulled
        // authors have changed, the next poll reads again.
        let tails = self.tails().await?;
        let snapshot = self.reader.snapshot(self.user, FetchDepth::Tails).await?;
        self.tails =
            if snapshot.pulled_authors == self.pulled_authors { tails } else { Vec::new() };
        (self.head, self.pulled_authors, self.read_at) =
            (snapshot.head, snapshot.pulled_authors, Instant::now());
        if self.query.since.is_some() && !snapshot.list.may_have_candidates(&self.query) {
            let page = Page::new(&self.query, Vec::new());
            (self.query.cursor, self.query.since) = (None, Some(page.seen.clone()));
            return Ok(page);
        }
        let page = self.reader.home(self.user, &self.query).await?;
        self.query = continued(&self.query, &page, &snapshot.list);
        Ok(page)
    }
}

// Returns the query that follows a page. `list` was read before the page.
fn continued(query: &PageQuery, page: &Page, list: &List) -> PageQuery {
    let mut since = query.since.clone();
    if page.next.is_none() || since.is_none() {
        let mut seen = page.seen.clone();
        // Hidden posts count as seen, so they do not make each poll read the timeline. Not those above
        // the page: they may have come after the pages before it.
        list.posts(query).into_iter().for_each(|post| seen.insert(post));
        since = Some(seen);
    }
    PageQuery { size: query.size, cursor: page.next.clone(), since }
}

#[cfg(test)]
mod tests {
    use microblog_domain::{PostId, UserId};

    use super::*;
    use crate::{entry::Entry, list::VisibleEntry};

    fn entry(post: u64) -> Entry {
        let (post, author) = (PostId::new(post).unwrap(), UserId::new(1).unwrap());
        Entry { post, author, root: None, has_text: true }
    }

    fn page(query: &PageQuery, posts: &[u64]) -> Page {
        let shown =
            posts.iter().map(|&post| VisibleEntry { entry: entry(post), suppressed: Vec::new() });
        Page::new(query, shown.collect())
    }

    fn list(posts: &[u64]) -> List {
        List::new(posts.iter().map(|&post| entry(post)).collect(), None)
    }

    #[test]
    fn a_post_that_comes_between_two_pages_is_new() {
        let first = PageQuery { size: 2, cursor: None, since: Some(SeenPosts::default()) };
        let second = continued(&first, &page(&first, &[4, 3, 1]), &list(&[4, 3, 2, 1]));
        assert!(second.cursor.is_some());
        // 2 is hidden.
        let next = continued(&second, &page(&second, &[1]), &list(&[5, 4, 3, 2, 1]));
        assert!(next.cursor.is_none());
        let is_new = |post| next.since.as_ref().unwrap().is_new(PostId::new(post).unwrap());
        assert_eq!([5, 4, 3, 2, 1].map(is_new), [true, false, false, false, false]);
    }
}
