//! Server pool: a few multiplexed connections to one server. A checkout clones a connection, so
//! concurrent calls share connections. The pool replaces closed ones.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{Cmd, RedisError, Value};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

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
    shared: Arc<Shared>,
}

struct Shared {
    options: ServerPoolOptions,
    /// The cluster node; `None` for the single server or the primary that the Sentinels report.
    node: Option<Node>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Used in turn: the first one next.
    connections: VecDeque<Pooled>,
    /// The last attempt to connect. Its sender is dropped when it ends.
    attempt: Option<watch::Receiver<()>>,
    /// The last failure to connect, and its time.
    failure: Option<(Instant, RedisError)>,
}

struct Pooled {
    connection: Multiplexed,
    _guard: ConnectionGuard,
}

impl ServerPoolOptions {
    /// Returns a pool of connections to a cluster node; without a node, to the single server or to
    /// the primary that the Sentinels report. Does not connect.
    pub(crate) fn pool(&self, node: Option<Node>) -> ServerPool {
        let state = Mutex::default();
        ServerPool { shared: Arc::new(Shared { options: self.clone(), node, state }) }
    }
}

impl ServerPool {
    /// Fills the pool. Without this, a call connects only if the pool is empty.
    pub(crate) async fn warm_up(&self) -> Result<(), Error> {
        let ServerPoolOptions { size, timeout, .. } = self.shared.options;
        within(Instant::now() + timeout, self.checkout(size)).await.map(drop)
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
        // One attempt more than the pool has connections: after a restart of Redis, each is closed.
        for _ in 0..=self.shared.options.size {
            let connection = within(deadline, self.checkout(1)).await?;
            match timeout_at(deadline, connection.send(commands.clone())).await {
                Ok(Ok(replies)) => return Ok(replies.values),
                Ok(Err(error)) if error.is_connection_dropped() => {}
                Ok(Err(error)) if !error.is_timeout() => return Err(error.into()),
                Ok(Err(_)) | Err(_) => return Err(Error::unavailable(TimedOut)),
            }
        }
        Err(Error::unavailable(std::io::Error::from(std::io::ErrorKind::ConnectionReset)))
    }

    /// Returns a connection once the pool has `count` of them, which is at least one. Connects to one
    /// after the other.
    async fn checkout(&self, count: usize) -> Result<Multiplexed, Error> {
        loop {
            let mut attempt = {
                let mut state = lock(&self.shared.state);
                let endpoint = &self.shared.options.endpoint;
                state.connections.retain(|pooled| endpoint.is_current(&pooled.connection));
                if state.connections.len() >= count {
                    state.connections.rotate_left(1);
                    if let Some(pooled) = state.connections.back() {
                        return Ok(pooled.connection.clone());
                    }
                }
                self.join_attempt(&mut state)?
            };
            // An error means that the attempt has ended.
            let _ended = attempt.changed().await;
        }
    }

    /// Joins the current attempt to connect, or starts one. It is a task of its own, so that it
    /// continues when the calls that wait for it are cancelled.
    fn join_attempt(&self, state: &mut State) -> Result<watch::Receiver<()>, RedisError> {
        let is_current = |attempt: &&watch::Receiver<()>| attempt.has_changed().is_ok();
        if let Some(attempt) = state.attempt.as_ref().filter(is_current) {
            return Ok(attempt.clone());
        }
        if let Some((at, error)) = &state.failure
            && at.elapsed() < RECONNECT_BACKOFF
        {
            return Err(error.clone());
        }
        let (sender, attempt) = watch::channel(());
        state.attempt = Some(attempt.clone());
        let shared = self.shared.clone();
        tokio::spawn(async move {
            let _sender = sender;
            let ServerPoolOptions { endpoint, metrics, .. } = &shared.options;
            let connected = metrics.measure(endpoint.connect(shared.node.as_ref())).await;
            let mut state = lock(&shared.state);
            match connected {
                Ok((connection, _guard)) => {
                    state.connections.push_back(Pooled { connection, _guard });
                }
                Err(error) => state.failure = Some((Instant::now(), error)),
            }
        });
        Ok(attempt)
    }

    /// Discards the connections of a generation, and connects again after the backoff.
    pub(crate) fn reset(&self, generation: u64, error: RedisError) {
        let mut state = lock(&self.shared.state);
        self.shared.options.endpoint.discard_connections(generation);
        state.failure = Some((Instant::now(), error));
    }
}
