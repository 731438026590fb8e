//! One endpoint of a peer: its connections and the calls in flight on them. `reconnector.rs` opens
//! the connections for calls.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use rand::RngExt as _;
use tokio::{sync::Notify, time::Instant};

use super::{
    address::Origin,
    connection::{ConnectError, Connection},
    failure::{Failure, Kind},
};
use crate::config::Config;

// The delay doubles after each failure. Calls without another endpoint end it early.
const DELAY_MIN: Duration = Duration::from_millis(50);
const DELAY_MAX: Duration = Duration::from_secs(5);

pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    pub(super) origin: Origin,
    /// Target number of connections for calls.
    pub(super) connections: usize,
    /// Streams per connection, assuming that the peer has the same `--max-streams`.
    streams_max: usize,
    in_flight: AtomicUsize,
    state: Mutex<Connections>,
    /// Notified when a connection closes.
    pub(super) closed: Arc<Notify>,
    /// Notified when calls have no other endpoint: ends the backoff.
    pub(super) connect_now: Notify,
    /// Held while opening a connection for streams, so that concurrent calls share one attempt.
    /// Contains the time of the last failure.
    stream_connect: tokio::sync::Mutex<Option<Instant>>,
}

impl Endpoint {
    /// Creates an endpoint without connections.
    pub(super) fn new(address: SocketAddr, origin: Origin, config: &Config) -> Self {
        Self {
            address,
            origin,
            connections: config.peer_connections,
            streams_max: config.max_streams as usize,
            in_flight: AtomicUsize::new(0),
            state: Mutex::default(),
            closed: Arc::default(),
            connect_now: Notify::new(),
            stream_connect: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the number of calls in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// Returns whether a connection for calls is open.
    pub(super) fn is_live(&self) -> bool {
        self.state().calls.iter().any(|connection| connection.is_open())
    }

    /// Leases the first connection of which less than half of the streams are in use, or else the one
    /// with the fewest calls in flight. `None` if none is open.
    ///
    /// Calls that share a connection share system calls and wake-ups on both sides. More connections
    /// reach more worker threads of the server.
    pub(super) fn lease_for_call(self: &Arc<Self>) -> Option<CallLease> {
        let state = self.state();
        let open = || state.calls.iter().filter(|connection| connection.is_open());
        let connection = open()
            .find(|connection| connection.in_flight() < self.streams_max / 2)
            .or_else(|| open().min_by_key(|connection| connection.in_flight()))?;
        Some(CallLease::acquire(self, connection))
    }

    async fn lease_for_stream(self: &Arc<Self>) -> Result<CallLease, ConnectError> {
        if let Some(lease) = self.existing_stream_lease() {
            return Ok(lease);
        }
        let since = Instant::now();
        let mut stream_connect = self.stream_connect.lock().await;
        if let Some(lease) = self.existing_stream_lease() {
            return Ok(lease);
        }
        // All waiting calls share this failure; otherwise each would retry in turn.
        if stream_connect.is_some_and(|failed| failed >= since) {
            return Err(ConnectError::ProbeTimeout);
        }
        let opened =
            Connection::open_for_streams(self.address, &self.origin, self.closed.clone()).await;
        let connection = Arc::new(opened.inspect_err(|_| *stream_connect = Some(Instant::now()))?);
        let lease = CallLease::acquire(self, &connection);
        self.state().streams.push(connection);
        Ok(lease)
    }

    /// Leases an open connection with capacity for a stream. Also closes idle connections at the
    /// end of the list, except the first.
    fn existing_stream_lease(self: &Arc<Self>) -> Option<CallLease> {
        let mut state = self.state();
        let streams = &mut state.streams;
        streams.retain(|connection| connection.is_open());
        while streams.len() > 1 && streams.last().is_some_and(|last| last.in_flight() == 0) {
            streams.pop();
        }
        let with_capacity =
            streams.iter().find(|connection| connection.in_flight() < self.streams_max)?;
        Some(CallLease::acquire(self, with_capacity))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, Connections> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connections of an endpoint, and its backoff.
#[derive(Debug, Default)]
pub(super) struct Connections {
    pub(super) calls: Vec<Arc<Connection>>,
    // Separate connections for streams, opened on demand: streams may last for hours, and would
    // occupy all slots.
    pub(super) streams: Vec<Arc<Connection>>,
    pub(super) backoff: Backoff,
}

/// Lease of a call's in-flight slot on a connection, released on drop.
pub(super) struct CallLease {
    endpoint: Arc<Endpoint>,
    connection: Arc<Connection>,
}

impl CallLease {
    fn acquire(endpoint: &Arc<Endpoint>, connection: &Arc<Connection>) -> Self {
        endpoint.in_flight.fetch_add(1, Relaxed);
        connection.acquire();
        Self { endpoint: endpoint.clone(), connection: connection.clone() }
    }

    /// Exchanges the lease for one of a stream at the same endpoint: on the first connection with
    /// capacity, or on a new one.
    pub(super) async fn for_stream(self) -> Result<Self, ConnectError> {
        let lease = self.endpoint.lease_for_stream().await;
        lease.inspect_err(|_| self.drain_endpoint())
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Outlier ejection: stops using connections after a failure. Their calls in flight complete,
    /// and the reconnector replaces them.
    pub(super) fn on_failure(&self, failure: &Failure) {
        match failure.kind {
            _ if !failure.ends_connection => {}
            // The server may just have closed the connection for its age.
            Kind::Unsent => self.drain(),
            Kind::Unavailable | Kind::Reset | Kind::TimedOut => self.drain_endpoint(),
        }
    }

    fn drain(&self) {
        if self.connection.drain() {
            self.endpoint.closed.notify_one();
        }
    }

    /// Drains all connections to the endpoint: when a server dies, they close one by one. One that the
    /// server was closing says nothing of the others, which may be to its successor.
    fn drain_endpoint(&self) {
        if self.connection.drain() && !self.connection.is_closing() {
            self.endpoint.state().calls.iter().for_each(|connection| {
                connection.drain();
            });
        }
        self.endpoint.closed.notify_one();
    }
}

impl Drop for CallLease {
    fn drop(&mut self) {
        self.connection.release();
        self.endpoint.in_flight.fetch_sub(1, Relaxed);
    }
}

/// Exponential backoff with jitter between attempts to connect.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    pub(super) phase: Phase,
    /// Failures since the last reset.
    failures: u32,
}

/// Phase of a backoff.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// The last attempt succeeded, or there was none.
    #[default]
    Inactive,
    /// An attempt failed; the next one is scheduled.
    Waiting { failed_at: Instant, retry_at: Instant },
    /// An attempt failed at this time; the next one is running.
    Retrying(Instant),
}

impl Backoff {
    /// Schedules the next attempt after a failure.
    pub(super) fn start(&mut self) {
        let doublings = self.failures.min(16);
        let delay = DELAY_MAX.min(DELAY_MIN * (1 << doublings));
        // Jitter: the clients of a server must not reconnect all at once.
        let delay = delay.mul_f64(rand::rng().random_range(0.5..1.0));
        let failed_at = Instant::now();
        self.phase = Phase::Waiting { failed_at, retry_at: failed_at + delay };
        self.failures = self.failures.saturating_add(1);
    }

    /// Makes the next delay the shortest.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}
