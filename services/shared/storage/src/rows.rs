//! Rows that a transaction has locked, as they were and as its calls leave them.

use std::collections::BTreeMap;

/// Rows of a table by their keys.
#[derive(Debug)]
pub struct Rows<K, R> {
    before: BTreeMap<K, R>,
    /// The rows as they are now.
    pub now: BTreeMap<K, R>,
}

impl<K: Ord + Clone, R: Clone + PartialEq> Rows<K, R> {
    /// Returns the rows that were read.
    pub fn new(rows: BTreeMap<K, R>) -> Self {
        Self { now: rows.clone(), before: rows }
    }

    /// Returns the rows as they were read.
    pub fn as_read(&self) -> &BTreeMap<K, R> {
        &self.before
    }

    /// Returns the keys of the rows that are gone.
    pub fn removed(&self) -> impl Iterator<Item = &K> {
        self.before.keys().filter(|key| !self.now.contains_key(key))
    }

    /// Returns the rows that are new.
    pub fn added(&self) -> impl Iterator<Item = (&K, &R)> {
        self.now.iter().filter(|(key, _)| !self.before.contains_key(key))
    }

    /// Returns the rows that have changed.
    pub fn changed(&self) -> impl Iterator<Item = (&K, &R)> {
        let has_changed =
            |(key, row): &(&K, &R)| self.before.get(key).is_some_and(|old| old != *row);
        self.now.iter().filter(has_changed)
    }

    /// Returns whether a row is another one than before.
    pub fn have_changed(&self) -> bool {
        self.before != self.now
    }
}
