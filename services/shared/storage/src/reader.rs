//! Reads: from the cache if the primary of an item is trusted, and else from the database.
//!
//! A read that finds no entry takes the lease on it, reads the item in one statement, which begins later,
//! and installs the entry, if the lease is still its own. Other readers of the item wait a moment for the
//! entry. They do not take what the first one has read: it may lack what was acknowledged before they
//! began. Then they read the database themselves, without installing.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _, future::BoxFuture, stream};
use microblog_domain::Partition;
use microblog_keyspace::{
    self as keyspace, Batch, Keyspace,
    redis::{Cmd, Value},
};
use microblog_record::{self as record, Database};
use tokio::{
    sync::{AcquireError, Semaphore, SemaphorePermit, watch},
    time::{Instant, sleep, timeout_at},
};
use uuid::Uuid;

use crate::{
    cache::{Cache, Token},
    entry::{Contents, EntryKeys, History},
    metrics::ReadMetrics,
    tables::Tables,
    trust::{Trust, Trusted},
};

/// The most loads of a worker at a time, and the most that wait for their turn: a lost cache must not take
/// the database along.
const LOADS: usize = 16;
const WAITING_MAX: usize = 1_024;

/// How long a read waits for an entry that another one loads, and how often it looks.
const WAIT: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(5);

/// A kind of item.
pub trait Item: Copy + Send + Sync + 'static {
    /// Returns its name in keys and in the feed: one word.
    fn kind(self) -> &'static str;

    /// Returns the most records of an entry. An item has no more, or is cut to its newest.
    fn records_max(self) -> usize;

    /// Reads an item in one statement, from the primary of the database.
    fn load(self, database: &Database, id: u64) -> BoxFuture<'_, Result<Loaded, record::Error>>;
}

/// What a caller wants to know of an item.
#[derive(Clone, Copy, Debug)]
pub struct Part<I, V> {
    /// The kind of the item.
    pub item: I,
    /// Its id.
    pub id: u64,
    /// The part of it.
    pub view: V,
}

/// An item as the database has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The history of the database.
    pub history: History,
    /// The revision; 0 if there is no such row.
    pub revision: u64,
    /// The contents.
    pub contents: Contents,
}

/// A part of an item.
pub trait View: Send + Sync {
    /// The result.
    type Output: Send;

    /// Returns the commands that read the part from an entry.
    fn commands(&self, keys: &EntryKeys) -> Vec<Cmd>;

    /// Decodes their replies.
    fn of_entry(&self, replies: Vec<Value>) -> Result<Found<Self::Output>, keyspace::Error>;

    /// Takes the part from an item.
    fn of_item(&self, contents: &Contents) -> Self::Output;
}

/// What a read of an entry found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<T> {
    /// The part.
    Whole(T),
    /// There is no entry.
    Missing,
    /// A part of the entry was evicted.
    Broken,
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The database failed, and the cache could not answer.
    #[error(transparent)]
    Database(#[from] record::Error),
    /// Too many reads wait for the database.
    #[error("too many reads wait for the database")]
    Overloaded,
}

/// A place among the loads that wait, and one among those that read.
type Turn<'a> = (SemaphorePermit<'a>, Result<SemaphorePermit<'a>, AcquireError>);

/// Reads the items of a service. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    inner: Arc<Inner>,
}

struct Inner {
    tables: Tables,
    keyspace: Keyspace,
    cache: Cache,
    trust: Trust,
    prefix: &'static str,
    metrics: ReadMetrics,
    turns: Semaphore,
    waiting: Semaphore,
    /// The entries that this worker loads, by key. A sender is dropped when its load ends.
    loading: Mutex<HashMap<String, watch::Receiver<()>>>,
}

impl Reader {
    /// Returns the reader of a keyspace, whose keys have a prefix.
    pub fn new(tables: Tables, keyspace: Keyspace, trust: Trust, prefix: &'static str) -> Self {
        let inner = Inner {
            tables,
            cache: Cache::new(keyspace.clone()),
            trust,
            metrics: ReadMetrics::new(keyspace.name()),
            keyspace,
            prefix,
            turns: Semaphore::new(LOADS),
            waiting: Semaphore::new(LOADS + WAITING_MAX),
            loading: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Reads a part of an item.
    pub async fn read<I: Item, V: View>(&self, part: &Part<I, V>) -> Result<V::Output, ReadError> {
        let Part { item, id, view } = part;
        let (item, id) = (*item, *id);
        let deadline = Instant::now() + WAIT;
        while let Some(trusted) = self.inner.trust.of(Partition::of_id(id)) {
            let keys = self.inner.keys(item, &trusted.history, id);
            match self.inner.look(&keys, view, &trusted).await {
                // The cache does not answer, or is another one than it was.
                None => break,
                Some(Found::Whole(part)) => {
                    self.inner.metrics.hits.add(1);
                    return Ok(part);
                }
                Some(Found::Broken) if self.inner.cache.remove([&keys]).await.is_err() => break,
                Some(Found::Broken | Found::Missing) => {}
            }
            if let Some(loaded) = self.inner.load_entry(item, id, &keys).await? {
                self.inner.metrics.loads.add(1);
                return Ok(view.of_item(&loaded.contents));
            }
            if Instant::now() >= deadline {
                break;
            }
            self.inner.wait(&keys, deadline).await;
        }
        let _turn = self.inner.turn().await?;
        self.inner.metrics.bypasses.add(1);
        Ok(view.of_item(&self.inner.load(item, id).await?.contents))
    }

    /// Reads parts of items, in one round trip to each primary if the cache has all of them. Returns them
    /// in the order of `parts`.
    pub async fn read_all<I: Item, V: View>(
        &self,
        parts: &[Part<I, V>],
    ) -> Result<Vec<V::Output>, ReadError> {
        let mut found = self.peek(parts).await;
        let is_missing = |at: &usize| found[*at].is_none();
        let missing: Vec<usize> = (0..parts.len()).filter(is_missing).collect();
        let read = |&at: &usize| -> BoxFuture<'_, _> { Box::pin(self.read(&parts[at])) };
        let reads: Vec<_> = missing.iter().map(read).collect();
        let mut reads = stream::iter(reads).buffered(LOADS);
        for at in missing {
            found[at] = reads.try_next().await?;
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Returns whether reads of an item may be answered by the cache.
    pub fn is_trusted(&self, id: u64) -> bool {
        self.inner.trust.of(Partition::of_id(id)).is_some()
    }

    /// Reads from the database, in a turn. For what the cache does not have, and while it is not trusted.
    pub async fn bypass<T>(
        &self,
        read: impl AsyncFnOnce(&Database) -> Result<T, record::Error>,
    ) -> Result<T, ReadError> {
        let _turn = self.inner.turn().await?;
        self.inner.metrics.bypasses.add(1);
        Ok(read(self.inner.tables.database().await?).await?)
    }

    /// Returns the parts that the cache has, in the order of `parts`, in one round trip to each primary.
    /// `None` for the others, and for all if the cache does not answer.
    pub async fn peek<I: Item, V: View>(&self, parts: &[Part<I, V>]) -> Vec<Option<V::Output>> {
        let looked = self.inner.look_all(parts).await.unwrap_or_default();
        let whole = |found| match found {
            Some(Found::Whole(part)) => Some(part),
            _ => None,
        };
        let mut found: Vec<_> = looked.into_iter().map(whole).collect();
        let hits = found.iter().filter(|part| part.is_some()).count();
        self.inner.metrics.hits.add(hits as u64);
        found.resize_with(parts.len(), || None);
        found
    }
}

impl Inner {
    fn keys<I: Item>(&self, item: I, history: &History, id: u64) -> EntryKeys {
        EntryKeys::new(self.prefix, item.kind(), history, Partition::of_id(id), id)
    }

    // Reads entries. `None` for one that must not be relied on.
    async fn look_all<I: Item, V: View>(
        &self,
        parts: &[Part<I, V>],
    ) -> Result<Vec<Option<Found<V::Output>>>, keyspace::Error> {
        let mut batch = Batch::with_capacity(parts.len() * 2 + 1);
        // The reply about the mark of each primary.
        let mut primaries: Vec<(Trusted, usize)> = Vec::new();
        let mut places = Vec::with_capacity(parts.len());
        for Part { item, id, view } in parts {
            let partition = Partition::of_id(*id);
            let known = primaries.iter().position(|(trusted, _)| trusted.has(partition));
            let primary = known.or_else(|| {
                let trusted = self.trust.of(partition)?;
                primaries.push((trusted.clone(), batch.len()));
                trusted.ask_mark(&mut batch);
                Some(primaries.len() - 1)
            });
            let Some(primary) = primary else {
                places.push(None);
                continue;
            };
            let keys = self.keys(*item, &primaries[primary].0.history, *id);
            let first = batch.len();
            for command in view.commands(&keys) {
                batch.query(partition, command);
            }
            places.push(Some((primary, first..batch.len())));
        }
        if primaries.is_empty() {
            return Ok(Vec::new());
        }
        let mut replies = self.keyspace.send(batch).await?;
        let is_confirmed = |(trusted, reply): &(Trusted, usize)| {
            replies.get(*reply).is_some_and(|mark| self.trust.confirms(trusted, mark))
        };
        let confirmed: Vec<bool> = primaries.iter().map(is_confirmed).collect();
        let found = parts.iter().zip(places).map(|(part, place)| {
            let (_, replies_of) = place.filter(|(primary, _)| confirmed[*primary])?;
            let replies = replies.get_mut(replies_of)?.iter_mut();
            let replies = replies.map(|reply| mem::replace(reply, Value::Nil)).collect();
            // What cannot be decoded is deleted.
            Some(part.view.of_entry(replies).unwrap_or(Found::Broken))
        });
        Ok(found.collect())
    }

    // Reads an entry; `None` if it must not be relied on.
    async fn look<V: View>(
        &self,
        keys: &EntryKeys,
        view: &V,
        trusted: &Trusted,
    ) -> Option<Found<V::Output>> {
        let mut batch = Batch::new();
        trusted.ask_mark(&mut batch);
        for command in view.commands(keys) {
            batch.query(keys.partition, command);
        }
        let mut replies = self.keyspace.send(batch).await.ok()?;
        let rest = replies.split_off(1);
        let is_confirmed = self.trust.confirms(trusted, &replies[0]);
        // What cannot be decoded is deleted.
        is_confirmed.then(|| view.of_entry(rest).unwrap_or(Found::Broken))
    }

    // Loads an entry under its lease, and returns the item; `None` if another reader has the lease.
    async fn load_entry<I: Item>(
        &self,
        item: I,
        id: u64,
        keys: &EntryKeys,
    ) -> Result<Option<Loaded>, ReadError> {
        let Some(mut loading) = self.begin_loading(keys) else { return Ok(None) };
        // Before the lease, which would end while this load waits.
        let _turn = self.turn().await?;
        let token = Token(Uuid::new_v4().as_u64_pair().0);
        loading.may_have_lease = true;
        match self.cache.lease(keys, token).await {
            Ok(true) => {}
            Ok(false) => {
                loading.may_have_lease = false;
                return Ok(None);
            }
            // Such as a cache that is full.
            Err(_) => return Ok(Some(self.load(item, id).await?)),
        }
        let loaded = self.load(item, id).await;
        let is_installed = match &loaded {
            Ok(Loaded { history, revision, contents }) if self.keys(item, history, id) == *keys => {
                let install =
                    self.cache.install(keys, token, *revision, contents, item.records_max());
                install.await.is_ok()
            }
            _ => false,
        };
        loading.may_have_lease = !is_installed;
        loaded.map(Some)
    }

    // Waits for a turn to read the database.
    async fn turn(&self) -> Result<Turn<'_>, ReadError> {
        let waiting = self.waiting.try_acquire().map_err(|_| ReadError::Overloaded)?;
        // The semaphore is never closed.
        Ok((waiting, self.turns.acquire().await))
    }

    // Reads an item from the database, in a turn.
    async fn load<I: Item>(&self, item: I, id: u64) -> Result<Loaded, ReadError> {
        let loaded = item.load(self.tables.database().await?, id).await?;
        self.trust.learn(&loaded.history);
        Ok(loaded)
    }

    fn begin_loading(&self, keys: &EntryKeys) -> Option<Loading<'_>> {
        let mut loading = self.loading();
        if loading.contains_key(&keys.entry) {
            return None;
        }
        let (sender, receiver) = watch::channel(());
        loading.insert(keys.entry.clone(), receiver);
        let (keys, may_have_lease) = (keys.clone(), false);
        Some(Loading { inner: self, keys, may_have_lease, _sender: sender })
    }

    // Waits until this worker has loaded an entry, or another one may have.
    async fn wait(&self, keys: &EntryKeys, deadline: Instant) {
        let own = self.loading().get(&keys.entry).cloned();
        match own {
            // An error means that it has ended.
            Some(mut loading) => _ = timeout_at(deadline, loading.changed()).await,
            None => sleep(LOOK).await,
        }
    }

    fn loading(&self) -> MutexGuard<'_, HashMap<String, watch::Receiver<()>>> {
        self.loading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A load of this worker. Ends when it is dropped, as by a cancelled call.
struct Loading<'a> {
    inner: &'a Inner,
    keys: EntryKeys,
    /// Whether the lease must be removed: it would keep others from loading the entry.
    may_have_lease: bool,
    _sender: watch::Sender<()>,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.inner.loading().remove(&self.keys.entry);
        if self.may_have_lease {
            let (cache, keys) = (self.inner.cache.clone(), self.keys.clone());
            tokio::spawn(async move { cache.remove([&keys]).await });
        }
    }
}
