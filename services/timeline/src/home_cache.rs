//! The home timeline cache of active readers. It is built at the first read, backfilled after a
//! follow and rebuilt after an unfollow. Readers validate each author against the follow graph.
//!
//! Invariants, under concurrent writes and crashes:
//!
//! 1. While a cached home timeline exists, each post of a followed author with fan-out on write is
//!    in it, or it is full of newer ones, or the push is pending, or the author's follow is newer than
//!    the version of the cache.
//! 2. Each followed author with fan-out on read is in the list of pulled authors, or is about to be
//!    added by a job, or the follow is newer than the version of the cache.
//!
//! So a full cache is complete down to its oldest post, whatever order posts come in and however often,
//! and any other one is complete. The functions keep its records in the order of posts.
//!
//! The version is one that the follow graph had when the followed authors were read. Fan-out on write may
//! read a list of followers from before a newer follow and miss the follower, so each read checks for new
//! follows.
//!
//! To hold this, the builder creates the key before it reads any post, and a post is in its user
//! timeline before its fan-out begins. The builder reads the post there, or the fan-out pushes it
//! to the existing key. A replacement is valid for one edition and keeps the posts pushed since
//! that edition began. If another builder replaced the edition, the caller retries.

use std::{sync::Arc, time::Duration};

use microblog_domain::UserId;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

use crate::{
    entry::{Entry, newest},
    error::Error,
    fanout_on_read::AuthorLists,
    graph::Graph,
    list::HOME_MAX,
    metrics::{BuildReason, Metrics},
    store::{BuildLease, FanoutState, Home, Replacement, Store},
};

/// How long a reader waits for a build: longer than the build lease, shorter than a caller's
/// deadline.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(7);

/// The poll interval while another builder holds the lease.
const WAIT_STEP: Duration = Duration::from_millis(20);

/// The timeout of a build, whether a reader waits for it or not.
pub(crate) const BUILD_MAX: Duration = Duration::from_secs(10);

/// The most concurrent builds in a worker thread. Each takes some megabytes for a reader with
/// thousands of followings.
const BUILDS_AT_ONCE: usize = 16;

/// The home timeline cache.
#[derive(Clone)]
pub(crate) struct HomeCache {
    store: Store,
    graph: Graph,
    authors: AuthorLists,
    metrics: Metrics,
    permits: Arc<Semaphore>,
}

/// Posts fetched for a build.
struct AuthorPosts {
    entries: Vec<Entry>,
    pulled_authors: Vec<UserId>,
}

impl HomeCache {
    pub(crate) fn new(store: Store, graph: Graph, authors: AuthorLists, metrics: Metrics) -> Self {
        let permits = Arc::new(Semaphore::new(BUILDS_AT_ONCE));
        Self { store, graph, authors, metrics, permits }
    }

    /// Returns a reader's home timeline; builds it if it does not exist. One round trip if it does.
    pub(crate) async fn get(&self, reader: UserId, deadline: Instant) -> Result<Home, Error> {
        let mut is_ours = false;
        loop {
            let home = self.store.home(reader).await?.filter(|home| home.head.was_built);
            // A timeline that this call just built may be stale too, while some replicas run in
            // pull mode.
            let stale = home.as_ref().filter(|home| home.is_stale && !is_ours);
            let stale = stale.map(|home| home.head.edition);
            if let (Some(home), None) = (home, stale) {
                if home.head.is_touch_due() {
                    self.refresh(reader, home.head.edition).await;
                }
                return Ok(home);
            }
            is_ours = self.run(reader, stale, BuildReason::FirstRead).await?;
            if Instant::now() >= deadline {
                return Err(Error::BeingBuilt);
            }
        }
    }

    /// Backfills a home timeline with the posts of authors followed since its version. Returns
    /// false if another builder replaced this edition or holds the lease.
    pub(crate) async fn backfill(&self, reader: UserId, edition: u64) -> Result<bool, Error> {
        self.run(reader, Some(edition), BuildReason::Backfill).await
    }

    /// Rebuilds a home timeline from the current followings, unless another builder replaced this
    /// edition or holds the lease. Older posts take the places of unfollowed authors' posts.
    pub(crate) async fn rebuild(&self, reader: UserId, edition: u64) -> Result<(), Error> {
        self.run(reader, Some(edition), BuildReason::Cleanup).await.map(drop)
    }

    /// Rebuilds a home timeline in the background.
    pub(crate) fn rebuild_in_background(&self, reader: UserId, edition: u64) {
        let cache = self.clone();
        tokio::spawn(async move {
            if let Err(error) = cache.rebuild(reader, edition).await {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(error, "home timeline rebuild failed");
            }
        });
    }

    // Extends the lifetime and rebuilds, once a day for each reader: this repairs any fault in the
    // cache.
    async fn refresh(&self, reader: UserId, edition: u64) {
        // The read has succeeded already. A later read retries.
        if let Err(error) = self.store.touch_home(reader).await {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(error, "home timeline touch failed");
        }
        self.rebuild_in_background(reader, edition);
    }

    // Builds a timeline that does not exist, or replaces this edition of one. If another builder
    // holds the lease, waits for a moment. Returns whether it is done.
    //
    // Runs in a task of its own, which continues if the reader disconnects. The next read then uses
    // its result.
    async fn run(
        &self,
        reader: UserId,
        replaced_edition: Option<u64>,
        reason: BuildReason,
    ) -> Result<bool, Error> {
        let cache = self.clone();
        let task = tokio::spawn(async move {
            let work = cache.build(reader, replaced_edition, reason);
            timeout(BUILD_MAX, work).await.unwrap_or(Err(Error::BeingBuilt))
        });
        // The join fails only when the runtime shuts down.
        task.await.unwrap_or(Err(Error::BeingBuilt))
    }

    async fn build(
        &self,
        reader: UserId,
        replaced_edition: Option<u64>,
        reason: BuildReason,
    ) -> Result<bool, Error> {
        // Never closed. Acquired before the lease, so that waiting for a permit does not let the
        // lease expire.
        let permit = self.permits.acquire().await;
        let edition = match self.store.begin_build(reader, replaced_edition).await? {
            BuildLease::Acquired(edition) => edition,
            BuildLease::EditionChanged => return Ok(false),
            BuildLease::Held => {
                drop(permit);
                sleep(WAIT_STEP).await;
                return Ok(false);
            }
        };
        let replacement = match reason {
            BuildReason::FirstRead | BuildReason::Cleanup => self.rebuilt(reader).await?,
            BuildReason::Backfill => self.backfilled(reader).await?,
        };
        let is_done = self.store.replace(reader, edition, &replacement).await?;
        self.metrics.built(reason, is_done);
        Ok(is_done)
    }

    async fn rebuilt(&self, reader: UserId) -> Result<Replacement, Error> {
        let followings = self.graph.followings(reader, 0).await?;
        let AuthorPosts { mut entries, pulled_authors } =
            self.fetch_authors(reader, followings.authors).await?;
        entries.reverse();
        Ok(Replacement { version: followings.newest, entries, pulled_authors, is_rebuild: true })
    }

    async fn backfilled(&self, reader: UserId) -> Result<Replacement, Error> {
        // Read after the edition began: the replacement keeps posts pushed later.
        let Some(home) = self.store.home(reader).await? else { return self.rebuilt(reader).await };
        let followings = self.graph.followings(reader, home.head.version).await?;
        let AuthorPosts { entries: fetched, mut pulled_authors } =
            self.fetch_authors(reader, followings.authors).await?;
        let kept = home.entries.into_iter().rev();
        let mut entries = newest(fetched.into_iter().chain(kept).collect(), HOME_MAX);
        entries.reverse();
        pulled_authors.extend(home.pulled_authors);
        pulled_authors.sort_unstable();
        pulled_authors.dedup();
        let version = home.head.version.max(followings.newest);
        Ok(Replacement { version, entries, pulled_authors, is_rebuild: false })
    }

    // Returns posts newest first, with the reader's own posts included.
    async fn fetch_authors(
        &self,
        reader: UserId,
        mut authors: Vec<UserId>,
    ) -> Result<AuthorPosts, Error> {
        authors.push(reader);
        // Read before the posts: if an author switches to fan-out on read meanwhile, the switch job
        // adds the author.
        let states = self.store.fanout_states(&authors).await?;
        let of = |is_wanted: fn(FanoutState) -> bool| {
            let authors = authors.iter().zip(&states);
            authors
                .filter(move |&(&author, &state)| author != reader && is_wanted(state))
                .map(|(&author, _)| author)
                .collect::<Vec<_>>()
        };
        let pulled_authors = of(|state| state != FanoutState::OnWrite);
        let mut pushed = of(|state| state != FanoutState::OnRead);
        pushed.push(reader);
        let entries = self.authors.newest_of(&pushed, HOME_MAX).await?;
        Ok(AuthorPosts { entries, pulled_authors })
    }
}
