//! The Redis of a service, so that one test body runs on a single server and on a cluster.

use crate::{RedisCluster, RedisServer};

/// The topology of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One redis-server.
    Single,
    /// A Redis Cluster of three primaries without replicas.
    Cluster,
}

/// A running store.
pub enum Store {
    /// One redis-server.
    Single(RedisServer),
    /// A Redis Cluster.
    Cluster(RedisCluster),
}

impl Store {
    /// Starts a store.
    pub async fn start(topology: Topology) -> Self {
        match topology {
            Topology::Single => Self::Single(RedisServer::start().await),
            Topology::Cluster => Self::Cluster(RedisCluster::start(3, 0).await),
        }
    }

    /// Returns the URL for a user of `deploy/redis/users.acl`.
    pub fn url(&self, user: &str) -> String {
        match self {
            Self::Single(server) => server.url(user),
            Self::Cluster(cluster) => cluster.url(user),
        }
    }

    /// Returns its servers.
    pub fn nodes(&self) -> &[RedisServer] {
        match self {
            Self::Single(server) => std::slice::from_ref(server),
            Self::Cluster(cluster) => cluster.nodes(),
        }
    }
}
