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
//! For that, the key is made before its builder reads anything, and a post is in its author's
//! timeline before its fan-out begins: it is either read here or pushed into the key that is there.
//! A replacement is for one edition and keeps what came since that began; who asks for an edition
//! that somebody else replaced, begins again.

use std::time::Duration;

use microblog_domain::UserId;
use tokio::time::{Instant, sleep};

use crate::{
    entry::{Entry, newest},
    error::Error,
    graph::Graph,
    list::HOME_MAX,
    metrics::{Build, Metrics},
    pull,
    store::{Begun, Home, State, Store},
};

/// How long a reader waits for somebody else who builds: longer than until a builder counts as dead.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Between two looks whether a home timeline is built.
const WAIT_STEP: Duration = Duration::from_millis(20);

/// The home timelines of active readers.
#[derive(Clone)]
pub(crate) struct Homes {
    store: Store,
    graph: Graph,
    metrics: Metrics,
}

/// What authors bring into a home timeline.
struct Brought {
    entries: Vec<Entry>,
    pulls: Vec<UserId>,
}

impl Homes {
    pub(crate) fn new(store: Store, graph: Graph, metrics: Metrics) -> Self {
        Self { store, graph, metrics }
    }

    /// Returns a reader's home timeline, built if it was not there. One round trip if it was.
    pub(crate) async fn get(&self, reader: UserId) -> Result<Home, Error> {
        let give_up = Instant::now() + WAIT_MAX;
        let mut is_ours = false;
        loop {
            let home = self.store.home(reader).await?.filter(|home| home.head.was_built);
            // Stale also what was built just now, as long as there are replicas that do not push.
            let stale = home.as_ref().filter(|home| home.is_stale && !is_ours);
            let stale = stale.map(|home| home.head.edition);
            match home {
                Some(home) if stale.is_none() => return self.read(reader, home).await,
                _ => {}
            }
            match self.store.begin(reader, stale).await? {
                Begun::Edition(edition) => {
                    is_ours = self.build(reader, edition, Build::First).await?;
                }
                Begun::Built => {}
                Begun::BeingBuilt => pause(give_up).await?,
            }
        }
    }

    async fn read(&self, reader: UserId, home: Home) -> Result<Home, Error> {
        if home.head.is_to_be_touched() {
            self.store.touch(reader).await?;
        }
        Ok(home)
    }

    /// Completes a home timeline with what those posted who are followed since its version, unless
    /// somebody else replaced this edition of it meanwhile.
    pub(crate) async fn complete(&self, reader: UserId, edition: u64) -> Result<(), Error> {
        let give_up = Instant::now() + WAIT_MAX;
        loop {
            match self.store.begin(reader, Some(edition)).await? {
                Begun::Edition(edition) => return self.fill(reader, edition).await,
                Begun::Built => return Ok(()),
                Begun::BeingBuilt => pause(give_up).await?,
            }
        }
    }

    /// Builds a home timeline anew, unless somebody else replaced this edition of it, or is about
    /// to: with those who are followed now, and what they posted long ago in the places of those
    /// who are not followed any more.
    pub(crate) async fn clean(&self, reader: UserId, edition: u64) -> Result<(), Error> {
        match self.store.begin(reader, Some(edition)).await? {
            Begun::Edition(edition) => {
                self.build(reader, edition, Build::Cleaning).await?;
            }
            Begun::Built | Begun::BeingBuilt => {}
        }
        Ok(())
    }

    // Returns whether it is built now: not if somebody else changed it meanwhile.
    async fn build(&self, reader: UserId, edition: u64, build: Build) -> Result<bool, Error> {
        let followings = self.graph.followings(reader, 0).await?;
        let Brought { mut entries, pulls } = self.bring(reader, followings.authors).await?;
        entries.reverse();
        let version = followings.version;
        let is_done = self.store.replace(reader, edition, version, &entries, &pulls).await?;
        self.metrics.built(build, is_done);
        Ok(is_done)
    }

    async fn fill(&self, reader: UserId, edition: u64) -> Result<(), Error> {
        // Read after its edition began: what comes later is kept by the replacement.
        let Some(home) = self.store.home(reader).await? else { return Ok(()) };
        let followings = self.graph.followings(reader, home.head.version).await?;
        let Brought { entries, mut pulls } = self.bring(reader, followings.authors).await?;
        let mut entries = newest(entries.into_iter().chain(home.entries).collect(), HOME_MAX);
        entries.reverse();
        pulls.extend(home.pulls);
        let version = home.head.version.max(followings.version);
        let is_done = self.store.replace(reader, edition, version, &entries, &pulls).await?;
        self.metrics.built(Build::AfterFollow, is_done);
        Ok(())
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

async fn pause(give_up: Instant) -> Result<(), Error> {
    if Instant::now() >= give_up {
        return Err(Error::BeingBuilt);
    }
    sleep(WAIT_STEP).await;
    Ok(())
}
