//! What a limit remembers of each caller, in a bounded space: `governor`'s own stores take in
//! whoever comes.
//!
//! A caller has a place of their own while there is one. When all are taken, those who come anew
//! share places, many with one, until some of those who were there before have been quiet for long
//! enough. So somebody who calls from millions of addresses can fill the places, and from then on
//! gets no more than all the shared places together allow; who has a place keeps it, and who comes
//! anew may be refused in their stead. To take every newcomer in would be no limit, and to refuse
//! every one would let a flood of one minute shut out the world for as long as it is remembered.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hash, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

use governor::{
    nanos::Nanos,
    state::{StateStore, keyed::ShrinkableKeyedStateStore},
};

/// Own places of one limit: some 3 MB when all are taken.
const OWN_MAX: usize = 100_000;
/// Places that are shared when these are taken.
const SHARED: usize = 4_096;
/// Parts with a lock each, so that workers seldom wait for each other, and never for the sweep of
/// all places.
const SHARDS: usize = 16;

/// The state of all callers of a limit. Which of them share, nobody outside can foresee.
#[derive(Debug)]
pub(crate) struct Cells<K> {
    shards: Box<[Mutex<Shard<K>>]>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Shard<K> {
    own: HashMap<K, Nanos>,
    shared: [Option<Nanos>; SHARED / SHARDS],
}

impl<K> Cells<K> {
    pub(crate) fn new() -> Self {
        let shard = || Shard { own: HashMap::new(), shared: [None; SHARED / SHARDS] };
        let shards = (0..SHARDS).map(|_| Mutex::new(shard())).collect();
        Self { shards, hasher: RandomState::new() }
    }

    fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, Shard<K>>> {
        self.shards.iter().map(lock)
    }
}

impl<K: Hash + Eq + Clone> StateStore for Cells<K> {
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

impl<K: Hash + Eq + Clone> ShrinkableKeyedStateStore<K> for Cells<K> {
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

/// Nothing that is done under the lock leaves a shard half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
