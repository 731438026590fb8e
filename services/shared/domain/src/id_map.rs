//! Maps and sets by id, optimised for some dozen lookups per page.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
};

use foldhash::fast::RandomState;

/// A map by id. Hashes an integer ten times faster than the standard hasher, still with a random
/// seed. Create it with `default()` or `collect()`.
pub type IdMap<K, V> = HashMap<K, V, RandomState>;

/// A set of ids, likewise.
pub type IdSet<K> = HashSet<K, RandomState>;

/// Returns ids without duplicates, in the given order.
pub fn deduplicated<T: Copy + Ord + Hash>(ids: &[T]) -> Vec<T> {
    // Timelines are sorted, and have no duplicates.
    if ids.is_sorted_by(|one, next| one > next) {
        return ids.to_vec();
    }
    let mut seen = IdSet::default();
    ids.iter().copied().filter(|&id| seen.insert(id)).collect()
}
