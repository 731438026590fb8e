//! Client-side cache with server-assisted invalidation (`CLIENT TRACKING`,
//! <https://redis.io/docs/latest/develop/reference/client-side-caching/>). A cached read is as recent
//! as an uncached one.
//!
//! Consistency: on a tracked connection, Redis sends the invalidation of a key before any reply
//! that follows the change. Each read waits for a reply to a command that was unsent when the read
//! began, its own or another read's. Only then does it look into the cache, so all writes
//! acknowledged before the read are visible. A closed connection discards its cache.
//!
//! Insertion: a key may change while its value is on the way from the driver task to the cache. A
//! batch is therefore inserted only if no push message followed its first reply. (The last reply
//! would be too late: between two commands of a batch, Redis may run commands of other clients, and
//! evict keys from a full tracking table.)
//!
//! Clusters: each primary has a tracked connection and a cache of its own. A primary that migrates a
//! slot deletes its keys one by one, which invalidates them. Absent keys are not cached: they could
//! be created on the new primary without an invalidation. Each read sends a command with a key, and a
//! reply that the node does not serve the key's slot closes the connection. A new slot map discards
//! all caches.
//!
//! Atomic slot migration (`CLUSTER MIGRATION` of Redis 8.4 and later, `CLUSTER MIGRATESLOTS` of Valkey
//! 9) is not supported: the old primary deletes and invalidates the keys after the new one accepts
//! writes, and the reply that a read waits for shows the owner of one slot only. Cached values of other
//! slots may then be stale. Slots must be moved by `MIGRATE` (`redis-cli --cluster reshard`), or the
//! cache be disabled meanwhile.
//!
//! Admission: only recently requested keys are cached, and others are read over the shared pool.
//! Tracking a key costs Redis more than reading it.

mod entries;
mod kind;
mod servers;

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::future::try_join_all;
use redis::{Cmd, RedisResult, Value};
use tokio::time::Instant;

pub use self::kind::{Id, Kind};
use self::{
    entries::{Entries, Fresh, Misses},
    servers::{Server, Servers, Tracking},
};
use crate::{
    Batch, Error, Keyspace,
    cache_metrics::CacheMetrics,
    connection_metrics::{ConnectionGuard, ConnectionMetrics},
    error::within,
    lock::lock,
    multiplexed::{Multiplexed, Replies},
    reply::check,
    shared_pool::SharedPool,
};

// Minimum interval between a failed or closed tracked connection and the next attempt.
const RECONNECT_BACKOFF: Duration = Duration::from_secs(1);

/// A client-side cache of values of one kind. Cheap to clone. Belongs to the runtime that uses it.
pub struct ClientSideCache<I, T> {
    inner: Arc<Inner<I, T>>,
}

impl<I, T> Clone for ClientSideCache<I, T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

struct Inner<I, T> {
    keyspace: Keyspace,
    pool: SharedPool,
    kind: Kind<I, T>,
    bytes_max: usize,
    servers: Mutex<Servers<I, T>>,
    connection_metrics: ConnectionMetrics,
    metrics: CacheMetrics,
}

/// A read on a tracked connection: see [`ClientSideCache::begin_tracked`].
pub struct TrackedRead<I, T> {
    connection: Arc<TrackedConnection<I, T>>,
    ids: Vec<I>,
    /// Those of the ids that are not cached.
    misses: Vec<I>,
}

/// A connection with `CLIENT TRACKING` and the values read on it.
struct TrackedConnection<I, T> {
    connection: Multiplexed,
    entries: Arc<Mutex<Entries<I, T>>>,
    _guard: ConnectionGuard,
}

impl Keyspace {
    /// Returns a client-side cache of values of one kind. The Redis user needs PING and CLIENT
    /// TRACKING; without them, all reads bypass the cache.
    pub fn client_side_cache<I: Id, T: Clone + Send + 'static>(
        &self,
        kind: Kind<I, T>,
    ) -> ClientSideCache<I, T> {
        ClientSideCache::new(self.clone(), kind, self.cache_bytes_max())
    }
}

impl<I: Id, T: Clone + Send + 'static> ClientSideCache<I, T> {
    fn new(keyspace: Keyspace, kind: Kind<I, T>, bytes_max: usize) -> Self {
        let pool = keyspace.shared_pool().clone();
        let servers = Mutex::new(Servers::new(pool.is_cluster(), bytes_max));
        let name = keyspace.name();
        let connection_metrics = ConnectionMetrics::new(name, "tracking");
        let metrics = CacheMetrics::new(name);
        Self {
            inner: Arc::new(Inner {
                keyspace,
                pool,
                kind,
                bytes_max,
                servers,
                connection_metrics,
                metrics,
            }),
        }
    }

    /// Returns the values of `ids`, in their order.
    ///
    /// Takes one round trip to each server, or two concurrent ones if the admission filter rejects an
    /// id. Another one follows if a value is invalidated meanwhile, or if the connection fails. The
    /// timeout holds for each.
    pub async fn read(&self, ids: &[I]) -> Result<Vec<T>, Error> {
        self.read_all(ids).await
    }

    /// Begins a read on the tracked connection to the server of `ids`, together with another id, which is
    /// always read. Returns also the ids that the admission filter rejects, sorted: they are left out, and are
    /// to be read by other means. `None` if the ids are of several servers, or there is no such connection.
    pub fn begin_tracked(&self, mut ids: Vec<I>, with: I) -> Option<(TrackedRead<I, T>, Vec<I>)> {
        let (inner, count) = (&self.inner, ids.len());
        ids.push(with);
        let Some(connection) = inner.tracked_connection_of(&ids) else {
            inner.metrics.record_untracked(count);
            return None;
        };
        let Misses { admitted, rejected } = connection.entries().misses(&ids, Some(with));
        let missing = rejected.len() + admitted.iter().filter(|&&id| id != with).count();
        inner.metrics.record_lookups(count, missing);
        if !rejected.is_empty() {
            ids.retain(|id| rejected.binary_search(id).is_err());
        }
        Some((TrackedRead { connection, ids, misses: admitted }, rejected))
    }

    /// Ends a read on a tracked connection, in one round trip. Returns the values in the order of the ids, and
    /// last that of the other id; `None` for one that was invalidated meanwhile. Fails if the connection does
    /// not answer: nothing is read by other means.
    pub async fn end_tracked(&self, read: TrackedRead<I, T>) -> Result<Vec<Option<T>>, Error> {
        let (inner, TrackedRead { connection, ids, misses }) = (&self.inner, read);
        let values = inner.read_tracked(&connection, &ids, misses).await?;
        values.ok_or_else(|| Error::unavailable("the tracked connection does not answer"))
    }

    async fn read_all(&self, ids: &[I]) -> Result<Vec<T>, Error> {
        let inner = &self.inner;
        let only = lock(&inner.servers).only();
        if let Some(server) = only {
            return inner.read_from(Some(&server), ids).await;
        }
        let groups = inner.group_by_server(ids);
        let read = groups.iter().map(async |(server, indices)| {
            let ids: Vec<I> = indices.iter().map(|&index| ids[index]).collect();
            inner.read_from(server.as_ref(), &ids).await
        });
        let mut all = vec![None; ids.len()];
        for ((_, indices), values) in groups.iter().zip(try_join_all(read).await?) {
            for (&index, value) in indices.iter().zip(values) {
                all[index] = Some(value);
            }
        }
        all_of(all.into_iter())
    }
}

/// A server (`None` if the slot has none) and the indices of its ids.
type Group<I, T> = (Option<Arc<Server<I, T>>>, Vec<usize>);

impl<I: Id, T: Clone + Send + 'static> Inner<I, T> {
    /// Returns the tracked connection to the server of all ids; `None` if they have several.
    fn tracked_connection_of(self: &Arc<Self>, ids: &[I]) -> Option<Arc<TrackedConnection<I, T>>> {
        let server = {
            let mut servers = lock(&self.servers);
            servers.update(self.pool.slot_map(), self.bytes_max);
            let index = |&id: &I| servers.index((self.kind.partition)(id));
            match servers.only() {
                Some(only) => only,
                None => {
                    let first = index(ids.first()?);
                    let is_one = ids.iter().all(|id| index(id) == first);
                    servers.get(first.filter(|_| is_one)?)?
                }
            }
        };
        self.tracked_connection(&server)
    }

    /// Groups ids by the primary of a cluster.
    fn group_by_server(&self, ids: &[I]) -> Vec<Group<I, T>> {
        let mut servers = lock(&self.servers);
        servers.update(self.pool.slot_map(), self.bytes_max);
        let server = |&id: &I| servers.index((self.kind.partition)(id));
        let mut order: Vec<_> = ids.iter().map(server).zip(0..).collect();
        order.sort_unstable();
        let groups = order.chunk_by(|a, b| a.0 == b.0);
        let group = |group: &[(Option<usize>, usize)]| {
            let server = group[0].0.and_then(|index| servers.get(index));
            (server, group.iter().map(|&(_, index)| index).collect())
        };
        groups.map(group).collect()
    }

    /// Returns the values of `ids`, in their order, all of one server.
    async fn read_from(
        self: &Arc<Self>,
        server: Option<&Arc<Server<I, T>>>,
        ids: &[I],
    ) -> Result<Vec<T>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let Some(tracked) = server.and_then(|server| self.tracked_connection(server)) else {
            self.metrics.record_untracked(ids.len());
            return self.read_uncached(ids).await;
        };
        let Misses { admitted, rejected } = tracked.entries().misses(ids, None);
        self.metrics.record_lookups(ids.len(), admitted.len() + rejected.len());
        if rejected.is_empty() {
            return self.read_cached(&tracked, ids, admitted).await;
        }
        let is_cached = |id: &I| rejected.binary_search(id).is_err();
        let cached: Vec<I> = ids.iter().copied().filter(is_cached).collect();
        let (cached, uncached) = tokio::try_join!(
            self.read_cached(&tracked, &cached, admitted),
            self.read_uncached(&rejected)
        )?;
        let mut cached = cached.into_iter();
        let values = ids.iter().map(|id| match rejected.binary_search(id) {
            Ok(index) => uncached.get(index).cloned(),
            Err(_) => cached.next(),
        });
        all_of(values)
    }

    /// Returns the values of `ids`, in their order. `misses` are those without an entry.
    async fn read_cached(
        &self,
        tracked: &TrackedConnection<I, T>,
        ids: &[I],
        misses: Vec<I>,
    ) -> Result<Vec<T>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let Some(found) = self.read_tracked(tracked, ids, misses).await? else {
            return self.read_uncached(ids).await;
        };
        let invalidated: Vec<I> = ids
            .iter()
            .zip(&found)
            .filter(|(_, value)| value.is_none())
            .map(|(&id, _)| id)
            .collect();
        let mut reread = self.read_uncached(&invalidated).await?.into_iter();
        all_of(found.into_iter().map(|value| value.or_else(|| reread.next())))
    }

    /// Reads over the shared pool, bypassing the cache.
    async fn read_uncached(&self, ids: &[I]) -> Result<Vec<T>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = Batch::with_capacity(ids.len());
        for &id in ids {
            batch.query((self.kind.partition)(id), (self.kind.command)(id));
        }
        let replies = self.keyspace.send(batch).await?;
        ids.iter().zip(replies).map(|(&id, reply)| self.decode(id, reply)).collect()
    }

    fn decode(&self, id: I, reply: Value) -> Result<T, Error> {
        (self.kind.decode)(id, check(reply)?)
    }

    /// Reads the misses on the tracked connection, then takes the other values from the cache.
    /// Returns `None` in place of an invalidated value, and `None` for all if the connection fails.
    async fn read_tracked(
        &self,
        tracked: &TrackedConnection<I, T>,
        ids: &[I],
        misses: Vec<I>,
    ) -> Result<Option<Vec<Option<T>>>, Error> {
        let joined = if misses.is_empty() { tracked.connection.join_unsent() } else { None };
        let replies = match joined {
            Some(joined) => self.with_timeout(joined).await.ok(),
            None => self.send(tracked, ids, &misses).await,
        };
        let Some(replies) = replies else { return Ok(None) };
        let mut fresh = Vec::with_capacity(misses.len());
        for (id, reply) in misses.into_iter().zip(replies.values) {
            let is_cacheable = !self.pool.is_cluster() || !is_absent(&reply);
            fresh.push(Fresh { id, value: self.decode(id, reply)?, is_cacheable });
        }
        Ok(Some(tracked.entries().insert_and_get(ids, fresh, replies.pushed)))
    }

    /// Sends the commands that read the misses. If there are none, sends PING, or to a cluster the
    /// command that reads the first id: a node replies to PING also if it serves no slot any more.
    /// Returns `None` if the connection fails.
    async fn send(
        &self,
        tracked: &TrackedConnection<I, T>,
        ids: &[I],
        misses: &[I],
    ) -> Option<Replies> {
        let read = |&id: &I| (self.kind.command)(id);
        let mut commands: Vec<Cmd> = misses.iter().map(read).collect();
        if commands.is_empty() {
            let first = ids.first().filter(|_| self.pool.is_cluster());
            commands.push(first.map_or_else(|| redis::cmd("PING"), read));
        }
        let round_trip = self.pool.round_trip_metrics().begin(commands.iter());
        let replies = self.with_timeout(tracked.connection.send(commands.iter())).await;
        round_trip.end(replies.as_ref().map(|replies| &*replies.values));
        replies.ok()
    }

    async fn with_timeout(
        &self,
        replies: impl Future<Output = RedisResult<Replies>>,
    ) -> Result<Replies, Error> {
        // The other half is for the shared pool, if this connection does not reply.
        let deadline = Instant::now() + self.pool.timeout() / 2;
        within(deadline, async { Ok(replies.await?) }).await
    }

    /// Returns the tracked connection. If there is none, starts to connect in the background.
    fn tracked_connection(
        self: &Arc<Self>,
        server: &Arc<Server<I, T>>,
    ) -> Option<Arc<TrackedConnection<I, T>>> {
        if self.bytes_max == 0 {
            return None;
        }
        let mut tracking = server.tracking();
        match &*tracking {
            Tracking::Connected(tracked) if tracked.is_healthy(&self.pool) => {
                return Some(tracked.clone());
            }
            Tracking::Connected(_) => {
                *tracking = Tracking::Disconnected(Some(Instant::now() + RECONNECT_BACKOFF));
                return None;
            }
            Tracking::Connecting => return None,
            Tracking::Disconnected(Some(at)) if Instant::now() < *at => return None,
            Tracking::Disconnected(_) => *tracking = Tracking::Connecting,
        }
        let (this, server) = (self.clone(), server.clone());
        tokio::spawn(async move {
            let connected = this.connect(&server).await;
            *server.tracking() = match connected {
                Ok(tracked) => Tracking::Connected(Arc::new(tracked)),
                Err(error) => {
                    tracing::debug!(%error, "client tracking unavailable");
                    Tracking::Disconnected(Some(Instant::now() + RECONNECT_BACKOFF))
                }
            };
        });
        None
    }

    async fn connect(&self, server: &Server<I, T>) -> RedisResult<TrackedConnection<I, T>> {
        let entries = Entries::new(self.kind, server.bytes_max, self.metrics.clone());
        let entries = Arc::new(Mutex::new(entries));
        let invalidated = entries.clone();
        let on_push = Box::new(move |message: Vec<Value>| lock(&invalidated).invalidate(&message));
        let connect = self.pool.endpoint().connect_tracking(server.node.as_ref(), on_push);
        let (connection, _guard) = self.connection_metrics.measure(connect).await?;
        Ok(TrackedConnection { connection, entries, _guard })
    }
}

impl<I, T> TrackedConnection<I, T> {
    fn is_healthy(&self, pool: &SharedPool) -> bool {
        pool.endpoint().is_current(&self.connection)
    }

    fn entries(&self) -> MutexGuard<'_, Entries<I, T>> {
        lock(&self.entries)
    }
}

/// Returns whether the reply of a read means that its key does not exist.
fn is_absent(reply: &Value) -> bool {
    match reply {
        Value::Nil => true,
        Value::BulkString(bytes) => bytes.is_empty(),
        Value::Array(values) => values.iter().all(is_absent),
        _ => false,
    }
}

/// Returns all values, or an error if one is missing.
fn all_of<T>(values: impl Iterator<Item = Option<T>>) -> Result<Vec<T>, Error> {
    values.collect::<Option<_>>().ok_or_else(|| Error::malformed("replies are missing"))
}
