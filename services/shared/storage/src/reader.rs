//! Reads: from the cache if the primary of an item is trusted, and else from the database.
//!
//! Small entries that are read often are kept in the process (`client_side`). What is read of them is as recent
//! as what is read from Redis.
//!
//! A read that finds no entry takes the lease on it, reads the item in one statement, which begins later,
//! and installs the entry, if the lease is still its own. Other readers of the item wait a moment for the
//! entry. They do not take what the first one has read: it may lack what was acknowledged before they
//! began. Then they read the database themselves, without installing.

use std::{
    collections::HashMap,
    hash::Hash,
    iter, mem, slice,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{
    StreamExt as _, TryStreamExt as _,
    future::{BoxFuture, join_all},
    stream,
};
use microblog_domain::Partition;
use microblog_keyspace::{
    self as keyspace, Batch, Keyspace, Library, decode,
    redis::{Cmd, Value, cmd},
};
use microblog_record::{self as record, Database};
use tokio::{
    sync::{AcquireError, Semaphore, SemaphorePermit, watch},
    time::{Instant, sleep, timeout_at},
};

use crate::{
    cache::{Cache, Token},
    client_side::{Begun, ClientSide, TrackedRead},
    entry::{Contents, EntryKeys, EntryLimits, History},
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
pub trait Item: Copy + Ord + Hash + Send + Sync + 'static {
    /// The prefix of the service's keys.
    const PREFIX: &'static str;

    /// The functions of the service's keyspace.
    const LIBRARY: Library;

    /// The kinds whose entries are small: a [`Reader`] reads them whole, and keeps them in the client-side
    /// cache. If there are none, it has no such cache. The Redis user needs GET, and what a
    /// [`ClientSideCache`](microblog_keyspace::ClientSideCache) needs.
    const SMALL: &'static [Self];

    /// Returns its name in keys and in the feed: one word.
    fn kind(self) -> &'static str;

    /// Returns the limits of its entries.
    fn limits(self) -> EntryLimits;

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

impl<T> Found<T> {
    /// Changes the part.
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Found<U> {
        match self {
            Self::Whole(part) => Found::Whole(change(part)),
            Self::Missing => Found::Missing,
            Self::Broken => Found::Broken,
        }
    }
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

impl Contents {
    /// Decodes the reply of a command that reads an entry whole.
    pub(crate) fn find(reply: Value) -> Result<Found<Self>, keyspace::Error> {
        Ok(match decode::<Option<Vec<u8>>>(reply)? {
            None => Found::Missing,
            Some(entry) => Self::read(&entry).map_or(Found::Broken, Found::Whole),
        })
    }
}

/// The whole item.
#[derive(Clone, Copy, Debug)]
pub struct Whole;

impl View for Whole {
    type Output = Contents;

    fn commands(&self, keys: &EntryKeys) -> Vec<Cmd> {
        vec![cmd("GET").arg(&keys.entry).take()]
    }

    fn of_entry(&self, replies: Vec<Value>) -> Result<Found<Contents>, keyspace::Error> {
        Contents::find(replies.into_iter().next().unwrap_or(Value::Nil))
    }

    fn of_item(&self, contents: &Contents) -> Contents {
        contents.clone()
    }
}

/// A part that is looked for, and the trusted primary that has its item: their indices.
#[derive(Clone, Copy)]
struct Asked {
    part: usize,
    primary: usize,
}

/// What is read on the tracked connection of a primary.
struct OfTracked<I: Item> {
    primary: usize,
    /// In the order in which it is read.
    asked: Vec<Asked>,
    read: TrackedRead<I>,
}

/// The only part, of the only primary.
const ONLY: Asked = Asked { part: 0, primary: 0 };

/// Reads the items of a service, of the kinds `I`. Cheap to clone. Belongs to the runtime that uses it.
pub struct Reader<I: Item> {
    inner: Arc<Inner<I>>,
}

impl<I: Item> Clone for Reader<I> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

struct Inner<I: Item> {
    tables: Tables,
    keyspace: Keyspace,
    cache: Cache,
    trust: Trust,
    client_side: Option<ClientSide<I>>,
    metrics: ReadMetrics,
    turns: Semaphore,
    waiting: Semaphore,
    /// The entries that this worker loads, by key. A sender is dropped when its load ends.
    loading: Mutex<HashMap<String, watch::Receiver<()>>>,
}

impl<I: Item> Reader<I> {
    /// Returns the reader of a keyspace.
    pub fn new(tables: Tables, keyspace: Keyspace, trust: Trust) -> Self {
        let inner = Inner {
            tables,
            cache: Cache::new(keyspace.clone()),
            client_side: ClientSide::open(&keyspace),
            trust,
            metrics: ReadMetrics::new(keyspace.name()),
            keyspace,
            turns: Semaphore::new(LOADS),
            waiting: Semaphore::new(LOADS + WAITING_MAX),
            loading: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Reads a part of an item.
    pub async fn read<V: View>(&self, part: &Part<I, V>) -> Result<V::Output, ReadError> {
        let Part { item, id, view } = part;
        let (item, id) = (*item, *id);
        let mut deadline = None;
        while let Some(trusted) = self.inner.trust.of(Partition::of_id(id)) {
            let found = self.inner.look_once(part, &trusted).await;
            if let Some(Found::Whole(part)) = found {
                self.inner.metrics.hits.add(1);
                return Ok(part);
            }
            // The cache does not answer, or is another one than it was.
            let Some(found) = found else { break };
            let keys = self.inner.keys(item, &trusted.history, id);
            if matches!(found, Found::Broken) && self.inner.cache.remove([&keys]).await.is_err() {
                break;
            }
            if let Some(loaded) = self.inner.load_entry(item, id, &keys).await? {
                self.inner.metrics.loads.add(1);
                return Ok(view.of_item(&loaded.contents));
            }
            let now = Instant::now();
            let deadline = *deadline.get_or_insert(now + WAIT);
            if now >= deadline {
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
    pub async fn read_all<V: View>(
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

    /// Reads from the database what the cache could have had: of an item that is not trusted, or not whole in
    /// its entry.
    pub async fn bypass<T>(
        &self,
        read: impl AsyncFnOnce(&Database) -> Result<T, record::Error>,
    ) -> Result<T, ReadError> {
        self.inner.metrics.bypasses.add(1);
        self.uncached(read).await
    }

    /// Reads from the database what is never cached, in a turn.
    pub async fn uncached<T>(
        &self,
        read: impl AsyncFnOnce(&Database) -> Result<T, record::Error>,
    ) -> Result<T, ReadError> {
        let _turn = self.inner.turn().await?;
        Ok(read(self.inner.tables.database().await?).await?)
    }

    /// Returns the parts that the cache has, in the order of `parts`, in one round trip to each primary, or
    /// two if a small entry changes meanwhile. `None` for the others, and for all if the cache does not answer.
    pub async fn peek<V: View>(&self, parts: &[Part<I, V>]) -> Vec<Option<V::Output>> {
        let (mut primaries, mut asked) = (Vec::<Trusted>::new(), Vec::new());
        for (part, Part { id, .. }) in parts.iter().enumerate() {
            let partition = Partition::of_id(*id);
            let known = primaries.iter().position(|trusted| trusted.has(partition));
            let primary = known.or_else(|| {
                primaries.push(self.inner.trust.of(partition)?);
                Some(primaries.len() - 1)
            });
            asked.extend(primary.map(|primary| Asked { part, primary }));
        }
        let looked = self.inner.look(parts, &primaries, &asked).await;
        let whole = |found| match found {
            Some(Found::Whole(part)) => Some(part),
            _ => None,
        };
        let found: Vec<_> = looked.into_iter().map(whole).collect();
        let hits = found.iter().filter(|part| part.is_some()).count();
        self.inner.metrics.hits.add(hits as u64);
        found
    }
}

impl<I: Item> Inner<I> {
    fn keys(&self, item: I, history: &History, id: u64) -> EntryKeys {
        EntryKeys::new(I::PREFIX, item.kind(), history, Partition::of_id(id), id)
    }

    // Reads one entry: a small one on a tracked connection, and else on a shared one. `None` if it must not be
    // relied on.
    async fn look_once<V: View>(
        &self,
        part: &Part<I, V>,
        trusted: &Trusted,
    ) -> Option<Found<V::Output>> {
        if let Some(client_side) =
            self.client_side.as_ref().filter(|_| I::SMALL.contains(&part.item))
            && let Some(Begun { read, rejected }) =
                client_side.begin(trusted, iter::once((part.item, part.id)))
            && rejected.is_empty()
            && let Some(Some(found)) = client_side.end(trusted, read).await.pop()
        {
            return Some(found.map(|contents| part.view.of_item(&contents)));
        }
        let (part, primary) = (slice::from_ref(part), slice::from_ref(trusted));
        self.look_shared(part, primary, &[ONLY]).await.pop().map(|(_, found)| found)
    }

    // Reads entries: small ones on tracked connections, and on shared ones those which are not small, not read
    // often, or not answered by a tracked one. `None` for one that must not be relied on.
    async fn look<V: View>(
        &self,
        parts: &[Part<I, V>],
        primaries: &[Trusted],
        asked: &[Asked],
    ) -> Vec<Option<Found<V::Output>>> {
        let (tracked, shared) = self.divide(parts, primaries, asked);
        let mut found: Vec<_> = parts.iter().map(|_| None).collect();
        let read = tracked.into_iter().map(|read| self.end_tracked(parts, primaries, read));
        let (of_tracked, of_shared) =
            tokio::join!(join_all(read), self.look_shared(parts, primaries, &shared));
        let mut rest = Vec::new();
        for (asked, of_part) in of_tracked.into_iter().flatten() {
            match of_part {
                Some(of_part) => found[asked.part] = Some(of_part),
                None => rest.push(asked),
            }
        }
        let of_rest = self.look_shared(parts, primaries, &rest).await;
        for (part, of_part) in of_shared.into_iter().chain(of_rest) {
            found[part] = Some(of_part);
        }
        found
    }

    // Begins the reads of small entries on tracked connections. Returns these, and what is read otherwise.
    fn divide<V>(
        &self,
        parts: &[Part<I, V>],
        primaries: &[Trusted],
        asked: &[Asked],
    ) -> (Vec<OfTracked<I>>, Vec<Asked>) {
        let Some(client_side) = &self.client_side else { return (Vec::new(), asked.to_vec()) };
        let item = |asked: &Asked| (parts[asked.part].item, parts[asked.part].id);
        let is_small = |asked: &Asked| I::SMALL.contains(&parts[asked.part].item);
        let (mut tracked, mut shared) = (Vec::new(), Vec::new());
        for (primary, trusted) in primaries.iter().enumerate() {
            let of_primary = asked.iter().copied().filter(|asked| asked.primary == primary);
            let (mut small, large): (Vec<_>, Vec<_>) = of_primary.partition(is_small);
            shared.extend(large);
            if small.is_empty() {
                continue;
            }
            let begun = client_side.begin(trusted, small.iter().map(item));
            let Some(Begun { read, rejected }) = begun else {
                shared.extend(small);
                continue;
            };
            if !rejected.is_empty() {
                let is_rejected = |asked: &mut Asked| rejected.binary_search(&item(asked)).is_ok();
                shared.extend(small.extract_if(.., is_rejected));
            }
            if !small.is_empty() {
                tracked.push(OfTracked { primary, asked: small, read });
            }
        }
        (tracked, shared)
    }

    // Reads small entries on the tracked connection of a primary. Returns those that may be relied on, and
    // `None` for the others.
    async fn end_tracked<V: View>(
        &self,
        parts: &[Part<I, V>],
        primaries: &[Trusted],
        OfTracked { primary, asked, read }: OfTracked<I>,
    ) -> Vec<(Asked, Option<Found<V::Output>>)> {
        let Some(client_side) = &self.client_side else { return Vec::new() };
        let mut found = client_side.end(&primaries[primary], read).await.into_iter();
        let of_part = |asked: Asked| {
            let view = |contents: Contents| parts[asked.part].view.of_item(&contents);
            (asked, found.next().flatten().map(|found| found.map(view)))
        };
        asked.into_iter().map(of_part).collect()
    }

    // Reads entries on shared connections. Returns those that may be relied on, with the indices of their
    // parts; none if the cache does not answer.
    async fn look_shared<V: View>(
        &self,
        parts: &[Part<I, V>],
        primaries: &[Trusted],
        asked: &[Asked],
    ) -> Vec<(usize, Found<V::Output>)> {
        if asked.is_empty() {
            return Vec::new();
        }
        let mut batch = Batch::with_capacity(asked.len() * 2 + primaries.len());
        // The reply about the mark of each primary, and those of each part.
        let mut marks = vec![None; primaries.len()];
        let mut places = Vec::with_capacity(asked.len());
        for &Asked { part, primary } in asked {
            let (Part { item, id, view }, trusted) = (&parts[part], &primaries[primary]);
            marks[primary].get_or_insert_with(|| {
                trusted.ask_mark(&mut batch);
                batch.len() - 1
            });
            let (keys, first) = (self.keys(*item, &trusted.history, *id), batch.len());
            for command in view.commands(&keys) {
                batch.query(keys.partition, command);
            }
            places.push(first..batch.len());
        }
        let Ok(mut replies) = self.keyspace.send(batch).await else { return Vec::new() };
        let is_confirmed = |(trusted, mark): (&Trusted, &Option<usize>)| {
            let mark = mark.and_then(|mark| replies.get(mark));
            mark.is_some_and(|mark| self.trust.confirms(trusted, mark))
        };
        let confirmed: Vec<bool> = primaries.iter().zip(&marks).map(is_confirmed).collect();
        let looked = asked.iter().zip(places).filter_map(|(&Asked { part, primary }, place)| {
            let replies = replies.get_mut(place).filter(|_| confirmed[primary])?.iter_mut();
            let replies = replies.map(|reply| mem::replace(reply, Value::Nil)).collect();
            // What cannot be decoded is deleted.
            Some((part, parts[part].view.of_entry(replies).unwrap_or(Found::Broken)))
        });
        looked.collect()
    }

    // Loads an entry under its lease, and returns the item; `None` if another reader has the lease.
    async fn load_entry(
        &self,
        item: I,
        id: u64,
        keys: &EntryKeys,
    ) -> Result<Option<Loaded>, ReadError> {
        let Some(mut loading) = self.begin_loading(keys) else { return Ok(None) };
        // Before the lease, which would end while this load waits.
        let _turn = self.turn().await?;
        let token = Token::random();
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
                let install = self.cache.install(keys, token, *revision, contents, item.limits());
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
    async fn load(&self, item: I, id: u64) -> Result<Loaded, ReadError> {
        let loaded = item.load(self.tables.database().await?, id).await?;
        self.trust.learn(&loaded.history);
        Ok(loaded)
    }

    fn begin_loading(&self, keys: &EntryKeys) -> Option<Loading<'_, I>> {
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
struct Loading<'a, I: Item> {
    inner: &'a Inner<I>,
    keys: EntryKeys,
    /// Whether the lease must be removed: it would keep others from loading the entry.
    may_have_lease: bool,
    _sender: watch::Sender<()>,
}

impl<I: Item> Drop for Loading<'_, I> {
    fn drop(&mut self) {
        self.inner.loading().remove(&self.keys.entry);
        if self.may_have_lease {
            let (cache, keys) = (self.inner.cache.clone(), self.keys.clone());
            tokio::spawn(async move { cache.remove([&keys]).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::FORMAT;

    #[test]
    fn an_entry_and_its_item_are_the_same() {
        let contents = Contents { front: (*b"front").into(), records: Vec::new() };
        let header = [&[FORMAT, 0, 0, 0][..], &5_u32.to_be_bytes(), &7_u64.to_be_bytes()].concat();
        let of_entry = |reply| Whole.of_entry(vec![reply]).unwrap();
        let entry = |front: &[u8]| Value::BulkString([&header, front].concat());
        assert_eq!(of_entry(entry(b"front")), Found::Whole(Whole.of_item(&contents)));
        assert_eq!(of_entry(entry(b"fron")), Found::Broken, "the rest is missing");
        assert_eq!(of_entry(Value::Nil), Found::Missing);
        assert!(Whole.of_entry(vec![Value::Int(7)]).is_err());
    }
}
