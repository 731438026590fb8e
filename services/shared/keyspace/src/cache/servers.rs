//! The servers whose keys are cached: the single server, the primary of a Sentinel group, or each
//! primary of a cluster.

use std::sync::{Arc, Mutex, MutexGuard};

use microblog_domain::Partition;
use tokio::time::Instant;

use super::{RECONNECT_BACKOFF, TrackedConnection};
use crate::{address::Node, cluster::SlotMap, lock::lock};

/// The servers by slot map.
pub(super) struct Servers<I, T> {
    /// `None` if there is no cluster, or if its slot map was not read yet.
    slot_map: Option<Arc<SlotMap>>,
    servers: Vec<Arc<Server<I, T>>>,
}

/// A server, with the state of its tracked connection.
pub(super) struct Server<I, T> {
    /// The node of a cluster.
    pub(super) node: Option<Node>,
    pub(super) bytes_max: usize,
    tracking: Mutex<Tracking<I, T>>,
}

/// The state of a tracked connection.
pub(super) enum Tracking<I, T> {
    /// The next attempt to connect is not before this time.
    Disconnected(Option<Instant>),
    Connecting,
    Connected(Arc<TrackedConnection<I, T>>),
}

impl<I, T> Servers<I, T> {
    pub(super) fn new(is_cluster: bool, bytes_max: usize) -> Self {
        let one = Server::new(None, bytes_max, None);
        Self { slot_map: None, servers: if is_cluster { Vec::new() } else { vec![one] } }
    }

    /// Replaces the servers if the slot map has changed. That discards all cached values: those of
    /// moved slots would miss the invalidations of their new primaries.
    pub(super) fn update(&mut self, slot_map: Option<Arc<SlotMap>>, bytes_max: usize) {
        let Some(slot_map) = slot_map else { return };
        if self.slot_map.as_ref().is_some_and(|current| Arc::ptr_eq(current, &slot_map)) {
            return;
        }
        // While many slots move, waits until no more do.
        let connect_at = self.slot_map.is_some().then(|| Instant::now() + RECONNECT_BACKOFF);
        let nodes: Vec<Node> = slot_map.nodes().cloned().collect();
        let bytes_max = bytes_max / nodes.len().max(1);
        let server = |node| Server::new(Some(node), bytes_max, connect_at);
        self.servers = nodes.into_iter().map(server).collect();
        self.slot_map = Some(slot_map);
    }

    /// Returns the only server, if there is no cluster.
    pub(super) fn only(&self) -> Option<Arc<Server<I, T>>> {
        if self.slot_map.is_some() { None } else { self.servers.first().cloned() }
    }

    /// Returns the index of a partition's server.
    pub(super) fn index(&self, partition: Partition) -> Option<usize> {
        self.slot_map.as_ref()?.index(partition)
    }

    pub(super) fn get(&self, index: usize) -> Option<Arc<Server<I, T>>> {
        self.servers.get(index).cloned()
    }
}

impl<I, T> Server<I, T> {
    fn new(node: Option<Node>, bytes_max: usize, connect_at: Option<Instant>) -> Arc<Self> {
        let tracking = Mutex::new(Tracking::Disconnected(connect_at));
        Arc::new(Self { node, bytes_max, tracking })
    }

    pub(super) fn tracking(&self) -> MutexGuard<'_, Tracking<I, T>> {
        lock(&self.tracking)
    }
}
