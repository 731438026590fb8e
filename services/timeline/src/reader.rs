//! Reading timelines: where their entries come from, and which of them a reader sees.

use microblog_domain::{PostId, UserId};
use tokio::time::Instant;

use crate::{
    circle::{Circle, Sight},
    config::Mode,
    entry::newest_first,
    error::Error,
    graph::Graph,
    homes::{self, Homes, WAIT_MAX},
    list::{HOME_MAX, List, Page, Shown, USER_MAX, Wanted},
    metrics::Metrics,
    pull::{self, Depth},
    store::{Head, Store},
};

/// Reads timelines.
#[derive(Clone)]
pub(crate) struct Reader {
    store: Store,
    graph: Graph,
    homes: Homes,
    mode: Mode,
}

/// A home timeline as far as it was read.
pub(crate) struct Source {
    pub(crate) list: List,
    /// What stands at the beginning of the one that is kept; `None` where none is.
    pub(crate) head: Option<Head>,
    /// Whose posts were fetched.
    pub(crate) pulls: Vec<UserId>,
    // Down to which post nothing is missing in it, if not to its end.
    sure_to: Option<PostId>,
}

/// What is shown of a home timeline.
struct HomePart {
    shown: Vec<Shown>,
    // The post at which the timeline ends for want of room, if it does.
    end: Option<PostId>,
    // Those who wrote it, and perhaps others.
    circle: Circle,
}

impl Source {
    // Returns whether nothing is missing in it above the end of a page, of which so much is shown.
    fn has_all_of(&self, wanted: &Wanted, shown: &[Shown]) -> bool {
        let is_full = shown.len() > wanted.size;
        let last = shown.get(wanted.size.saturating_sub(1)).filter(|_| is_full);
        self.sure_to.is_none_or(|sure| last.is_some_and(|last| last.entry.post >= sure))
    }
}

impl Reader {
    pub(crate) fn new(store: Store, graph: Graph, mode: Mode, metrics: Metrics) -> Self {
        let homes = Homes::new(store.clone(), graph.clone(), metrics);
        Self { store, graph, homes, mode }
    }

    /// Returns a page of an author's own posts. One round trip.
    pub(crate) async fn user(&self, author: UserId, wanted: &Wanted) -> Result<Page, Error> {
        let tails = self.store.tails(&[author], None).await?;
        let entries = tails.into_iter().flat_map(|tail| tail.entries).collect();
        let list = List::of_author(entries);
        Ok(Page::new(wanted, list.all(wanted)).ending_at(wanted, list.end(USER_MAX)))
    }

    /// Returns a page of a home timeline.
    ///
    /// One round trip, one more where the posts of some authors are pulled, and one call of
    /// relation, unless much of the timeline is hidden. Building and completing it come on top; and
    /// towards the end of a full one, as much as to read it by pull.
    pub(crate) async fn home(&self, reader: UserId, wanted: &Wanted) -> Result<Page, Error> {
        let HomePart { shown, end, circle } =
            self.home_from(reader, wanted, wanted.size + 1).await?;
        Ok(page_of(wanted, shown, &circle).ending_at(wanted, end))
    }

    /// Counts what is new in a home timeline. One round trip, or two where the posts of some
    /// authors are pulled, if there is nothing; otherwise as much as to read it.
    pub(crate) async fn count(&self, reader: UserId, wanted: &Wanted) -> Result<usize, Error> {
        let source = self.source(reader, Depth::Tails).await?;
        if !source.list.has_any(wanted) {
            return Ok(0);
        }
        Ok(self.home_from(reader, wanted, HOME_MAX).await?.shown.len())
    }

    /// Returns a page of the posts of a user's mutuals. As much as to read a home timeline by pull.
    ///
    /// The list is cut to the newest posts after those whom the reader does not see are left out:
    /// none of them takes the place of another's post.
    pub(crate) async fn friends(&self, reader: UserId, wanted: &Wanted) -> Result<Page, Error> {
        let mut mutuals = self.graph.mutuals(reader).await?;
        let mut circle = Circle::new(reader, Sight::Mutuals);
        circle.ask(&self.graph, mutuals.clone()).await?;
        mutuals.retain(|&author| circle.sees(author));
        let count = wanted.size + 1;
        for depth in [Depth::Tails, Depth::Whole] {
            let list = pull::list(&self.store, &mutuals, depth).await?;
            if let Some(shown) = self.shown(&list, &mut circle, wanted, count).await? {
                let end = list.end(HOME_MAX);
                return Ok(page_of(wanted, shown, &circle).ending_at(wanted, end));
            }
        }
        Ok(Page::new(wanted, Vec::new()))
    }

    /// Returns what there is of a home timeline, for whoever compares it with what was there.
    pub(crate) async fn source(&self, reader: UserId, depth: Depth) -> Result<Source, Error> {
        self.source_until(reader, depth, Instant::now() + WAIT_MAX).await
    }

    async fn source_until(
        &self,
        reader: UserId,
        depth: Depth,
        give_up: Instant,
    ) -> Result<Source, Error> {
        if self.mode == Mode::Pull || depth == Depth::Everybody {
            return self.pulled(reader, depth).await;
        }
        let home = match self.homes.get(reader, give_up).await {
            // No room to build one.
            Err(error) if error.is_full() => return self.pulled(reader, depth).await,
            home => home?,
        };
        let list = match &home.pulls[..] {
            [] => List::default(),
            pulls => pull::list(&self.store, pulls, depth).await?,
        };
        let entries = newest_first(home.entries);
        let sure_to = homes::sure_to(&home.head, &entries);
        Ok(Source { list: list.with(entries), head: Some(home.head), pulls: home.pulls, sure_to })
    }

    // A home timeline out of the timelines of those who are followed. Stores nothing.
    async fn pulled(&self, reader: UserId, depth: Depth) -> Result<Source, Error> {
        let mut authors = self.graph.followings(reader, 0).await?.authors;
        authors.push(reader);
        let list = pull::list(&self.store, &authors, depth).await?;
        Ok(Source { list, head: None, pulls: authors, sure_to: None })
    }

    // Returns up to `count` entries of a home timeline that are shown, from where a page begins.
    async fn home_from(
        &self,
        reader: UserId,
        wanted: &Wanted,
        count: usize,
    ) -> Result<HomePart, Error> {
        let give_up = Instant::now() + WAIT_MAX;
        let mut circle = Circle::new(reader, Sight::Followings);
        // Once it was completed for this read, it has all follows that the circle may know of.
        let (mut depth, mut is_complete, mut is_clean) = (Depth::Tails, false, false);
        // Who asks what is new, or how much there is, does not go on behind the end.
        let is_scroll = wanted.since.is_none() && count > wanted.size;
        loop {
            let source = self.source_until(reader, depth, give_up).await?;
            let shown = self.shown(&source.list, &mut circle, wanted, count).await?;
            let is_old = |head: &Head| head.version < circle.version() && !is_complete;
            if let Some(head) = source.head.filter(is_old) {
                is_complete = match self.homes.complete(reader, head.edition).await {
                    // No room for what is missing in it.
                    Err(error) if error.is_full() => {
                        depth = Depth::Everybody;
                        continue;
                    }
                    is_complete => is_complete?,
                };
                if !is_complete && Instant::now() >= give_up {
                    return Err(Error::BeingBuilt);
                }
                continue;
            }
            let Some(shown) = shown else {
                depth = Depth::Whole;
                continue;
            };
            let strange = source.head.filter(|_| circle.has_strangers() && !is_clean);
            if is_scroll && !source.has_all_of(wanted, &shown) {
                strange.into_iter().for_each(|head| self.homes.clean_later(reader, head.edition));
                depth = Depth::Everybody;
                continue;
            }
            let Some(head) = strange else {
                return Ok(HomePart { shown, end: source.list.end(HOME_MAX), circle });
            };
            if shown.len() >= count {
                self.homes.clean_later(reader, head.edition);
                return Ok(HomePart { shown, end: None, circle });
            }
            // Where strangers had the places, there may be more.
            is_clean = true;
            match self.homes.clean(reader, head.edition).await {
                Err(error) if error.is_full() => depth = Depth::Everybody,
                cleaned => cleaned?,
            }
        }
    }

    // Returns up to `count` entries that are shown, from where a page begins; `None` where more of
    // the list must be known. Asks about a few more authors than a page has, and about more only
    // where that does not fill it.
    async fn shown(
        &self,
        list: &List,
        circle: &mut Circle,
        wanted: &Wanted,
        count: usize,
    ) -> Result<Option<Vec<Shown>>, Error> {
        let mut candidates = count + count / 4;
        loop {
            let Some(part) = list.part(wanted, candidates) else {
                circle.ask(&self.graph, Vec::new()).await?;
                return Ok(None);
            };
            circle.ask(&self.graph, list.authors(&part, circle.reader)).await?;
            let mut shown = list.shown(&part, wanted, |entry| circle.is_visible(entry));
            if part.is_all || shown.len() >= count {
                shown.truncate(count);
                return Ok(Some(shown));
            }
            candidates *= 2;
        }
    }
}

// Returns the page that was wanted, with how those who wrote it stand to its reader.
fn page_of(wanted: &Wanted, shown: Vec<Shown>, circle: &Circle) -> Page {
    let page = Page::new(wanted, shown);
    Page { relations: circle.relations(&page.entries), ..page }
}
