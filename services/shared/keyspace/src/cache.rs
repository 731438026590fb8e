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
//! Admission: only recently requested keys are cached, and others are read over the shared pool.
//! Tracking a key costs Redis more than reading it.

mod entries;
mod kind;

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use redis::{Cmd, RedisResult, Value};
use tokio::time::{Instant, timeout};

use self::entries::{Entries, Misses};
pub use self::kind::{Id, Kind};
use crate::{
    Batch, Error, Keyspace,
    cache_metrics::CacheMetrics,
    connection_metrics::{ConnectionGuard, ConnectionMetrics},
    error::TimedOut,
    lock::lock,
    multiplexed::{Multiplexed, Replies},
    reply::check,
    shared_pool::SharedPool,
};

// Minimum interval between a failed or closed tracked connection and the next attempt.
const RECONNECT_BACKOFF: Duration = Duration::from_secs(1);

/// A client-side cache of values of one kind. Cheap to clone. Belongs to the runtime that uses it.
///
/// On a cluster, all reads bypass the cache: a primary that migrates a slot sends no invalidations
/// of absent keys, which could then be created on another node unnoticed.
pub struct Recall<I, T> {
    inner: Arc<Inner<I, T>>,
}

impl<I, T> Clone for Recall<I, T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

struct Inner<I, T> {
    keyspace: Keyspace,
    pool: SharedPool,
    kind: Kind<I, T>,
    bytes_max: usize,
    tracking: Mutex<Tracking<I, T>>,
    connection_metrics: ConnectionMetrics,
    metrics: CacheMetrics,
}

/// The state of the tracked connection.
enum Tracking<I, T> {
    /// The next attempt to connect is not before this time.
    Disconnected(Option<Instant>),
    Connecting,
    Connected(Arc<TrackedConnection<I, T>>),
}

/// A connection with `CLIENT TRACKING` and the values read on it.
struct TrackedConnection<I, T> {
    connection: Multiplexed,
    entries: Arc<Mutex<Entries<I, T>>>,
    _guard: ConnectionGuard,
    /// The number of pool resets when this connection was made.
    resets: u64,
}

impl Keyspace {
    /// Returns a client-side cache of values of one kind. The Redis user needs PING and CLIENT
    /// TRACKING; without them, all reads bypass the cache.
    pub fn recall<I: Id, T: Clone + Send + 'static>(&self, kind: Kind<I, T>) -> Recall<I, T> {
        Recall::new(self.clone(), kind, self.cache_bytes_max())
    }
}

impl<I: Id, T: Clone + Send + 'static> Recall<I, T> {
    fn new(keyspace: Keyspace, kind: Kind<I, T>, bytes_max: usize) -> Self {
        let tracking = Mutex::new(Tracking::Disconnected(None));
        let pool = keyspace.shared_pool().clone();
        let name = keyspace.name();
        let connection_metrics = ConnectionMetrics::new(name, "tracking");
        let metrics = CacheMetrics::new(name);
        Self {
            inner: Arc::new(Inner {
                keyspace,
                pool,
                kind,
                bytes_max,
                tracking,
                connection_metrics,
                metrics,
            }),
        }
    }

    /// Returns the values of `ids`, in their order.
    ///
    /// Takes one round trip, or two concurrent ones if the admission filter rejects an id. Another
    /// one follows if a value is invalidated meanwhile, or if the connection fails. The timeout
    /// holds for each.
    pub async fn read(&self, ids: &[I]) -> Result<Vec<T>, Error> {
        let inner = &self.inner;
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let Some(tracked) = inner.tracked_connection() else {
            inner.metrics.record_untracked(ids.len());
            return inner.read_uncached(ids).await;
        };
        let Misses { admitted, rejected } = tracked.entries().misses(ids);
        if rejected.is_empty() {
            return inner.read_cached(&tracked, ids, admitted).await;
        }
        let is_cached = |id: &I| rejected.binary_search(id).is_err();
        let cached: Vec<I> = ids.iter().copied().filter(is_cached).collect();
        let (cached, uncached) = tokio::try_join!(
            inner.read_cached(&tracked, &cached, admitted),
            inner.read_uncached(&rejected)
        )?;
        inner.metrics.record_lookups(uncached.len(), uncached.len());
        let mut cached = cached.into_iter();
        let values = ids.iter().map(|id| match rejected.binary_search(id) {
            Ok(index) => uncached.get(index).cloned(),
            Err(_) => cached.next(),
        });
        all_of(values)
    }
}

impl<I: Id, T: Clone + Send + 'static> Inner<I, T> {
    /// Returns the values of `ids`, in their order. `misses` are those without an entry.
    async fn read_cached(
        self: &Arc<Self>,
        tracked: &Arc<TrackedConnection<I, T>>,
        ids: &[I],
        misses: Vec<I>,
    ) -> Result<Vec<T>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let Some(found) = self.read_tracked(tracked, ids, misses).await? else {
            if !tracked.is_healthy(&self.pool) {
                self.disconnect(tracked);
            }
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
            let (partition, command) = (self.kind.command)(id);
            batch.query(partition, command);
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
            None => self.send(tracked, &misses).await,
        };
        let Some(replies) = replies else { return Ok(None) };
        self.metrics.record_lookups(ids.len(), misses.len());
        let mut fresh = Vec::with_capacity(misses.len());
        for (id, reply) in misses.into_iter().zip(replies.values) {
            fresh.push((id, self.decode(id, reply)?));
        }
        Ok(Some(tracked.entries().insert_and_get(ids, fresh, replies.pushed)))
    }

    /// Sends the commands that read `ids`, or PING if there are none. Returns `None` if the
    /// connection fails.
    async fn send(&self, tracked: &TrackedConnection<I, T>, ids: &[I]) -> Option<Replies> {
        let mut commands: Vec<Cmd> = ids.iter().map(|&id| (self.kind.command)(id).1).collect();
        if commands.is_empty() {
            commands.push(redis::cmd("PING"));
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
        let reply_timeout = self.pool.timeout() / 2;
        let replies = timeout(reply_timeout, replies).await;
        Ok(replies.map_err(|_elapsed| Error::unavailable(TimedOut(reply_timeout)))??)
    }

    /// Returns the tracked connection. If there is none, starts to connect in the background.
    fn tracked_connection(self: &Arc<Self>) -> Option<Arc<TrackedConnection<I, T>>> {
        if self.bytes_max == 0 || !self.pool.endpoint().can_track() {
            return None;
        }
        let mut tracking = self.tracking();
        match &*tracking {
            Tracking::Connected(tracked) if tracked.is_healthy(&self.pool) => {
                return Some(tracked.clone());
            }
            Tracking::Connecting => return None,
            Tracking::Disconnected(Some(at)) if Instant::now() < *at => return None,
            Tracking::Connected(_) | Tracking::Disconnected(_) => *tracking = Tracking::Connecting,
        }
        let this = self.clone();
        tokio::spawn(async move {
            let connected = this.connect().await;
            *this.tracking() = match connected {
                Ok(tracked) => Tracking::Connected(Arc::new(tracked)),
                Err(error) => {
                    tracing::debug!(%error, "client tracking unavailable");
                    Tracking::Disconnected(Some(Instant::now() + RECONNECT_BACKOFF))
                }
            };
        });
        None
    }

    async fn connect(&self) -> RedisResult<TrackedConnection<I, T>> {
        let resets = self.pool.resets();
        let entries = Entries::new(self.kind, self.bytes_max, self.metrics.clone());
        let entries = Arc::new(Mutex::new(entries));
        let invalidated = entries.clone();
        let on_push = Box::new(move |message: Vec<Value>| lock(&invalidated).invalidate(&message));
        let connect = self.pool.endpoint().connect_tracking(on_push);
        let (connection, _guard) = self.connection_metrics.measure(connect).await?;
        Ok(TrackedConnection { connection, entries, _guard, resets })
    }

    /// Drops a failed connection and its cache, unless it was replaced already.
    fn disconnect(&self, failed: &Arc<TrackedConnection<I, T>>) {
        let mut tracking = self.tracking();
        if matches!(&*tracking, Tracking::Connected(tracked) if Arc::ptr_eq(tracked, failed)) {
            *tracking = Tracking::Disconnected(Some(Instant::now() + RECONNECT_BACKOFF));
        }
    }

    fn tracking(&self) -> MutexGuard<'_, Tracking<I, T>> {
        lock(&self.tracking)
    }
}

impl<I, T> TrackedConnection<I, T> {
    fn is_healthy(&self, pool: &SharedPool) -> bool {
        !self.connection.is_closed() && self.resets == pool.resets()
    }

    fn entries(&self) -> MutexGuard<'_, Entries<I, T>> {
        lock(&self.entries)
    }
}

/// Returns all values, or an error if one is missing.
fn all_of<T>(values: impl Iterator<Item = Option<T>>) -> Result<Vec<T>, Error> {
    values.collect::<Option<_>>().ok_or_else(|| Error::malformed("replies are missing"))
}
