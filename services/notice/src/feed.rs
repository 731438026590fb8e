//! Follows the change feeds of services, and applies what their changes mean.
//!
//! What must hold:
//!   * each change is applied at least once: the position is stored after the changes before it are
//!     applied;
//!   * changes of a service are applied in their order: one process follows its feed, under a claim;
//!   * a change that is applied again has no effect: an act has the version of its last change. So it
//!     does not matter if a claim passes on while its holder is still at work.
//!
//! A feed that does not continue the position, as after a recovery, is followed from its start. So is one
//! without a position, as after a loss of Redis. Notices of what the feed does not have are missing.

use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use microblog_chassis::status;
use microblog_proto::common::{ChangeKind, ErrorReason, FeedPage, FeedPosition, FeedQuery};
use tokio::time::{sleep, timeout};
use tonic::Status;
use uuid::Uuid;

use crate::{acts::effects, error::Error, metrics::Metrics, peers::Peers, store::Store};

/// How long a claim lasts without being renewed, and when it is renewed.
const CLAIM: Duration = Duration::from_secs(6);
const RENEWAL: Duration = Duration::from_secs(2);

/// The wait before a claim is tried again, or a feed after an error.
const RETRY: Duration = Duration::from_secs(1);

/// The wait while a service has no database.
const NO_DATABASE_RETRY: Duration = Duration::from_secs(10);

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
        let mut last_error = None;
        loop {
            let Err(error) = self.follow(&holder, &mut last_error).await else {
                // Another process follows the feed.
                sleep(RETRY).await;
                continue;
            };
            let reason = match &error {
                Error::Peer(status) => status::reason_of(status),
                _ => None,
            };
            // Each error is logged once, until the feed is followed again.
            let text = error.to_string();
            if last_error.as_ref() != Some(&text) {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(service = self.source.name(), error, "cannot follow a change feed");
                last_error = Some(text);
            }
            let has_none = reason == Some(ErrorReason::NoDatabase);
            sleep(if has_none { NO_DATABASE_RETRY } else { RETRY }).await;
        }
    }

    /// Follows the feed until an error, or until another process does.
    async fn follow(&self, holder: &str, last_error: &mut Option<String>) -> Result<(), Error> {
        let Some(position) = self.store.claim_feed(self.source, holder, CLAIM).await? else {
            return Ok(());
        };
        let query = FeedQuery {
            kinds: self.source.kinds().iter().map(|&kind| kind.into()).collect(),
            after: position,
            snapshot: false,
            from_start: position.is_none(),
        };
        let mut pages = self.peers.feed(self.source, query).await.map_err(Error::Peer)?;
        let mut claimed_at = Instant::now();
        loop {
            let wait = RENEWAL.saturating_sub(claimed_at.elapsed());
            let page = match timeout(wait, pages.try_next()).await {
                Err(_elapsed) => {
                    if self.store.claim_feed(self.source, holder, CLAIM).await?.is_none() {
                        return Ok(());
                    }
                    claimed_at = Instant::now();
                    continue;
                }
                Ok(Err(status)) if is_expired(&status) => {
                    self.metrics.gap(self.source);
                    // Continues at the start.
                    let none = FeedPosition::default();
                    self.store.advance_feed(self.source, holder, none).await?;
                    return Err(Error::Peer(status));
                }
                Ok(page) => page.map_err(Error::Peer)?,
            };
            let page = page.ok_or_else(|| Error::Peer(Status::unavailable("no page")))?;
            let position = page.position.ok_or_else(|| Error::Peer(no_position()))?;
            if last_error.take().is_some() {
                tracing::info!(service = self.source.name(), "change feed followed again");
            }
            self.apply(&page).await?;
            if !self.store.advance_feed(self.source, holder, position).await? {
                return Ok(());
            }
            self.metrics.read(self.source, &page);
        }
    }

    /// Applies what the changes of a page mean.
    async fn apply(&self, page: &FeedPage) -> Result<(), Error> {
        let effects = effects(&self.peers, &page.changes).await.map_err(Error::Peer)?;
        self.store.apply(&effects.changes).await?;
        self.metrics.applied(&effects.changes);
        for user in effects.deleted {
            self.store.erase(user).await?;
        }
        Ok(())
    }
}

fn is_expired(status: &Status) -> bool {
    status::reason_of(status) == Some(ErrorReason::CursorExpired)
}

fn no_position() -> Status {
    Status::internal("a page of a change feed has no position")
}
