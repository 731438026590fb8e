//! The services behind the gateway. Knows where they are, not what they are asked.

use microblog_chassis::Peer;
use microblog_proto::{
    post::PostServicePeer, relation::RelationServicePeer, timeline::TimelineServicePeer,
    user::UserServicePeer,
};

use crate::{Config, Error};

/// The services that the gateway calls.
#[derive(Clone, Debug)]
pub struct Peers {
    /// Accounts and sessions.
    pub user: Peer,
    /// The follow graph.
    pub relation: Peer,
    /// Posts, and what belongs to them.
    pub post: Peer,
    /// Who gets to read which of them, and where.
    pub timeline: Peer,
}

impl Peers {
    /// Returns the peers that a configuration names. They are connected to when first called.
    /// Must be called inside a runtime.
    pub fn remote(config: &Config) -> Result<Self, Error> {
        Ok(Self {
            user: Peer::remote(&config.user_url, &config.chassis)
                .map_err(|source| Error { peer: "user", source })?,
            relation: Peer::remote(&config.relation_url, &config.chassis)
                .map_err(|source| Error { peer: "relation", source })?,
            post: Peer::remote(&config.post_url, &config.chassis)
                .map_err(|source| Error { peer: "post", source })?,
            timeline: Peer::remote(&config.timeline_url, &config.chassis)
                .map_err(|source| Error { peer: "timeline", source })?,
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
}
