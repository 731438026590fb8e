//! What was read on one connection and has not changed since, as much as there is room for. Knows
//! neither the connection nor who reads.

use hashlink::LruCache;
use redis::Value;

use super::{Id, Kind};
use crate::{doorkeeper::Doorkeeper, remembered::Remembered};

// What a value takes besides itself, in the list and the table, about.
const ENTRY_BYTES: usize = 64;

// For each mark of who was seen lately: there are about as many marks as values.
const BYTES_PER_MARK: usize = 256;

/// What was read on one connection and has not changed since.
pub(super) struct Memory<I, T> {
    values: LruCache<I, T>,
    kind: Kind<I, T>,
    bytes: usize,
    bytes_max: usize,
    /// Those who were looked for lately.
    doorkeeper: Doorkeeper,
    /// How many messages Redis has pushed.
    pushed: u64,
    remembered: Remembered,
}

/// Ids that are not remembered, in their order, each once.
pub(super) struct Unknown<I> {
    /// Those to remember.
    pub(super) wanted: Vec<I>,
    /// Those that nobody has looked for lately.
    pub(super) passing: Vec<I>,
}

impl<I, T> Drop for Memory<I, T> {
    fn drop(&mut self) {
        self.remembered.changed((self.values.len(), self.bytes), (0, 0));
    }
}

impl<I: Id, T: Clone> Memory<I, T> {
    pub(super) fn new(kind: Kind<I, T>, bytes_max: usize, remembered: Remembered) -> Self {
        let values = LruCache::new_unbounded();
        let doorkeeper = Doorkeeper::new(bytes_max / BYTES_PER_MARK);
        Self { values, kind, bytes: 0, bytes_max, doorkeeper, pushed: 0, remembered }
    }

    /// Returns how many values and bytes there are.
    fn size(&self) -> (usize, usize) {
        (self.values.len(), self.bytes)
    }

    fn insert(&mut self, id: I, value: T) {
        self.bytes += self.bytes_of(&value);
        if let Some(before) = self.values.insert(id, value) {
            self.bytes -= self.bytes_of(&before);
        }
        while self.bytes > self.bytes_max
            && let Some((_, oldest)) = self.values.remove_lru()
        {
            self.bytes -= self.bytes_of(&oldest);
        }
    }

    fn forget(&mut self, id: I) {
        if let Some(value) = self.values.remove(&id) {
            self.bytes -= self.bytes_of(&value);
            // What was here is no stranger when it is looked for next.
            self.doorkeeper.has_seen(&id);
        }
    }

    fn forget_all(&mut self) {
        self.values.clear();
        self.bytes = 0;
    }

    fn bytes_of(&self, value: &T) -> usize {
        ENTRY_BYTES + size_of::<T>() + (self.kind.heap_bytes)(value)
    }

    /// Returns which ids have no value here. Those that were looked for lately are to be remembered.
    pub(super) fn unknown(&mut self, ids: &[I]) -> Unknown<I> {
        let mut unknown: Vec<I> =
            ids.iter().copied().filter(|id| !self.values.contains_key(id)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        let (wanted, passing) = unknown.into_iter().partition(|id| self.doorkeeper.has_seen(id));
        Unknown { wanted, passing }
    }

    /// Takes in what was read, if nothing was pushed since the first of it was answered, and returns
    /// the values of some ids: those that were read, and those that are remembered. So much had been
    /// pushed by then.
    pub(super) fn take_in(&mut self, ids: &[I], fresh: Vec<(I, T)>, pushed: u64) -> Vec<Option<T>> {
        let value =
            |memory: &mut Self, id: I| match fresh.binary_search_by_key(&id, |(fresh, _)| *fresh) {
                Ok(index) => Some(fresh[index].1.clone()),
                Err(_) => memory.values.get(&id).cloned(),
            };
        let values = ids.iter().map(|&id| value(self, id)).collect();
        if pushed == self.pushed {
            let before = self.size();
            fresh.into_iter().for_each(|(id, value)| self.insert(id, value));
            self.remembered.changed(before, self.size());
        }
        values
    }

    /// Hears what Redis says by itself: the word `invalidate`, and keys, or nothing for all of them.
    pub(super) fn hear(&mut self, data: &[Value]) {
        self.pushed += 1;
        self.remembered.invalidated();
        let before = self.size();
        match data {
            [Value::BulkString(word), Value::Array(keys)] if word == b"invalidate" => {
                for key in keys {
                    let key = if let Value::BulkString(key) = key { &**key } else { b"" };
                    match (self.kind.id)(key) {
                        Some(id) => self.forget(id),
                        None => self.forget_all(),
                    }
                }
            }
            // All keys are gone, or something that is not known yet.
            _ => self.forget_all(),
        }
        self.remembered.changed(before, self.size());
    }
}
