//! The connections to one peer, and which of them a call takes.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use tonic::transport::{Channel, Endpoint};

use super::connector::Connector;
use crate::Config;

/// The connections to one peer. Unary calls take turns: on one connection alone, calls that are
/// slow could take all the places that it has, and hold up all others. Streams may last for hours,
/// and would take the places of all connections; they have some of their own, opened as they are
/// needed.
#[derive(Debug)]
pub(super) struct Connections {
    endpoint: Endpoint,
    connector: Connector,
    calls: Box<[Channel]>,
    turn: AtomicUsize,
    streams: Mutex<Vec<Arc<Channel>>>,
    /// How many a connection carries, if the peer's `--max-streams` is as ours.
    streams_max: usize,
}

/// A stream's place on its connection, to be kept until its end.
pub(super) type Place = Arc<Channel>;

impl Connections {
    /// Connects nowhere yet.
    pub(super) fn new(endpoint: Endpoint, config: &Config) -> Self {
        let connector = Connector::new();
        let connect = || endpoint.connect_with_connector_lazy(connector.clone());
        let calls = (0..config.peer_connections.max(1)).map(|_| connect()).collect();
        Self {
            calls,
            endpoint,
            connector,
            turn: AtomicUsize::new(0),
            streams: Mutex::default(),
            streams_max: config.max_streams as usize,
        }
    }

    /// Returns the connection whose turn it is.
    pub(super) fn for_call(&self) -> Channel {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.calls[turn % self.calls.len()].clone()
    }

    /// Returns the first connection that has room for a stream. The first one stays; of the
    /// others, those at the end are closed when nothing is left on them.
    pub(super) fn for_stream(&self) -> Place {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let under_way = |connection: &Place| Arc::strong_count(connection) - 1;
        while streams.len() > 1 && streams.last().is_some_and(|last| under_way(last) == 0) {
            streams.pop();
        }
        if let Some(roomy) = streams.iter().find(|&one| under_way(one) < self.streams_max) {
            return roomy.clone();
        }
        let fresh = self.endpoint.connect_with_connector_lazy(self.connector.clone());
        let fresh = Arc::new(fresh);
        streams.push(fresh.clone());
        fresh
    }
}
