//! Home timelines as they are kept for active readers: built when first read, completed after a
//! follow, cleaned after an unfollow. They are a cache: whoever reads them checks each author
//! against the follow graph.
//!
//! What must hold, whoever else writes at the same time and whoever dies in between:
//!
//! 1. From when a home timeline is there, every post of an author who is followed and not pulled is
//!    in it, or is pushed into it yet, or its author's follow is newer than the timeline's version.
//! 2. An author who is followed and pulled is among its pulls, or is being added there yet, or the
//!    follow is newer than the version.
//!
//! So a version is never greater than that up to which the author's side knows of the follows: as
//! long as it does not, fan-outs pass the follower by, and each read looks for itself.
//!
//! For that, the key is made before its builder reads anything, and a post is in its author's
//! timeline before its fan-out begins: it is either read here or pushed into the key that is there.
//! A replacement is for one edition and keeps what came since that began; who asks for an edition
//! that somebody else replaced, begins again.

use std::{sync::Arc, time::Duration};

use microblog_domain::{PostId, UserId};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

use crate::{
    entry::{Entry, newest, newest_first},
    error::Error,
    graph::Graph,
    list::HOME_MAX,
    metrics::{Build, Metrics},
    pull,
    store::{Begun, Head, Home, Replacement, State, Store},
};

/// How long a reader waits for a home timeline to be built: longer than until a builder counts as
/// dead, less than a caller waits.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(7);

/// Between two looks whether a home timeline is built.
const WAIT_STEP: Duration = Duration::from_millis(20);

/// For one build, whether its reader waits or not.
const BUILD_MAX: Duration = Duration::from_secs(10);

/// How many home timelines a worker thread builds at once: each takes some megabytes for a reader
/// who follows thousands.
const BUILDS_AT_ONCE: usize = 16;

/// Among how many of its oldest posts a full home timeline may lack some.
const UNSURE: usize = 200;

/// The home timelines of active readers.
#[derive(Clone)]
pub(crate) struct Homes {
    store: Store,
    graph: Graph,
    metrics: Metrics,
    room: Arc<Semaphore>,
}

/// What authors bring into a home timeline.
struct Brought {
    entries: Vec<Entry>,
    pulls: Vec<UserId>,
}

/// Returns down to which post a home timeline has all that belongs into it, of its posts, newest
/// first; `None` where that is all there ever was.
///
/// In a full one, a post takes the place of that which came first, and this may be younger than
/// others that came late. Nothing is missing above the oldest 200 as long as no post was followed by
/// 200 older ones.
pub(crate) fn sure_to(head: &Head, entries: &[Entry]) -> Option<PostId> {
    let unsure = entries.len().saturating_sub(UNSURE);
    entries.get(unsure).filter(|_| head.is_full).map(|entry| entry.post)
}

impl Homes {
    pub(crate) fn new(store: Store, graph: Graph, metrics: Metrics) -> Self {
        Self { store, graph, metrics, room: Arc::new(Semaphore::new(BUILDS_AT_ONCE)) }
    }

    /// Returns a reader's home timeline, built if it was not there. One round trip if it was.
    pub(crate) async fn get(&self, reader: UserId, give_up: Instant) -> Result<Home, Error> {
        let mut is_ours = false;
        loop {
            let home = self.store.home(reader).await?.filter(|home| home.head.was_built);
            // Stale also what was built just now, as long as there are replicas that do not push.
            let stale = home.as_ref().filter(|home| home.is_stale && !is_ours);
            let stale = stale.map(|home| home.head.edition);
            if let (Some(home), None) = (home, stale) {
                if home.head.is_to_be_touched() {
                    self.keep(reader, home.head.edition).await;
                }
                return Ok(home);
            }
            is_ours = self.run(reader, stale, Build::First).await?;
            if Instant::now() >= give_up {
                return Err(Error::BeingBuilt);
            }
        }
    }

    /// Completes a home timeline with what those posted who are followed since its version. Returns
    /// whether it did: not if somebody else replaced this edition of it, or is about to.
    pub(crate) async fn complete(&self, reader: UserId, edition: u64) -> Result<bool, Error> {
        self.run(reader, Some(edition), Build::AfterFollow).await
    }

    /// Builds a home timeline anew, unless somebody else replaced this edition of it, or is about to:
    /// with those who are followed now, and what they posted long ago in the places of those who are
    /// not followed any more.
    pub(crate) async fn clean(&self, reader: UserId, edition: u64) -> Result<(), Error> {
        self.run(reader, Some(edition), Build::Cleaning).await.map(drop)
    }

    /// Does the same beside the calls.
    pub(crate) fn clean_later(&self, reader: UserId, edition: u64) {
        let homes = self.clone();
        tokio::spawn(async move {
            if let Err(error) = homes.clean(reader, edition).await {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(error, "a home timeline is cleaned another time");
            }
        });
    }

    // Once a day for each reader: should anything be wrong with the timeline, it is not for long.
    async fn keep(&self, reader: UserId, edition: u64) {
        // The timeline is read already: a later read notes it.
        if let Err(error) = self.store.touch(reader).await {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(error, "a home timeline is not noted as read");
        }
        self.clean_later(reader, edition);
    }

    // Builds a timeline that was never built, or this edition of one; or waits a moment, where
    // somebody else does. Returns whether it is done.
    //
    // In a task of its own, which goes on when the reader leaves: the next one finds it done.
    async fn run(&self, reader: UserId, again: Option<u64>, build: Build) -> Result<bool, Error> {
        let homes = self.clone();
        let task = tokio::spawn(async move {
            let work = homes.build(reader, again, build);
            timeout(BUILD_MAX, work).await.unwrap_or(Err(Error::BeingBuilt))
        });
        // Only a runtime that ends drops a task.
        task.await.unwrap_or(Err(Error::BeingBuilt))
    }

    async fn build(&self, reader: UserId, again: Option<u64>, build: Build) -> Result<bool, Error> {
        // Never closed. Before it begins: who waits must not be taken for dead.
        let place = self.room.acquire().await;
        let edition = match self.store.begin(reader, again).await? {
            Begun::Edition(edition) => edition,
            Begun::Changed => return Ok(false),
            Begun::BeingBuilt => {
                drop(place);
                sleep(WAIT_STEP).await;
                return Ok(false);
            }
        };
        let replacement = match build {
            Build::First | Build::Cleaning => self.whole(reader).await?,
            Build::AfterFollow => self.filled(reader).await?,
        };
        let is_done = self.store.replace(reader, edition, &replacement).await?;
        self.metrics.built(build, is_done);
        Ok(is_done)
    }

    async fn whole(&self, reader: UserId) -> Result<Replacement, Error> {
        let followings = self.graph.followings(reader, 0).await?;
        let Brought { mut entries, pulls } = self.bring(reader, followings.authors).await?;
        entries.reverse();
        Ok(Replacement { version: followings.settled, entries, pulls, is_whole: true })
    }

    async fn filled(&self, reader: UserId) -> Result<Replacement, Error> {
        // Read after its edition began: what comes later is kept by the replacement.
        let Some(home) = self.store.home(reader).await? else { return self.whole(reader).await };
        let followings = self.graph.followings(reader, home.head.version).await?;
        let Brought { entries: mut brought, mut pulls } =
            self.bring(reader, followings.authors).await?;
        let kept = newest_first(home.entries);
        // Among those of which some may be missing, there must not come to be more.
        let sure_to = sure_to(&home.head, &kept);
        brought.retain(|entry| sure_to.is_none_or(|sure| entry.post >= sure));
        let mut entries = newest(brought.into_iter().chain(kept).collect(), HOME_MAX);
        // Some were there twice. It must not look as if nothing had ever been pushed out.
        if home.head.is_full && entries.len() < HOME_MAX {
            return self.whole(reader).await;
        }
        entries.reverse();
        pulls.extend(home.pulls);
        pulls.sort_unstable();
        pulls.dedup();
        let version = home.head.version.max(followings.settled);
        Ok(Replacement { version, entries, pulls, is_whole: false })
    }

    // Newest first. With the reader's own posts, which are among the entries in any case.
    async fn bring(&self, reader: UserId, mut authors: Vec<UserId>) -> Result<Brought, Error> {
        authors.push(reader);
        // Before their posts: who is pulled meanwhile is added to the pulls by those who see to it.
        let states = self.store.states(&authors).await?;
        let of = |is_wanted: fn(State) -> bool| {
            let authors = authors.iter().zip(&states);
            authors
                .filter(move |&(&author, &state)| author != reader && is_wanted(state))
                .map(|(&author, _)| author)
                .collect::<Vec<_>>()
        };
        let pulls = of(|state| state != State::Pushed);
        let mut pushed = of(|state| state != State::Pulled);
        pushed.push(reader);
        let entries = pull::newest_of(&self.store, &pushed, HOME_MAX).await?;
        Ok(Brought { entries, pulls })
    }
}
