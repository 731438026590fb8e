//! One address of a peer: its connections, and what they carry. Those for calls are opened by its
//! keeper (`keeper.rs`).

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::{sync::Notify, time::Instant};

use super::{
    address::Origin,
    connection::{Connection, OpenError},
    failure::{Failure, Kind},
    keeper::State,
};
use crate::Config;

#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    pub(super) origin: Origin,
    /// How many connections it should have for calls.
    pub(super) connections: usize,
    /// How many streams a connection carries, if the peer's `--max-streams` is as ours.
    streams_max: usize,
    under_way: AtomicUsize,
    state: Mutex<State>,
    /// That a connection ended.
    pub(super) lost: Arc<Notify>,
    /// That callers have nobody else.
    pub(super) prompt: Notify,
    /// Held by who opens a connection for streams: others may find room on it, or see that it failed,
    /// and when.
    opening: tokio::sync::Mutex<Option<Instant>>,
}

impl Endpoint {
    /// Connects nowhere yet.
    pub(super) fn new(address: SocketAddr, origin: Origin, config: &Config) -> Self {
        Self {
            address,
            origin,
            connections: config.peer_connections,
            streams_max: config.max_streams as usize,
            under_way: AtomicUsize::new(0),
            state: Mutex::default(),
            lost: Arc::default(),
            prompt: Notify::new(),
            opening: tokio::sync::Mutex::default(),
        }
    }

    /// Returns how many calls are under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Relaxed)
    }

    /// Returns whether calls find a connection.
    pub(super) fn is_live(&self) -> bool {
        self.state().calls.iter().any(|connection| connection.is_open())
    }

    /// Returns a place on the connection with the fewest calls. `None` if there is none.
    pub(super) fn place_for_call(self: &Arc<Self>) -> Option<Place> {
        let state = self.state();
        let idlest = state.calls.iter().min_by_key(|connection| connection.under_way());
        let open = || state.calls.iter().filter(|connection| connection.is_open());
        let connection = idlest
            .filter(|connection| connection.is_open())
            .or_else(|| open().min_by_key(|connection| connection.under_way()))?;
        Some(Place::take(self, connection))
    }

    pub(super) async fn open(&self) -> Result<Connection, OpenError> {
        Connection::open(self.address, &self.origin, self.lost.clone()).await
    }

    async fn place_for_stream(self: &Arc<Self>) -> Result<Place, OpenError> {
        if let Some(place) = self.room_for_stream() {
            return Ok(place);
        }
        let since = Instant::now();
        let mut opening = self.opening.lock().await;
        if let Some(place) = self.room_for_stream() {
            return Ok(place);
        }
        // Else all who wait would be told one after the other.
        if opening.is_some_and(|failed| failed >= since) {
            return Err(OpenError::Unanswered);
        }
        let opened = self.open().await;
        let connection = Arc::new(opened.inspect_err(|_| *opening = Some(Instant::now()))?);
        let place = Place::take(self, &connection);
        self.state().streams.push(connection);
        Ok(place)
    }

    /// The first connection stays; of the others, those at the end are closed when nothing is left on
    /// them.
    fn room_for_stream(self: &Arc<Self>) -> Option<Place> {
        let mut state = self.state();
        let streams = &mut state.streams;
        streams.retain(|connection| connection.is_open());
        while streams.len() > 1 && streams.last().is_some_and(|last| last.under_way() == 0) {
            streams.pop();
        }
        let roomy = streams.iter().find(|connection| connection.under_way() < self.streams_max)?;
        Some(Place::take(self, roomy))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call's place on a connection, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    endpoint: Arc<Endpoint>,
    connection: Arc<Connection>,
}

impl Place {
    fn take(endpoint: &Arc<Endpoint>, connection: &Arc<Connection>) -> Self {
        endpoint.under_way.fetch_add(1, Relaxed);
        connection.begin();
        Self { endpoint: endpoint.clone(), connection: connection.clone() }
    }

    /// Returns a place at the same address on the first connection that has room for a stream, or on a
    /// new one.
    pub(super) async fn for_stream(self) -> Result<Self, OpenError> {
        let place = self.endpoint.place_for_stream().await;
        place.inspect_err(|_| self.leave_all())
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Draws the conclusion from a failure: which connections take no more requests. What is under
    /// way on them goes on, and the keeper opens new ones.
    pub(super) fn settle(&self, failure: &Failure) {
        match failure.kind {
            _ if !failure.ends_connection => {}
            // It may just have become too old.
            Kind::Unseen => self.leave(),
            Kind::Away | Kind::Broken | Kind::Silent => self.leave_all(),
        }
    }

    fn leave(&self) {
        if self.connection.leave() {
            self.endpoint.lost.notify_one();
        }
    }

    /// The other connections to the address are not to be trusted either: when a server dies, they
    /// end one by one.
    fn leave_all(&self) {
        if self.connection.leave() {
            self.endpoint.state().calls.iter().for_each(|connection| {
                connection.leave();
            });
            self.endpoint.lost.notify_one();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connection.end();
        self.endpoint.under_way.fetch_sub(1, Relaxed);
    }
}
