//! Connections of one's own (deadpool-redis), each straight to one node, for what would hold up
//! everybody else on a shared one: blocking reads, and WAIT, which is about what the same
//! connection wrote.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use deadpool_redis::{Connection, Manager, Pool, Status};
use redis::{
    Cmd, ConnectionInfo, FromRedisValue, RedisResult, aio::ConnectionLike as _,
    cluster_routing::Slot,
};
use tokio::time::timeout;

use crate::{
    Error, cluster,
    connected::{Connected, Counted},
    endpoint::Endpoint,
    error::TimedOut,
    keyspace::decode,
    links::Links,
    lock::lock,
};

/// A pool for each node: few, since clusters have few nodes.
pub(crate) struct ExclusiveLinks {
    pools: Mutex<HashMap<String, NodePool>>,
    size: usize,
    timeout: Duration,
    connected: Connected,
}

/// The connections to a node, all with the certificates of one moment.
struct NodePool {
    pool: Pool,
    generation: u64,
}

impl ExclusiveLinks {
    pub(crate) fn new(size: usize, timeout: Duration, connected: Connected) -> Self {
        Self { pools: Mutex::default(), size, timeout, connected }
    }

    /// Returns a connection to the node that holds a key now.
    pub(crate) async fn get(&self, links: &Links, key: &str) -> Result<Exclusive, Error> {
        let get = async {
            let endpoint = links.endpoint();
            // Before what is made with them: else it might be taken for newer than it is.
            let generation = endpoint.generation();
            let node = match endpoint.primary().await? {
                Some(node) => node,
                None => endpoint.node(&cluster::primary(links, Slot::for_key(key)).await?)?,
            };
            let name = node.addr().to_string();
            let connection = self.pool(&name, node, generation, endpoint)?.get().await;
            let connection = connection.map_err(|error| {
                self.forget_unused(&name);
                Error::unavailable(error)
            })?;
            let _counted = self.connected.counted();
            Ok(Exclusive { connection: Some(connection), _counted })
        };
        timeout(self.timeout, get).await.map_err(|_| Error::unavailable(TimedOut(self.timeout)))?
    }

    fn pool(
        &self,
        name: &str,
        node: ConnectionInfo,
        generation: u64,
        endpoint: &Endpoint,
    ) -> Result<Pool, Error> {
        let mut pools = self.lock();
        // That of certificates before goes with its last connection.
        if let Some(known) = pools.get(name).filter(|known| known.generation == generation) {
            return Ok(known.pool.clone());
        }
        let manager = Manager::new_with_config(node, endpoint.connection_config())?;
        let pool = Pool::builder(manager).max_size(self.size).build();
        let pool = pool.map_err(|error| Error::Config(error.into()))?;
        pools.insert(name.to_owned(), NodePool { pool: pool.clone(), generation });
        Ok(pool)
    }

    // A node that has gone for ever leaves nothing behind. A pool of which somebody has a connection,
    // or is about to, stays: its successor would not count that one.
    fn forget_unused(&self, name: &str) {
        let mut pools = self.lock();
        let is_unused = |status: Status| status.size == 0 && status.waiting == 0;
        if pools.get(name).is_some_and(|known| is_unused(known.pool.status())) {
            pools.remove(name);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, NodePool>> {
        lock(&self.pools)
    }
}

/// A connection that nobody else uses, to the node that held a key when it was taken. It goes back
/// when dropped, and is closed after a failure.
pub struct Exclusive {
    connection: Option<Connection>,
    _counted: Counted,
}

impl Exclusive {
    /// Sends a command and waits for its answer up to `longest`, which must be more than the
    /// command's own BLOCK or time-out.
    ///
    /// After [`Error::Unavailable`], a time-out among others, and when dropped before its end, the
    /// connection is closed: take another one. No function is loaded here, and no command repeated.
    pub async fn query<T: FromRedisValue>(
        &mut self,
        command: &Cmd,
        longest: Duration,
    ) -> Result<T, Error> {
        let mut on = InFlight { place: &mut self.connection, is_answered: false };
        let Some(connection) = on.place else {
            return Err(Error::unavailable("the exclusive connection is closed"));
        };
        let answer = async {
            let answer: RedisResult<_> = connection.req_packed_command(command).await;
            decode(answer?)
        };
        let answer = timeout(longest, answer).await;
        let answer = answer.unwrap_or_else(|_| Err(Error::unavailable(TimedOut(longest))));
        on.is_answered = !answer.as_ref().is_err_and(Error::is_unavailable);
        answer
    }
}

// A connection with a command on it. Out of the pool when dropped before the answer, as by a caller
// who leaves: it would come on it yet, to somebody else's surprise, or it is at a wrong node.
struct InFlight<'a> {
    place: &'a mut Option<Connection>,
    is_answered: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            drop(self.place.take().map(Connection::take));
        }
    }
}
