//! Bounded keyed state of a rate limit. The stores of `governor` grow with every new key.
//!
//! A key has a cell of its own while there is space. When all own cells are taken, new keys share
//! cells by their hash until idle keys are evicted. A client with millions of addresses can fill
//! the own cells; from then on it gets no more than all shared cells together allow. Known keys
//! keep their own cell, and new keys of others may be rejected meanwhile. Accepting every new key
//! would be no limit; rejecting every new key would let one flood lock everybody else out.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hash, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

use governor::{
    nanos::Nanos,
    state::{StateStore, keyed::ShrinkableKeyedStateStore},
};

/// Own cells of one limit: about 3 MB when all are taken.
const OWN_MAX: usize = 100_000;
/// Cells that new keys share when all own cells are taken.
const SHARED: usize = 4_096;
/// Shards with a lock each: workers rarely contend, and eviction locks one shard at a time.
const SHARDS: usize = 16;

/// The state of all keys of a limit. The hash is seeded, so clients cannot choose whom to share
/// with.
#[derive(Debug)]
pub(crate) struct BoundedState<K> {
    shards: Box<[Mutex<Shard<K>>]>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Shard<K> {
    own: HashMap<K, Nanos>,
    shared: [Option<Nanos>; SHARED / SHARDS],
}

impl<K> BoundedState<K> {
    pub(crate) fn new() -> Self {
        let shard = || Shard { own: HashMap::new(), shared: [None; SHARED / SHARDS] };
        let shards = (0..SHARDS).map(|_| Mutex::new(shard())).collect();
        Self { shards, hasher: RandomState::new() }
    }

    fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, Shard<K>>> {
        self.shards.iter().map(lock)
    }
}

impl<K: Hash + Eq + Clone> StateStore for BoundedState<K> {
    type Key = K;

    fn measure_and_replace<T, F, E>(&self, key: &K, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let hash = self.hasher.hash_one(key) as usize;
        let mut shard = lock(&self.shards[hash % SHARDS]);
        let Shard { own, shared } = &mut *shard;
        if let Some(cell) = own.get_mut(key) {
            let (outcome, next) = decide(Some(*cell))?;
            *cell = next;
            return Ok(outcome);
        }
        if own.len() < OWN_MAX / SHARDS {
            let (outcome, next) = decide(None)?;
            own.insert(key.clone(), next);
            return Ok(outcome);
        }
        let cell = &mut shared[hash / SHARDS % (SHARED / SHARDS)];
        let (outcome, next) = decide(*cell)?;
        *cell = Some(next);
        Ok(outcome)
    }
}

impl<K: Hash + Eq + Clone> ShrinkableKeyedStateStore<K> for BoundedState<K> {
    fn retain_recent(&self, drop_below: Nanos) {
        for mut shard in self.shards() {
            shard.own.retain(|_, &mut cell| cell > drop_below);
        }
    }

    fn shrink_to_fit(&self) {
        for mut shard in self.shards() {
            shard.own.shrink_to_fit();
        }
    }

    fn len(&self) -> usize {
        self.shards().map(|shard| shard.own.len()).sum()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Locks a shard. Poisoning is ignored: no change under the lock can be left half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
