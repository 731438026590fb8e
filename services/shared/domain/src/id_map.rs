//! Maps and sets by id, optimised for some dozen lookups per page.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

/// A map by id. Hashes an integer ten times faster than the standard hasher, still with a random
/// seed. Create it with `default()` or `collect()`.
pub type IdMap<K, V> = HashMap<K, V, RandomState>;

/// A set of ids, likewise.
pub type IdSet<K> = HashSet<K, RandomState>;
