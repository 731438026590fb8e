//! Dedicated pools: connections with one user at a time, in a pool (deadpool-redis) for each node.
//! Blocking reads would stall a shared connection, and WAIT concerns the writes of its own
//! connection.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use deadpool_redis::{Connection, Manager, Pool, Status};
use redis::{Cmd, ConnectionInfo, FromRedisValue, Pipeline, Value, aio::ConnectionLike as _};
use tokio::time::Instant;

use crate::{
    Error,
    connection_metrics::{ConnectionGuard, ConnectionMetrics},
    endpoint::Endpoint,
    error::within,
    lock::lock,
    reply::decode,
    shared_pool::SharedPool,
};

/// The pools by node address.
pub(crate) struct DedicatedPools {
    pools: Mutex<HashMap<String, NodePool>>,
    size: usize,
    timeout: Duration,
    metrics: ConnectionMetrics,
}

/// The connections to one node.
struct NodePool {
    pool: Pool,
    /// The generation of the certificates and the password with which it connects.
    files: u64,
}

impl DedicatedPools {
    pub(crate) fn new(size: usize, timeout: Duration, metrics: ConnectionMetrics) -> Self {
        Self { pools: Mutex::default(), size, timeout, metrics }
    }

    /// Returns a connection to the primary that holds a key.
    pub(crate) async fn get(
        &self,
        shared: &SharedPool,
        key: &str,
    ) -> Result<DedicatedConnection, Error> {
        let get = async {
            let endpoint = shared.endpoint();
            // Read before connecting: otherwise old files could pass for reloaded ones.
            let mut files = endpoint.files_generation();
            let connection = loop {
                let node = shared.server_of(key).await?;
                let address = node.addr().to_string();
                let error = match self.pool(&address, node, files, endpoint)?.get().await {
                    Ok(connection) => break connection,
                    Err(error) => error,
                };
                self.remove_unused(&address);
                // The pool connects with the password that it was made with.
                let reloaded = endpoint.reload_files();
                if reloaded == files {
                    shared.report_failure();
                    return Err(Error::unavailable(error));
                }
                files = reloaded;
            };
            let _guard = self.metrics.count();
            Ok(DedicatedConnection { connection: Some(connection), shared: shared.clone(), _guard })
        };
        within(Instant::now() + self.timeout, get).await
    }

    fn pool(
        &self,
        address: &str,
        node: ConnectionInfo,
        files: u64,
        endpoint: &Endpoint,
    ) -> Result<Pool, Error> {
        let mut pools = self.pools();
        // A pool with old files is replaced. It ends with its last connection.
        if let Some(pool) = pools.get(address).filter(|pool| pool.files == files) {
            return Ok(pool.pool.clone());
        }
        let manager = Manager::new_with_config(node, endpoint.connection_config())?;
        let pool = Pool::builder(manager).max_size(self.size).build();
        let pool = pool.map_err(|error| Error::Config(error.into()))?;
        pools.insert(address.to_owned(), NodePool { pool: pool.clone(), files });
        Ok(pool)
    }

    // Removes the pool of a node that may be gone. A pool with connections or waiters stays: a new
    // pool would not count them towards its size.
    fn remove_unused(&self, address: &str) {
        let mut pools = self.pools();
        let is_unused = |status: Status| status.size == 0 && status.waiting == 0;
        if pools.get(address).is_some_and(|pool| is_unused(pool.pool.status())) {
            pools.remove(address);
        }
    }

    fn pools(&self) -> MutexGuard<'_, HashMap<String, NodePool>> {
        lock(&self.pools)
    }
}

/// A dedicated connection to the primary that held a key at checkout. Returns to its pool when
/// dropped, and is closed after a failure.
pub struct DedicatedConnection {
    connection: Option<Connection>,
    shared: SharedPool,
    _guard: ConnectionGuard,
}

impl DedicatedConnection {
    /// Sends a command and waits for the reply up to `longest`, which must exceed the BLOCK or
    /// timeout argument of the command.
    ///
    /// The connection is closed after [`Error::Unavailable`], also for a timeout, and when the
    /// future is dropped. Check out another one then. Loads no function and retries nothing.
    pub async fn query<T: FromRedisValue>(
        &mut self,
        command: &Cmd,
        longest: Duration,
    ) -> Result<T, Error> {
        let send = async |connection: &mut Connection| {
            decode(connection.req_packed_command(command).await?)
        };
        self.send(send, longest).await
    }

    /// Sends commands together, and waits for all replies like [`Self::query`]. These may be error
    /// replies.
    pub(crate) async fn query_all(
        &mut self,
        commands: &Pipeline,
        longest: Duration,
    ) -> Result<Vec<Value>, Error> {
        let count = commands.cmd_iter().count();
        let send = async |connection: &mut Connection| {
            Ok(connection.req_packed_commands(commands, 0, count).await?)
        };
        self.send(send, longest).await
    }

    async fn send<T>(
        &mut self,
        send: impl AsyncFnOnce(&mut Connection) -> Result<T, Error>,
        longest: Duration,
    ) -> Result<T, Error> {
        let (connection, shared) = (&mut self.connection, &self.shared);
        let mut in_flight = InFlight { connection, shared, is_complete: false };
        let Some(connection) = in_flight.connection else {
            return Err(Error::unavailable("the dedicated connection is closed"));
        };
        let reply = within(Instant::now() + longest, send(connection)).await;
        in_flight.is_complete = !reply.as_ref().is_err_and(Error::is_unavailable);
        reply
    }
}

// A command in flight. If its future is dropped, as by a cancelled call, or fails, the connection is
// removed from the pool: the next user would get the late reply, or reach the wrong node.
struct InFlight<'a> {
    connection: &'a mut Option<Connection>,
    shared: &'a SharedPool,
    is_complete: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.is_complete {
            drop(self.connection.take().map(Connection::take));
            self.shared.report_failure();
        }
    }
}
