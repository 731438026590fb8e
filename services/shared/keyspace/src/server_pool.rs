//! Server pool: a few multiplexed connections to one server, in a deadpool. A checkout clones a
//! connection and returns it at once, so concurrent calls share connections. The pool replaces
//! closed ones.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use deadpool::managed::{Manager, Metrics, Pool, PoolError, RecycleError, RecycleResult};
use futures::{FutureExt as _, future::join_all};
use redis::{Cmd, RedisError, Value};
use tokio::time::{Instant, timeout_at};

use crate::{
    Error,
    address::Node,
    connection_metrics::{ConnectionGuard, ConnectionMetrics},
    endpoint::Endpoint,
    error::{TimedOut, within},
    lock::lock,
    multiplexed::Multiplexed,
};

// After a failure to connect, calls without a connection fail at once for this time.
const RECONNECT_BACKOFF: Duration = Duration::from_millis(50);

/// Makes the pools of servers.
#[derive(Clone)]
pub(crate) struct ServerPoolOptions {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) size: usize,
    pub(crate) timeout: Duration,
    pub(crate) metrics: ConnectionMetrics,
}

/// The shared connections to one server.
#[derive(Clone)]
pub(crate) struct ServerPool {
    pool: Pool<Connector>,
    // One more than the pool has connections: after a restart of Redis, each one is closed.
    attempts: usize,
    resets: Arc<AtomicU64>,
}

impl ServerPoolOptions {
    /// Returns a pool of connections to a cluster node; without a node, to the single server or to
    /// the primary that the Sentinels report. Does not connect.
    pub(crate) fn pool(&self, node: Option<Node>) -> Result<ServerPool, Error> {
        let size = self.size;
        let connector = Connector {
            endpoint: self.endpoint.clone(),
            node,
            failure: Mutex::default(),
            warm: Mutex::default(),
            metrics: self.metrics.clone(),
        };
        // FIFO, the default: round robin over the connections.
        let pool = Pool::builder(connector).max_size(size).build();
        let pool = pool.map_err(|error| Error::Config(error.into()))?;
        Ok(ServerPool { pool, attempts: size + 1, resets: Arc::default() })
    }
}

impl ServerPool {
    /// Fills the pool. Without this, a call connects only if the pool is empty.
    ///
    /// Connects outside of the pool, so that calls continue on the existing connections.
    pub(crate) async fn warm_up(&self) -> Result<(), Error> {
        self.pool.retain(|pooled, _| !pooled.connection.is_closed());
        let status = self.pool.status();
        let connector = self.pool.manager();
        let missing = (status.size..status.max_size).map(|_| connector.connect());
        let mut result = Ok(());
        for pooled in join_all(missing).await {
            match pooled {
                Ok(pooled) => lock(&connector.warm).push(pooled),
                Err(error) => result = Err(error.into()),
            }
        }
        // The pool creates a connection only while all others are checked out. This loop checks all
        // of them out without waiting.
        let mut checked_out = Vec::new();
        while !lock(&connector.warm).is_empty()
            && let Some(Ok(pooled)) = self.pool.get().now_or_never()
        {
            checked_out.push(pooled);
        }
        lock(&connector.warm).clear();
        result
    }

    /// Sends commands in one write on one connection, and returns their replies, which may be error
    /// replies.
    ///
    /// If the connection is dropped, sends them again on another one: each command may run twice. A
    /// timeout is an error: the commands may still run.
    pub(crate) async fn send<'a>(
        &self,
        commands: impl ExactSizeIterator<Item = &'a Cmd> + Clone,
        deadline: Instant,
    ) -> Result<Vec<Value>, Error> {
        for _ in 0..self.attempts {
            let connection = self.checkout(deadline).await?;
            match timeout_at(deadline, connection.send(commands.clone())).await {
                Ok(Ok(replies)) => return Ok(replies.values),
                Ok(Err(error)) if error.is_connection_dropped() => {}
                Ok(Err(error)) if !error.is_timeout() => return Err(error.into()),
                Ok(Err(_)) | Err(_) => return Err(Error::unavailable(TimedOut)),
            }
        }
        Err(Error::unavailable(std::io::Error::from(std::io::ErrorKind::ConnectionReset)))
    }

    async fn checkout(&self, deadline: Instant) -> Result<Multiplexed, Error> {
        within(deadline, async { Ok(self.pool.get().await?.connection.clone()) }).await
    }

    /// Discards all connections, and connects again after the backoff.
    pub(crate) fn reset(&self, error: RedisError) {
        self.resets.fetch_add(1, Ordering::Relaxed);
        self.pool.retain(|_, _| false);
        self.pool.manager().record_failure(error);
    }

    /// Returns how many times the pool was reset.
    pub(crate) fn resets(&self) -> u64 {
        self.resets.load(Ordering::Relaxed)
    }
}

struct Pooled {
    connection: Multiplexed,
    _guard: ConnectionGuard,
}

/// Creates the connections of the pool (deadpool's `Manager`).
struct Connector {
    endpoint: Arc<Endpoint>,
    node: Option<Node>,
    // The last failure to connect, and its time.
    failure: Mutex<Option<(Instant, RedisError)>>,
    // Open connections that are not in the pool yet.
    warm: Mutex<Vec<Pooled>>,
    metrics: ConnectionMetrics,
}

impl Connector {
    async fn connect(&self) -> Result<Pooled, RedisError> {
        let failure = lock(&self.failure).clone();
        if let Some((_, error)) = failure.filter(|(at, _)| at.elapsed() < RECONNECT_BACKOFF) {
            return Err(error);
        }
        match self.metrics.measure(self.endpoint.connect(self.node.as_ref())).await {
            Ok((connection, _guard)) => Ok(Pooled { connection, _guard }),
            Err(error) => {
                self.record_failure(error.clone());
                Err(error)
            }
        }
    }

    fn record_failure(&self, error: RedisError) {
        *lock(&self.failure) = Some((Instant::now(), error));
    }
}

impl Manager for Connector {
    type Type = Pooled;
    type Error = RedisError;

    async fn create(&self) -> Result<Pooled, RedisError> {
        let warm = lock(&self.warm).pop();
        match warm {
            Some(pooled) => Ok(pooled),
            // Boxed: this large and rare future would be part of every command's future.
            None => Box::pin(self.connect()).await,
        }
    }

    async fn recycle(&self, pooled: &mut Pooled, _: &Metrics) -> RecycleResult<RedisError> {
        if pooled.connection.is_closed() {
            return Err(RecycleError::message("closed"));
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
