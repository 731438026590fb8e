//! Reads timelines: collects candidate entries by both fan-outs and filters them by visibility.

use microblog_domain::{PostId, UserId};
use tokio::time::Instant;

use crate::{
    config::Mode,
    error::Error,
    fanout_on_read::{AuthorLists, FetchDepth},
    graph::Graph,
    home_cache::{HomeCache, WAIT_MAX},
    list::{HOME_MAX, List, Page, PageQuery, VisibleEntry},
    metrics::Metrics,
    store::{Head, Store},
    viewer_relations::{TimelineKind, ViewerRelations},
};

/// The timeline reader.
#[derive(Clone)]
pub(crate) struct Reader {
    authors: AuthorLists,
    graph: Graph,
    homes: HomeCache,
    mode: Mode,
}

/// The candidate entries of a home timeline.
pub(crate) struct HomeSnapshot {
    pub(crate) list: List,
    /// The head of the cached home timeline; `None` if it was not used.
    pub(crate) head: Option<Head>,
    /// Authors whose posts were fetched (fan-out on read).
    pub(crate) pulled_authors: Vec<UserId>,
    // No post is missing down to this one; `None` for the whole list.
    complete_down_to: Option<PostId>,
}

/// The visible entries of a part of a home timeline.
struct HomeWindow {
    shown: Vec<VisibleEntry>,
    // The oldest post of the timeline if it is at its maximum length.
    end: Option<PostId>,
    // The relations to the authors, and perhaps to others.
    viewer: ViewerRelations,
}

impl HomeSnapshot {
    // Returns whether no post is missing in the page that `shown` fills.
    fn has_all_of(&self, query: &PageQuery, shown: &[VisibleEntry]) -> bool {
        let is_full = shown.len() > query.size;
        let last = shown.get(query.size.saturating_sub(1)).filter(|_| is_full);
        self.complete_down_to.is_none_or(|sure| last.is_some_and(|last| last.entry.post >= sure))
    }
}

impl Reader {
    pub(crate) fn new(
        store: Store,
        graph: Graph,
        authors: AuthorLists,
        mode: Mode,
        metrics: Metrics,
    ) -> Self {
        let homes = HomeCache::new(store, graph.clone(), authors.clone(), metrics);
        Self { authors, graph, homes, mode }
    }

    /// Returns a page of a timeline.
    pub(crate) async fn timeline_page(
        &self,
        reader: UserId,
        kind: TimelineKind,
        query: &PageQuery,
    ) -> Result<Page, Error> {
        match kind {
            TimelineKind::Home => self.home(reader, query).await,
            TimelineKind::Friends => self.friends(reader, query).await,
        }
    }

    /// Returns the authors whose posts a timeline shows, of any number. Reads the list of followings
    /// or mutual followers, then makes one call of the relation service per 500 of them,
    /// concurrently.
    pub(crate) async fn authors(
        &self,
        reader: UserId,
        kind: TimelineKind,
    ) -> Result<Vec<UserId>, Error> {
        let (mut authors, _) = self.visible_authors(reader, kind).await?;
        if kind == TimelineKind::Home {
            authors.push(reader);
        }
        Ok(authors)
    }

    /// Returns a page of a home timeline.
    ///
    /// One round trip and one call of the relation service, unless many entries are hidden. Fan-out
    /// on read takes one more round trip. Building or backfilling the cache comes on top. At the
    /// end of a full cache, the cost is that of reading all followings.
    pub(crate) async fn home(&self, reader: UserId, query: &PageQuery) -> Result<Page, Error> {
        let HomeWindow { shown, end, viewer } =
            self.home_window(reader, query, query.size + 1).await?;
        Ok(page_of(query, shown, &viewer).with_older_than(query, end))
    }

    /// Counts new entries of a home timeline. If there are none, one round trip, or two with
    /// fan-out on read. Otherwise costs as much as reading a page.
    pub(crate) async fn count(&self, reader: UserId, query: &PageQuery) -> Result<usize, Error> {
        let snapshot = self.snapshot(reader, FetchDepth::Tails).await?;
        if !snapshot.list.may_have_candidates(query) {
            return Ok(0);
        }
        Ok(self.home_window(reader, query, HOME_MAX).await?.shown.len())
    }

    /// Returns a page of the friends timeline: posts of mutual followers. Costs as much as a home
    /// timeline by fan-out on read.
    ///
    /// Blocked and muted authors are removed before the list is truncated to its maximum length, so
    /// their posts take no place in it.
    async fn friends(&self, reader: UserId, query: &PageQuery) -> Result<Page, Error> {
        let (mutuals, mut viewer) = self.visible_authors(reader, TimelineKind::Friends).await?;
        let count = query.size + 1;
        for depth in [FetchDepth::Tails, FetchDepth::Full] {
            let list = self.authors.list(&mutuals, depth).await?;
            if let Some(shown) = self.visible_entries(&list, &mut viewer, query, count).await? {
                let end = list.oldest_if_full(HOME_MAX);
                return Ok(page_of(query, shown, &viewer).with_older_than(query, end));
            }
        }
        Ok(Page::new(query, Vec::new()))
    }

    /// Returns the candidate entries of a home timeline, for comparison with an earlier snapshot.
    pub(crate) async fn snapshot(
        &self,
        reader: UserId,
        depth: FetchDepth,
    ) -> Result<HomeSnapshot, Error> {
        self.snapshot_until(reader, depth, Instant::now() + WAIT_MAX).await
    }

    async fn snapshot_until(
        &self,
        reader: UserId,
        depth: FetchDepth,
        deadline: Instant,
    ) -> Result<HomeSnapshot, Error> {
        if self.mode == Mode::Pull || depth == FetchDepth::AllFollowings {
            return self.fan_out_on_read(reader, depth).await;
        }
        let home = match self.homes.get(reader, deadline).await {
            // At Redis' memory limit, no home timeline can be built.
            Err(error) if error.is_full() => return self.fan_out_on_read(reader, depth).await,
            home => home?,
        };
        let list = match &home.pulled_authors[..] {
            [] => List::default(),
            pulled_authors => self.authors.list(pulled_authors, depth).await?,
        };
        let complete_down_to = home.complete_down_to();
        let mut entries = home.entries;
        entries.reverse();
        Ok(HomeSnapshot {
            list: list.with(entries),
            head: Some(home.head),
            pulled_authors: home.pulled_authors,
            complete_down_to,
        })
    }

    // Returns the followings or mutual followers whose posts are visible, with the relations to all
    // of them.
    async fn visible_authors(
        &self,
        reader: UserId,
        kind: TimelineKind,
    ) -> Result<(Vec<UserId>, ViewerRelations), Error> {
        let mut authors = match kind {
            TimelineKind::Home => self.graph.followings(reader, 0).await?.authors,
            TimelineKind::Friends => self.graph.mutuals(reader).await?,
        };
        let mut viewer = ViewerRelations::new(reader, kind);
        viewer.load(&self.graph, authors.clone()).await?;
        authors.retain(|&author| viewer.is_author_visible(author));
        Ok((authors, viewer))
    }

    // Collects a home timeline from the user timelines of all followings. Stores nothing.
    async fn fan_out_on_read(
        &self,
        reader: UserId,
        depth: FetchDepth,
    ) -> Result<HomeSnapshot, Error> {
        let mut authors = self.graph.followings(reader, 0).await?.authors;
        authors.push(reader);
        let list = self.authors.list(&authors, depth).await?;
        Ok(HomeSnapshot { list, head: None, pulled_authors: authors, complete_down_to: None })
    }

    // Returns up to `count` visible entries of a home timeline, from the cursor on.
    async fn home_window(
        &self,
        reader: UserId,
        query: &PageQuery,
        count: usize,
    ) -> Result<HomeWindow, Error> {
        let deadline = Instant::now() + WAIT_MAX;
        let mut viewer = ViewerRelations::new(reader, TimelineKind::Home);
        // After a backfill, the cache has all follows that `viewer` may reflect.
        let (mut depth, mut is_backfilled, mut is_rebuilt) = (FetchDepth::Tails, false, false);
        // Reads of new entries, and counts, do not continue below the end of the cache.
        let is_scroll = query.since.is_none() && count > query.size;
        loop {
            let snapshot = self.snapshot_until(reader, depth, deadline).await?;
            let shown = self.visible_entries(&snapshot.list, &mut viewer, query, count).await?;
            let is_old = |head: &Head| head.version < viewer.version() && !is_backfilled;
            if let Some(head) = snapshot.head.filter(is_old) {
                is_backfilled = match self.homes.backfill(reader, head.edition).await {
                    // At Redis' memory limit, a backfill is impossible.
                    Err(error) if error.is_full() => {
                        depth = FetchDepth::AllFollowings;
                        continue;
                    }
                    is_backfilled => is_backfilled?,
                };
                if !is_backfilled && Instant::now() >= deadline {
                    return Err(Error::BeingBuilt);
                }
                continue;
            }
            let Some(shown) = shown else {
                depth = FetchDepth::Full;
                continue;
            };
            let unfollowed_head = snapshot.head.filter(|_| viewer.has_unfollowed() && !is_rebuilt);
            if is_scroll && !snapshot.has_all_of(query, &shown) {
                unfollowed_head
                    .into_iter()
                    .for_each(|head| self.homes.rebuild_in_background(reader, head.edition));
                depth = FetchDepth::AllFollowings;
                continue;
            }
            let Some(head) = unfollowed_head else {
                return Ok(HomeWindow {
                    shown,
                    end: snapshot.list.oldest_if_full(HOME_MAX),
                    viewer,
                });
            };
            if shown.len() >= count {
                self.homes.rebuild_in_background(reader, head.edition);
                return Ok(HomeWindow { shown, end: None, viewer });
            }
            // After the rebuild, older posts may take the places of unfollowed authors' posts.
            is_rebuilt = true;
            match self.homes.rebuild(reader, head.edition).await {
                Err(error) if error.is_full() => depth = FetchDepth::AllFollowings,
                rebuilt => rebuilt?,
            }
        }
    }

    // Returns up to `count` visible entries from the cursor on; `None` if more of the list must be
    // fetched. Loads the relations of a few more authors than a page needs, and of more only if the
    // page is not full.
    async fn visible_entries(
        &self,
        list: &List,
        viewer: &mut ViewerRelations,
        query: &PageQuery,
        count: usize,
    ) -> Result<Option<Vec<VisibleEntry>>, Error> {
        let mut candidates = count + count / 4;
        loop {
            let Some(window) = list.window(query, candidates) else {
                viewer.load(&self.graph, Vec::new()).await?;
                return Ok(None);
            };
            viewer.load(&self.graph, list.authors(&window, viewer.reader)).await?;
            let mut shown = list.visible(&window, query, |entry| viewer.is_visible(entry));
            if window.is_all || shown.len() >= count {
                shown.truncate(count);
                return Ok(Some(shown));
            }
            candidates *= 2;
        }
    }
}

// Returns the page for a query, with the relations of its authors.
fn page_of(query: &PageQuery, shown: Vec<VisibleEntry>, viewer: &ViewerRelations) -> Page {
    let page = Page::new(query, shown);
    Page { relations: viewer.relations(&page.entries), ..page }
}
