//! Follows the change feeds of services, and applies what their changes mean.
//!
//! What must hold:
//!   * each change is applied at least once: the position is stored after the changes before it are
//!     applied;
//!   * changes of a service are applied in their order: one process follows its feed, under a claim;
//!   * a change that is applied again has no effect: each account has the number of the last change of
//!     the feed that was applied. So it does not matter if a claim passes on while its holder is still
//!     at work.
//!
//! A feed that does not continue the position, as after a recovery, is followed from its start. So is one
//! without a position, as after a loss of Redis. Notices of what the feed does not have are missing.

use std::time::{Duration, SystemTime};

use futures::TryStreamExt as _;
use microblog_chassis::status;
use microblog_proto::common::{ChangeKind, ErrorReason, FeedPage, FeedQuery};
use tokio::time::{Instant, sleep};
use tonic::Status;
use uuid::Uuid;

use crate::{
    acts::effects,
    error::Error,
    metrics::Metrics,
    peers::Peers,
    store::{Progress, Store},
};

/// How long a claim lasts without being renewed, and when it is renewed.
const CLAIM: Duration = Duration::from_secs(6);
const RENEWAL: Duration = Duration::from_secs(2);

/// How many changes are in memory with what they are about.
const PART: usize = 500;

/// How often a feed that another process follows is tried.
const RETRY: Duration = Duration::from_secs(1);

/// The wait after an error: another process, which may be able to follow the feed, is first.
const FAILED_RETRY: Duration = Duration::from_secs(2);

/// How long a feed may be unreadable before that is a fault: the service starts, fills a new database,
/// or is replaced.
const STARTING: Duration = Duration::from_secs(30);

/// A service whose change feed is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    User,
    Relation,
    Post,
}

impl Source {
    pub(crate) const ALL: [Self; 3] = [Self::User, Self::Relation, Self::Post];

    /// Returns the service's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Relation => "relation",
            Self::Post => "post",
        }
    }

    fn kinds(self) -> &'static [ChangeKind] {
        match self {
            Self::User => &[ChangeKind::Account],
            Self::Relation => &[ChangeKind::Follow],
            Self::Post => {
                &[ChangeKind::Post, ChangeKind::Repost, ChangeKind::Comment, ChangeKind::Like]
            }
        }
    }
}

/// Follows the change feed of a service, in turn with other processes.
pub(crate) struct Follower {
    pub(crate) source: Source,
    pub(crate) store: Store,
    pub(crate) peers: Peers,
    pub(crate) metrics: Metrics,
}

impl Follower {
    /// Follows the feed. Never returns.
    pub(crate) async fn run(self) {
        let holder = Uuid::new_v4().to_string();
        let mut outage = Outage::default();
        loop {
            let Err(error) = self.follow(&holder, &mut outage).await else {
                // Another process follows the feed, or tries to.
                outage.forget();
                sleep(RETRY).await;
                continue;
            };
            // If this fails, the claim ends by itself.
            let _ = self.store.release_feed(self.source, &holder).await;
            outage.log(self.source, &error);
            self.metrics.cannot_read(self.source);
            sleep(FAILED_RETRY).await;
        }
    }

    /// Follows the feed until an error, or until another process does.
    async fn follow(&self, holder: &str, outage: &mut Outage) -> Result<(), Error> {
        let Some(progress) = self.claim(holder).await? else { return Ok(()) };
        self.metrics.claimed(self.source, progress.read_until);
        // The claim is renewed beside the work.
        tokio::select! {
            ended = self.read(holder, progress, outage) => ended,
            lost = self.renew(holder) => lost,
        }
    }

    async fn claim(&self, holder: &str) -> Result<Option<Progress>, Error> {
        Ok(self.store.claim_feed(self.source, holder, CLAIM).await?)
    }

    /// Renews the claim, until another process has it.
    async fn renew(&self, holder: &str) -> Result<(), Error> {
        loop {
            sleep(RENEWAL).await;
            if self.claim(holder).await?.is_none() {
                return Ok(());
            }
        }
    }

    async fn read(
        &self,
        holder: &str,
        mut progress: Progress,
        outage: &mut Outage,
    ) -> Result<(), Error> {
        if progress.generation == 0 {
            let Some(begun) = self.anew(holder, 0).await? else { return Ok(()) };
            progress = begun;
        }
        let query = FeedQuery {
            kinds: self.source.kinds().iter().map(|&kind| kind.into()).collect(),
            after: progress.position,
            snapshot: false,
            from_start: progress.position.is_none(),
        };
        let mut pages = self.peers.feed(self.source, query).await.map_err(Error::Peer)?;
        loop {
            let page = match pages.try_next().await {
                Err(status) if is_expired(&status) => {
                    self.metrics.gap(self.source);
                    self.anew(holder, progress.generation).await?;
                    return Err(Error::Peer(status));
                }
                page => page.map_err(Error::Peer)?,
            };
            let page = page.ok_or_else(|| Error::Peer(Status::unavailable("no page")))?;
            self.apply(progress.generation, &page).await?;
            progress.position = Some(page.position.ok_or_else(|| Error::Peer(no_position()))?);
            let until = page.recorded_at.and_then(|at| SystemTime::try_from(at).ok());
            let until = until.and_then(|until| until.duration_since(SystemTime::UNIX_EPOCH).ok());
            progress.read_until =
                until.map_or(progress.read_until, |until| until.as_millis() as u64);
            if !self.store.advance_feed(self.source, holder, progress).await? {
                return Ok(());
            }
            self.metrics.read(self.source, progress.read_until);
            outage.end(self.source);
        }
    }

    /// Begins the generation after another one, at the start of the feed. Returns `None` if another
    /// process follows the feed: what is applied in a generation that only this process knows would
    /// hide the changes that the other one applies.
    async fn anew(&self, holder: &str, previous: u64) -> Result<Option<Progress>, Error> {
        // The time, so that it is later than one that Redis has lost.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let generation = (previous + 1).max(now.as_millis() as u64);
        let progress = Progress { position: None, generation, read_until: 0 };
        let is_ours = self.store.advance_feed(self.source, holder, progress).await?;
        Ok(is_ours.then_some(progress))
    }

    /// Applies what the changes of a page mean, some of them at once.
    async fn apply(&self, generation: u64, page: &FeedPage) -> Result<(), Error> {
        let parts = page.changes.chunks(PART).zip(page.numbers.chunks(PART));
        for (changes, numbers) in parts {
            let effects = effects(&self.peers, changes, numbers).await.map_err(Error::Peer)?;
            self.store.apply(self.source, generation, &effects.changes).await?;
            self.metrics.applied(&effects.changes);
            for user in effects.deleted {
                self.store.erase(user).await?;
            }
        }
        Ok(())
    }
}

/// The time in which a feed is not followed.
#[derive(Default)]
struct Outage {
    /// The times of its first and its last error.
    since: Option<Instant>,
    last: Option<Instant>,
    /// The last error that was logged as a fault.
    logged: Option<String>,
}

impl Outage {
    /// Logs each error once, as a fault if the outage lasts.
    fn log(&mut self, source: Source, error: &Error) {
        let service = source.name();
        let text = error.to_string();
        let error = error as &dyn std::error::Error;
        let is_first = self.since.is_none();
        self.last = Some(Instant::now());
        let lasts = self.since.get_or_insert_with(Instant::now).elapsed() >= STARTING;
        if lasts && self.logged.as_ref() != Some(&text) {
            tracing::warn!(service, error, "cannot follow a change feed");
            self.logged = Some(text);
        } else if is_first {
            tracing::info!(service, error, "change feed not readable yet");
        }
    }

    /// Ends an outage whose last error was long ago. Processes that fail in turn have one outage.
    fn forget(&mut self) {
        if self.last.is_some_and(|last| last.elapsed() >= STARTING) {
            *self = Self::default();
        }
    }

    /// Logs the end of an outage that was logged as a fault.
    fn end(&mut self, source: Source) {
        if std::mem::take(self).logged.is_some() {
            tracing::info!(service = source.name(), "change feed followed again");
        }
    }
}

fn is_expired(status: &Status) -> bool {
    status::reason_of(status) == Some(ErrorReason::CursorExpired)
}

fn no_position() -> Status {
    Status::internal("a page of a change feed has no position")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use microblog_chassis::Peer;
    use microblog_testkit::{PATIENCE, Store as Redis, Topology, eventually};

    use super::*;
    use crate::config::Config;

    /// Returns a follower of a feed that it cannot read.
    fn follower(redis: &Redis) -> Follower {
        let url = redis.url("notice");
        let config = Config::parse_from(["notice", "--redis-url", &url, "--threads", "1"]);
        // Nothing listens there: to read the feed is an error.
        let peer = Peer::remote("http://127.0.0.1:1", &config.chassis).unwrap();
        let peers = Peers { user: peer.clone(), relation: peer.clone(), post: peer };
        let store = Store::open(&config.redis).unwrap();
        Follower { source: Source::Post, store, peers, metrics: Metrics::new() }
    }

    #[tokio::test]
    async fn a_process_that_cannot_read_a_feed_leaves_it_to_another_one() {
        let redis = Redis::start(Topology::Single).await;
        let other = follower(&redis);
        let failing = tokio::spawn(follower(&redis).run());
        eventually("it claims the feed", PATIENCE, async || {
            other.store.feed_holder(Source::Post).await.unwrap().is_some()
        })
        .await;
        eventually("the other one claims it", PATIENCE, async || {
            other.claim("other").await.unwrap().is_some()
        })
        .await;
        failing.abort();
    }

    #[test]
    fn an_outage_is_a_fault_when_it_lasts() {
        let error = |text: &str| Error::Peer(Status::unavailable(text));
        let mut outage = Outage::default();
        outage.log(Source::Post, &error("it starts"));
        assert_eq!(outage.logged, None);
        // Another process had the claim meanwhile.
        outage.forget();
        outage.since = outage.since.and_then(|since| since.checked_sub(STARTING));
        for text in ["it is down", "and refuses"] {
            outage.log(Source::Post, &error(text));
            assert_eq!(outage.logged, Some(error(text).to_string()));
        }
        outage.last = outage.last.and_then(|last| last.checked_sub(STARTING));
        outage.forget();
        assert_eq!(outage.logged, None, "it has ended");
        outage.log(Source::Post, &error("and refuses"));
        assert_eq!(outage.logged, None, "it is another outage");
    }

    #[tokio::test]
    async fn a_process_that_has_lost_its_claim_begins_no_generation() {
        let redis = Redis::start(Topology::Single).await;
        let follower = follower(&redis);
        // Another process has claimed the feed during a pause of this one.
        let progress = follower.claim("another").await.unwrap().unwrap();
        let ended = follower.read("paused", progress, &mut Outage::default()).await;
        assert!(ended.is_ok(), "{ended:?}");
        assert_eq!(follower.claim("another").await.unwrap().unwrap().generation, 0);
    }
}
