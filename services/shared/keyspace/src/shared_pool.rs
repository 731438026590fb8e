//! Shared pool: a few multiplexed connections in a deadpool. A checkout clones a connection and
//! returns it at once, so concurrent calls share connections. The pool replaces broken ones.

use std::{
    borrow::Cow,
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use deadpool::managed::{Manager, Metrics, Pool, PoolError, RecycleError, RecycleResult};
use futures::{FutureExt as _, future::join_all};
use microblog_domain::Partition;
use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::time::{Instant, error::Elapsed, timeout_at};

use crate::{
    Error,
    address::Node,
    connection::{Connection, Pipeline, Request, Single},
    connection_metrics::{ConnectionGuard, ConnectionMetrics},
    endpoint::Endpoint,
    error::TimedOut,
    lock::lock,
    round_trip_metrics::RoundTripMetrics,
    route::Route,
    slots::KnownPrimaries,
};

// After a failure to connect, calls without a connection fail at once for this time.
const RECONNECT_BACKOFF: Duration = Duration::from_millis(50);

// After so many consecutive failures, a connection counts as broken.
const CONSECUTIVE_FAILURES_MAX: u32 = 3;

/// The shared connections of a keyspace.
#[derive(Clone)]
pub(crate) struct SharedPool {
    pool: Pool<Connector>,
    timeout: Duration,
    // One more than the pool has connections: after a restart of Redis, each one is broken.
    attempts: usize,
    // The primaries of the cluster.
    primaries: Arc<Mutex<KnownPrimaries>>,
    resets: Arc<AtomicU64>,
    round_trip_metrics: Arc<RoundTripMetrics>,
}

impl SharedPool {
    pub(crate) fn new(
        endpoint: Arc<Endpoint>,
        round_trip_metrics: Arc<RoundTripMetrics>,
        size: usize,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let metrics = ConnectionMetrics::new(round_trip_metrics.keyspace(), "shared");
        let connector = Connector::new(endpoint, metrics);
        // FIFO, the default: round robin over the connections.
        let pool = Pool::builder(connector).max_size(size).build();
        let pool = pool.map_err(|error| Error::Config(error.into()))?;
        let (primaries, resets) = (Arc::default(), Arc::default());
        Ok(Self { pool, timeout, attempts: size + 1, primaries, resets, round_trip_metrics })
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.endpoint().is_cluster()
    }

    /// Returns the timeout of a request.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.pool.manager().endpoint
    }

    pub(crate) fn round_trip_metrics(&self) -> &RoundTripMetrics {
        &self.round_trip_metrics
    }

    /// Fills the pool. Without this, a call connects only if the pool is empty.
    ///
    /// Connects outside of the pool, so that calls continue on the existing connections.
    pub(crate) async fn warm_up(&self) -> Result<(), Error> {
        self.pool.retain(|connection, _| !connection.health.is_broken());
        let status = self.pool.status();
        let connector = self.pool.manager();
        let missing = (status.size..status.max_size).map(|_| connector.connect());
        let mut result = Ok(());
        for connection in join_all(missing).await {
            match connection {
                Ok(connection) => connector.push_warm(connection),
                Err(error) => result = Err(error.into()),
            }
        }
        // The pool creates a connection only while all others are checked out. This loop checks all
        // of them out without waiting.
        let mut checked_out = Vec::new();
        while connector.has_warm()
            && let Some(Ok(connection)) = self.pool.get().now_or_never()
        {
            checked_out.push(connection);
        }
        connector.clear_warm();
        result
    }

    /// Updates the primaries of the cluster. After a failover, discards all connections: the client
    /// library reaches the new primary as the replica that it was, does not notice the failover,
    /// and returns to the old primary once that is up again.
    pub(crate) fn update_primaries(&self, primaries: &HashSet<Node>) {
        if lock(&self.primaries).update(primaries) {
            self.pool.retain(|_, _| false);
        }
    }

    /// Sends one command and returns the reply, which may be an error reply.
    pub(crate) async fn command(&self, command: Cmd, route: Route) -> Result<Value, Error> {
        let round_trip = self.round_trip_metrics.begin(std::iter::once(&command));
        let reply = self.send(Single { command, route }).await;
        round_trip.end(reply.as_ref().map(std::slice::from_ref));
        let reply = reply?;
        self.reset_on_readonly(std::slice::from_ref(&reply));
        Ok(reply)
    }

    /// Sends commands with their partitions, and returns the replies, which may be error replies.
    pub(crate) async fn commands(
        &self,
        commands: Vec<(Partition, Cow<'_, Cmd>)>,
    ) -> Result<Vec<Value>, Error> {
        let round_trip =
            self.round_trip_metrics.begin(commands.iter().map(|(_, command)| &**command));
        let replies = self.send(Pipeline { commands }).await;
        round_trip.end(replies.as_deref());
        let replies = replies?;
        self.reset_on_readonly(&replies);
        Ok(replies)
    }

    // Sends a request, and retries it on another connection if a connection was dropped: every
    // command may run twice. Ends within the timeout.
    async fn send<R: Request>(&self, request: R) -> Result<R::Reply, Error> {
        let deadline = Instant::now() + self.timeout;
        for _ in 0..self.attempts {
            let pooled = self.checkout(deadline).await?;
            let reply = timeout_at(deadline, request.send(&pooled.connection)).await;
            if let Some(reply) = self.record_outcome(&pooled.health, reply) {
                return reply;
            }
        }
        Err(Error::unavailable(std::io::Error::from(std::io::ErrorKind::ConnectionReset)))
    }

    // READONLY: the primary has become a replica.
    fn reset_on_readonly(&self, replies: &[Value]) {
        let is_readonly = |reply: &&Value| matches!(reply, Value::ServerError(error) if error.code() == "READONLY");
        if let Some(Value::ServerError(error)) = replies.iter().find(is_readonly) {
            self.reset(error.clone().into());
        }
    }

    /// Discards all connections, and connects again after the backoff.
    pub(crate) fn reset(&self, error: RedisError) {
        self.resets.fetch_add(1, Ordering::Relaxed);
        self.pool.retain(|_, _| false);
        self.pool.manager().record_failure(error);
    }

    /// Returns how many times the pool was reset because its server was not a primary.
    pub(crate) fn resets(&self) -> u64 {
        self.resets.load(Ordering::Relaxed)
    }

    async fn checkout(&self, deadline: Instant) -> Result<PooledConnection, Error> {
        match timeout_at(deadline, self.pool.get()).await {
            Ok(Ok(pooled)) => Ok(pooled.clone()),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Error::unavailable(TimedOut(self.timeout))),
        }
    }

    // Updates the health of a connection. Returns `None` if the connection was dropped, so that the
    // request is to be retried.
    fn record_outcome<T>(
        &self,
        health: &Health,
        reply: Result<RedisResult<T>, Elapsed>,
    ) -> Option<Result<T, Error>> {
        match reply {
            Ok(Ok(reply)) => {
                health.record_success();
                Some(Ok(reply))
            }
            // The cluster client of the library has retried already, and reconnects by itself.
            Ok(Err(error)) if self.is_cluster() => {
                health.record_failure();
                Some(Err(error.into()))
            }
            Ok(Err(error)) if error.is_unrecoverable_error() => {
                health.broken.store(true, Ordering::Relaxed);
                if error.is_connection_dropped() { None } else { Some(Err(error.into())) }
            }
            Ok(Err(error)) => Some(Err(error.into())),
            Err(_) => {
                health.record_failure();
                Some(Err(Error::unavailable(TimedOut(self.timeout))))
            }
        }
    }
}

#[derive(Clone)]
struct PooledConnection {
    connection: Connection,
    /// The generation of its TLS certificates.
    certificates: u64,
    health: Arc<Health>,
}

/// The health of a connection, shared by its users.
#[derive(Default)]
pub(crate) struct Health {
    broken: AtomicBool,
    consecutive_failures: AtomicU32,
    // Dropped with the last user: the connection is counted until then.
    _guard: Option<ConnectionGuard>,
}

impl Health {
    /// Returns the health of a new connection.
    pub(crate) fn new(guard: ConnectionGuard) -> Self {
        Self { _guard: Some(guard), ..Self::default() }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Records a reply.
    pub(crate) fn record_success(&self) {
        // Writes only if needed, so that the cache line stays shared.
        if self.consecutive_failures.load(Ordering::Relaxed) != 0 {
            self.consecutive_failures.store(0, Ordering::Relaxed);
        }
    }

    /// Records a timeout or another failure, which may be temporary.
    pub(crate) fn record_failure(&self) {
        let failures = self.consecutive_failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures >= CONSECUTIVE_FAILURES_MAX {
            self.broken.store(true, Ordering::Relaxed);
        }
    }
}

/// Creates the connections of the pool (deadpool's `Manager`).
struct Connector {
    endpoint: Arc<Endpoint>,
    // The last failure to connect, and its time.
    failure: Mutex<Option<(Instant, RedisError)>>,
    // Open connections that are not in the pool yet.
    warm: Mutex<Vec<PooledConnection>>,
    metrics: ConnectionMetrics,
}

impl Connector {
    fn new(endpoint: Arc<Endpoint>, metrics: ConnectionMetrics) -> Self {
        Self { endpoint, failure: Mutex::default(), warm: Mutex::default(), metrics }
    }

    async fn connect(&self) -> Result<PooledConnection, RedisError> {
        let failure = lock(&self.failure).clone();
        if let Some((_, error)) = failure.filter(|(at, _)| at.elapsed() < RECONNECT_BACKOFF) {
            return Err(error);
        }
        // Read before connecting: a concurrent reload then causes one superfluous reconnect.
        let certificates = self.endpoint.certificate_generation();
        match self.metrics.measure(self.endpoint.connect()).await {
            Ok((connection, guard)) => {
                let health = Arc::new(Health::new(guard));
                Ok(PooledConnection { connection, certificates, health })
            }
            Err(error) => {
                self.record_failure(error.clone());
                Err(error)
            }
        }
    }

    fn record_failure(&self, error: RedisError) {
        *lock(&self.failure) = Some((Instant::now(), error));
    }

    fn push_warm(&self, connection: PooledConnection) {
        lock(&self.warm).push(connection);
    }

    fn has_warm(&self) -> bool {
        !lock(&self.warm).is_empty()
    }

    fn clear_warm(&self) {
        lock(&self.warm).clear();
    }
}

impl Manager for Connector {
    type Type = PooledConnection;
    type Error = RedisError;

    async fn create(&self) -> Result<PooledConnection, RedisError> {
        let warm = lock(&self.warm).pop();
        match warm {
            Some(connection) => Ok(connection),
            // Boxed: this large and rare future would be part of every command's future.
            None => Box::pin(self.connect()).await,
        }
    }

    async fn recycle(
        &self,
        pooled: &mut PooledConnection,
        _: &Metrics,
    ) -> RecycleResult<RedisError> {
        if pooled.health.is_broken() || self.endpoint.has_outdated_certificates(pooled.certificates)
        {
            return Err(RecycleError::message("broken"));
        }
        Ok(())
    }
}

impl From<PoolError<RedisError>> for Error {
    fn from(error: PoolError<RedisError>) -> Self {
        match error {
            PoolError::Backend(error) => error.into(),
            error => Self::unavailable(error),
        }
    }
}
