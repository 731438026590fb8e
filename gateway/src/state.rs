//! The state of the gateway in one worker. Does not depend on views or actions.

use std::time::Duration;

use microblog_chassis::{AddressError, Peer};
use microblog_proto::{
    notice::NoticeServicePeer, post::PostServicePeer, relation::RelationServicePeer,
    timeline::TimelineServicePeer, user::UserServicePeer,
};
use tokio::time::Instant;

use crate::{
    callers::Callers, config::Config, feed_metrics::FeedMetrics, limits::Limits,
    sessions::RecentSessions,
};

/// What every call needs. Apart from the rate limits and recent sessions, the gateway keeps no state
/// between calls.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(crate) peers: Peers,
    /// Shared with the other workers of the process.
    pub(crate) limits: Limits,
    /// Of this worker: the calls of a client's connection reach the same one.
    pub(crate) sessions: RecentSessions,
    /// Shared with the other workers of the process; `None` without `--callers-file`.
    pub(crate) callers: Option<Callers>,
    pub(crate) feed_metrics: FeedMetrics,
    /// How often an idle stream checks that its session is still valid.
    pub(crate) session_check: Duration,
    /// How long a stream may be silent; `None` for ever.
    pub(crate) heartbeat: Option<Duration>,
}

/// The services that the gateway calls.
#[derive(Clone)]
pub struct Peers {
    /// Accounts and sessions.
    pub user: Peer,
    /// The follow graph, blocks and mutes.
    pub relation: Peer,
    /// Posts, comments and likes.
    pub post: Peer,
    /// Timelines.
    pub timeline: Peer,
    /// Notices.
    pub notice: Peer,
}

/// The address of a service is not valid, so the gateway does not start.
#[derive(Debug, thiserror::Error)]
#[error("the address of the {peer} service is not valid")]
pub struct Error {
    peer: &'static str,
    source: AddressError,
}

impl Gateway {
    /// Returns when a message is due of a stream whose connection asks for it now.
    pub(crate) fn heartbeat_at(&self) -> Option<Instant> {
        self.heartbeat.map(|silence| Instant::now() + silence)
    }
}

impl Peers {
    /// Returns the peers of a configuration. Each connects at its first call. Must be called inside
    /// a runtime.
    pub fn remote(config: &Config) -> Result<Self, Error> {
        let remote =
            |peer, url| Peer::remote(url, &config.chassis).map_err(|source| Error { peer, source });
        Ok(Self {
            user: remote("user", &config.user_url)?,
            relation: remote("relation", &config.relation_url)?,
            post: remote("post", &config.post_url)?,
            timeline: remote("timeline", &config.timeline_url)?,
            notice: remote("notice", &config.notice_url)?,
        })
    }

    pub(crate) fn user(&self) -> UserServicePeer<Peer> {
        UserServicePeer::new(self.user.clone())
    }

    pub(crate) fn relation(&self) -> RelationServicePeer<Peer> {
        RelationServicePeer::new(self.relation.clone())
    }

    pub(crate) fn post(&self) -> PostServicePeer<Peer> {
        PostServicePeer::new(self.post.clone())
    }

    pub(crate) fn timeline(&self) -> TimelineServicePeer<Peer> {
        TimelineServicePeer::new(self.timeline.clone())
    }

    pub(crate) fn notice(&self) -> NoticeServicePeer<Peer> {
        NoticeServicePeer::new(self.notice.clone())
    }
}
