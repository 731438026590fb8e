//! Reads that Redis is spared: what was read from a key is remembered until Redis says that the key
//! has changed. What is returned is as true as if it had been read.
//!
//! Why that holds: Redis tracks which keys were read on a connection, and of a change it tells that
//! connection before any answer that comes after the change. Each read here waits for the answer
//! to a command that had not been sent when the read began, its own or another's, and then looks
//! into the connection's memory. So all that was written before the read began has been heard of by
//! then, and what is still remembered is what a command of this moment would have found. Where the
//! connection is broken, nothing is remembered.
//!
//! What changes while its value is on the way from the connection's driver to the memory must not
//! get into the memory: what was read together is kept only if nothing was pushed since the first of
//! it was answered. (Since the last would not do: Redis may carry out the commands of others between
//! two that came together, and forgets keys there of which it tracks too many.)
//!
//! Only what was asked for lately already is read so, and the rest as it would be without a memory. To
//! have a key tracked costs Redis more than to read it, which is lost on what nobody
//! asks for again, or has to give way before that.

mod memory;

use std::{
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use microblog_domain::Partition;
use redis::{Cmd, RedisResult, Value};
use tokio::time::{Instant, timeout};

use crate::{
    Batch, Error, Keyspace,
    connected::Connected,
    error::TimedOut,
    keyspace::accept,
    links::{Health, Links},
    lock::lock,
    remembered::Remembered,
    wire::{Answers, Wire},
};

use self::memory::{Memory, Unknown};

// After a connection could not be made or broke, it is tried again no sooner.
const PAUSE: Duration = Duration::from_secs(1);

/// What names a value.
pub trait Id: Copy + Ord + Hash + Send + 'static {}

impl<I: Copy + Ord + Hash + Send + 'static> Id for I {}

/// How values of one kind are read, each from a key of its own that an id names.
pub struct Kind<I, T> {
    /// Returns where the key lies, and the command that reads it: it reads nothing but this key.
    /// Where that expires, the value must say itself when it is over: nothing tells of it in time.
    pub command: fn(I) -> (Partition, Cmd),
    /// Returns whose key it is.
    pub id: fn(&[u8]) -> Option<I>,
    /// Reads the answer.
    pub decode: fn(I, Value) -> Result<T, Error>,
    /// Returns how many bytes a value takes besides its own size, about.
    pub heap_bytes: fn(&T) -> usize,
}

impl<I, T> Clone for Kind<I, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, T> Copy for Kind<I, T> {}

/// Values of one kind, some of which are remembered. Cheap to clone; belongs to the runtime that
/// uses it.
///
/// A cluster is read anew each time: the library's connections to it cannot tell what has changed in
/// its place among the answers.
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
    links: Links,
    kind: Kind<I, T>,
    bytes_max: usize,
    tracked: Mutex<Tracked<I, T>>,
    connected: Connected,
    remembered: Remembered,
}

/// The connection on which Redis tracks what is read.
enum Tracked<I, T> {
    /// There is none, and none is to be made before this moment.
    No(Option<Instant>),
    /// One is being made.
    Soon,
    Yes(Arc<Track<I, T>>),
}

struct Track<I, T> {
    wire: Wire,
    memory: Arc<Mutex<Memory<I, T>>>,
    // One moment without answers must not cost all that is remembered: a Redis that is slow would be
    // asked for it anew.
    health: Health,
    /// When the last failure was noted.
    failed_at: Mutex<Option<Instant>>,
    /// How often the keyspace had left its links when this was made.
    departures: u64,
}

impl<I: Id, T: Clone + Send + 'static> Recall<I, T> {
    pub(crate) fn new(
        keyspace: Keyspace,
        links: Links,
        kind: Kind<I, T>,
        bytes_max: usize,
    ) -> Self {
        let tracked = Mutex::new(Tracked::No(None));
        let name = links.trips().keyspace();
        let (connected, remembered) = (Connected::new(name, "tracking"), Remembered::new(name));
        Self {
            inner: Arc::new(Inner {
                keyspace,
                links,
                kind,
                bytes_max,
                tracked,
                connected,
                remembered,
            }),
        }
    }

    /// Returns the values of some ids, in their order.
    ///
    /// One round trip, or two at the same time where some of them are read for the first time; another
    /// one if some changed in this moment, or where the connection broke. The time-out holds for each.
    pub async fn read(&self, ids: &[I]) -> Result<Vec<T>, Error> {
        let inner = &self.inner;
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let Some(track) = inner.track() else {
            inner.remembered.untracked(ids.len());
            return inner.read_anew(ids).await;
        };
        let Unknown { wanted, passing } = track.memory().unknown(ids);
        if passing.is_empty() {
            return inner.recall(&track, ids, wanted).await;
        }
        let is_kept = |id: &I| passing.binary_search(id).is_err();
        let kept: Vec<I> = ids.iter().copied().filter(is_kept).collect();
        let (kept, passed) =
            tokio::try_join!(inner.recall(&track, &kept, wanted), inner.read_anew(&passing))?;
        inner.remembered.looked(passed.len(), passed.len());
        let mut kept = kept.into_iter();
        let values = ids.iter().map(|id| match passing.binary_search(id) {
            Ok(place) => passed.get(place).cloned(),
            Err(_) => kept.next(),
        });
        all_of(values)
    }
}

impl<I: Id, T: Clone + Send + 'static> Inner<I, T> {
    /// Returns the values of some ids, in their order, of which those that are wanted are not
    /// remembered yet.
    async fn recall(
        self: &Arc<Self>,
        track: &Arc<Track<I, T>>,
        ids: &[I],
        wanted: Vec<I>,
    ) -> Result<Vec<T>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let Some(found) = self.read_tracked(track, ids, wanted).await? else {
            if !track.is_good(&self.links) {
                self.lose(track);
            }
            return self.read_anew(ids).await;
        };
        let lost: Vec<I> = ids
            .iter()
            .zip(&found)
            .filter(|(_, value)| value.is_none())
            .map(|(&id, _)| id)
            .collect();
        let mut anew = self.read_anew(&lost).await?.into_iter();
        all_of(found.into_iter().map(|value| value.or_else(|| anew.next())))
    }

    /// Reads without memory.
    async fn read_anew(&self, ids: &[I]) -> Result<Vec<T>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = Batch::with_capacity(ids.len());
        for &id in ids {
            let (partition, command) = (self.kind.command)(id);
            batch.query(partition, command);
        }
        let answers = self.keyspace.send(batch).await?;
        ids.iter().zip(answers).map(|(&id, answer)| self.decode(id, answer)).collect()
    }

    fn decode(&self, id: I, answer: Value) -> Result<T, Error> {
        (self.kind.decode)(id, accept(answer)?)
    }

    /// Reads what is wanted, and then takes the others from memory: `None` in the place of those
    /// that changed meanwhile. `None` for all if the connection does not answer.
    async fn read_tracked(
        &self,
        track: &Track<I, T>,
        ids: &[I],
        wanted: Vec<I>,
    ) -> Result<Option<Vec<Option<T>>>, Error> {
        let joined = if wanted.is_empty() { track.wire.join() } else { None };
        let answers = match joined {
            Some(joined) => self.in_time(joined).await.ok(),
            None => self.send(track, &wanted).await,
        };
        let Some(answers) = answers else { return Ok(None) };
        self.remembered.looked(ids.len(), wanted.len());
        track.health.answered();
        let mut fresh = Vec::with_capacity(wanted.len());
        for (id, answer) in wanted.into_iter().zip(answers.values) {
            fresh.push((id, self.decode(id, answer)?));
        }
        Ok(Some(track.memory().take_in(ids, fresh, answers.pushed)))
    }

    /// Sends the commands that read some ids, or one that reads nothing if there are none. Returns
    /// the answers; `None` if the connection does not answer.
    async fn send(&self, track: &Track<I, T>, ids: &[I]) -> Option<Answers> {
        let mut commands: Vec<Cmd> = ids.iter().map(|&id| (self.kind.command)(id).1).collect();
        if commands.is_empty() {
            commands.push(redis::cmd("PING"));
        }
        let trip = self.links.trips().begin(commands.iter());
        let sent = Instant::now();
        let answers = self.in_time(track.wire.send(commands.iter())).await;
        trip.end(answers.as_ref().map(|answers| &*answers.values));
        answers.inspect_err(|_| track.failed(sent)).ok()
    }

    async fn in_time(
        &self,
        answers: impl Future<Output = RedisResult<Answers>>,
    ) -> Result<Answers, Error> {
        // Half of the time, so that a frozen connection leaves some for another one.
        let longest = self.links.timeout() / 2;
        let answers = timeout(longest, answers).await;
        Ok(answers.map_err(|_elapsed| Error::unavailable(TimedOut(longest)))??)
    }

    /// Returns the tracked connection. If there is none, sees to it that there is one soon.
    fn track(self: &Arc<Self>) -> Option<Arc<Track<I, T>>> {
        if self.bytes_max == 0 || !self.links.endpoint().can_track() {
            return None;
        }
        let mut tracked = self.tracked();
        match &*tracked {
            Tracked::Yes(track) if track.is_good(&self.links) => return Some(track.clone()),
            Tracked::Soon => return None,
            Tracked::No(Some(at)) if Instant::now() < *at => return None,
            Tracked::Yes(_) | Tracked::No(_) => *tracked = Tracked::Soon,
        }
        let this = self.clone();
        tokio::spawn(async move {
            let connected = this.connect().await;
            *this.tracked() = match connected {
                Ok(track) => Tracked::Yes(Arc::new(track)),
                Err(error) => {
                    tracing::debug!(%error, "redis does not track what is read");
                    Tracked::No(Some(Instant::now() + PAUSE))
                }
            };
        });
        None
    }

    async fn connect(&self) -> RedisResult<Track<I, T>> {
        let departures = self.links.departures();
        let memory = Memory::new(self.kind, self.bytes_max, self.remembered.clone());
        let memory = Arc::new(Mutex::new(memory));
        let listener = memory.clone();
        let heard = Box::new(move |data: Vec<Value>| lock(&listener).hear(&data));
        let connect = self.links.endpoint().connect_tracking(heard);
        let (wire, counted) = self.connected.make(connect).await?;
        let failed_at = Mutex::default();
        Ok(Track { wire, memory, health: Health::of(counted), failed_at, departures })
    }

    /// Gives up a connection that is dead.
    fn lose(&self, lost: &Arc<Track<I, T>>) {
        let mut tracked = self.tracked();
        if matches!(&*tracked, Tracked::Yes(track) if Arc::ptr_eq(track, lost)) {
            *tracked = Tracked::No(Some(Instant::now() + PAUSE));
        }
    }

    fn tracked(&self) -> MutexGuard<'_, Tracked<I, T>> {
        lock(&self.tracked)
    }
}

impl<I, T> Track<I, T> {
    fn is_good(&self, links: &Links) -> bool {
        !self.wire.is_closed() && !self.health.is_broken() && self.departures == links.departures()
    }

    fn memory(&self) -> MutexGuard<'_, Memory<I, T>> {
        lock(&self.memory)
    }

    /// Notes that what was sent at a moment was not answered in time. However many wait at the same
    /// time, they all tell of one failure. A broken connection says so itself.
    fn failed(&self, sent: Instant) {
        let mut failed_at = lock(&self.failed_at);
        if failed_at.is_none_or(|at| sent > at) {
            *failed_at = Some(Instant::now());
            self.health.failed();
        }
    }
}

/// Returns all values, or an error if one is missing.
fn all_of<T>(values: impl Iterator<Item = Option<T>>) -> Result<Vec<T>, Error> {
    values.collect::<Option<_>>().ok_or_else(|| Error::malformed("answers are missing"))
}
