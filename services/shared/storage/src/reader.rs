//! Reads: from the cache if the primary of an item is trusted, and else from the database.
//!
//! A read that finds no entry takes the lease on it, reads the item in one statement, which begins later,
//! and installs the entry, if the lease is still its own. Other readers of the item wait a moment for the
//! entry. They do not take what the first one has read: it may lack what was acknowledged before they
//! began. Then they read the database themselves, without installing.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use microblog_domain::Partition;
use microblog_keyspace::{
    self as keyspace, Keyspace,
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
pub trait Item: Send + Sync + 'static {
    /// Its name in keys and in the feed: one word.
    const KIND: &'static str;

    /// The most records of an entry. An item has no more, or is cut to its newest.
    const RECORDS_MAX: usize;

    /// Reads an item in one statement, from the primary of the database.
    fn load(&self, database: &Database, id: u64) -> BoxFuture<'_, Result<Loaded, record::Error>>;
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
    database: Database,
    keyspace: Keyspace,
    cache: Cache,
    trust: Trust,
    prefix: &'static str,
    turns: Semaphore,
    waiting: Semaphore,
    /// The entries that this worker loads, by key. A sender is dropped when its load ends.
    loading: Mutex<HashMap<String, watch::Receiver<()>>>,
}

impl Reader {
    /// Returns the reader of a keyspace, whose keys have a prefix.
    pub fn new(database: Database, keyspace: Keyspace, trust: Trust, prefix: &'static str) -> Self {
        let inner = Inner {
            database,
            cache: Cache::new(keyspace.clone()),
            keyspace,
            trust,
            prefix,
            turns: Semaphore::new(LOADS),
            waiting: Semaphore::new(LOADS + WAITING_MAX),
            loading: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Reads a part of an item.
    pub async fn read<I: Item, V: View>(
        &self,
        item: &I,
        id: u64,
        view: &V,
    ) -> Result<V::Output, ReadError> {
        let deadline = Instant::now() + WAIT;
        while let Some(trusted) = self.inner.trust.of(Partition::of_id(id)) {
            let keys = self.inner.keys::<I>(&trusted.history, id);
            match self.inner.look(&keys, view, &trusted).await {
                // The cache does not answer, or is another one than it was.
                None => break,
                Some(Found::Whole(part)) => return Ok(part),
                Some(Found::Broken) if self.inner.cache.remove([&keys]).await.is_err() => break,
                Some(Found::Broken | Found::Missing) => {}
            }
            if let Some(loaded) = self.inner.load_entry(item, id, &keys).await? {
                return Ok(view.of_item(&loaded.contents));
            }
            if Instant::now() >= deadline {
                break;
            }
            self.inner.wait(&keys, deadline).await;
        }
        let _turn = self.inner.turn().await?;
        Ok(view.of_item(&self.inner.load(item, id).await?.contents))
    }
}

impl Inner {
    fn keys<I: Item>(&self, history: &History, id: u64) -> EntryKeys {
        EntryKeys::new(self.prefix, I::KIND, history, Partition::of_id(id), id)
    }

    // Reads an entry; `None` if it must not be relied on.
    async fn look<V: View>(
        &self,
        keys: &EntryKeys,
        view: &V,
        trusted: &Trusted,
    ) -> Option<Found<V::Output>> {
        let mut batch = trusted.begin();
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
        item: &I,
        id: u64,
        keys: &EntryKeys,
    ) -> Result<Option<Loaded>, ReadError> {
        let Some(_loading) = self.begin_loading(keys) else { return Ok(None) };
        // Before the lease, which would end while this load waits.
        let _turn = self.turn().await?;
        let token = Token(Uuid::new_v4().as_u64_pair().0);
        match self.cache.lease(keys, token).await {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            // Such as a cache that is full.
            Err(_) => return Ok(Some(self.load(item, id).await?)),
        }
        let loaded = self.load(item, id).await;
        let is_installed = match &loaded {
            Ok(Loaded { history, revision, contents }) if self.keys::<I>(history, id) == *keys => {
                self.cache.install(keys, token, *revision, contents, I::RECORDS_MAX).await.is_ok()
            }
            _ => false,
        };
        if !is_installed {
            // The lease must not keep others from loading it.
            let _ = self.cache.remove([keys]).await;
        }
        loaded.map(Some)
    }

    // Waits for a turn to read the database.
    async fn turn(&self) -> Result<Turn<'_>, ReadError> {
        let waiting = self.waiting.try_acquire().map_err(|_| ReadError::Overloaded)?;
        // The semaphore is never closed.
        Ok((waiting, self.turns.acquire().await))
    }

    // Reads an item from the database, in a turn.
    async fn load<I: Item>(&self, item: &I, id: u64) -> Result<Loaded, ReadError> {
        let loaded = item.load(&self.database, id).await?;
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
        Some(Loading { inner: self, entry: keys.entry.clone(), _sender: sender })
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
    entry: String,
    _sender: watch::Sender<()>,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.inner.loading().remove(&self.entry);
    }
}
