//! The backlog of a sweeper: the entries it has seen in a list of each partition. Does no I/O.

use std::{
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};

use microblog_domain::Partition;

use crate::BacklogMetrics;

/// The entries that a sweeper has seen in all partitions. It reads one page of each partition at a
/// time, so that entries that cannot be completed yet do not hide those after them.
///
/// The age of an entry is the time since this backlog first saw it, on the monotonic clock of the
/// process: clock skew between machines has no effect.
#[derive(Debug)]
pub struct Backlog<T> {
    page_size: usize,
    partitions: Vec<PartitionState<T>>,
    metrics: Option<BacklogMetrics>,
}

#[derive(Debug)]
struct PartitionState<T> {
    // The rank of the next page.
    rank: usize,
    // The entries of this pass over all pages and of the previous pass, with the time when each was
    // first seen.
    seen: HashMap<T, Instant>,
    seen_before: HashMap<T, Instant>,
    // The minimum of each.
    oldest: Option<Instant>,
    oldest_before: Option<Instant>,
}

impl<T: Clone + Eq + Hash> Backlog<T> {
    /// Returns an empty backlog. A page of fewer than `page_size` entries is the last one of its
    /// partition.
    pub fn new(page_size: usize) -> Self {
        let partitions = Partition::all().map(|_| PartitionState::new()).collect();
        Self { page_size, partitions, metrics: None }
    }

    /// Adds metrics under a name.
    #[must_use]
    pub fn measured(self, name: &'static str) -> Self {
        Self { metrics: Some(BacklogMetrics::new(name)), ..self }
    }

    /// Returns every partition with the rank of its next page.
    pub fn places(&self) -> Vec<(Partition, usize)> {
        Partition::all().zip(self.partitions.iter().map(|state| state.rank)).collect()
    }

    /// Records the pages, in the order of [`places`](Self::places). Returns the stale entries: those
    /// of the pages that were first seen at least `stale_after` ago.
    ///
    /// A page must contain all entries that were read, malformed ones too: otherwise a full page would
    /// count as the last one. `T` may be an `Option` for that.
    pub fn stale_entries(&mut self, pages: Vec<Vec<T>>, stale_after: Duration) -> Vec<T> {
        self.stale_at(Instant::now(), pages, stale_after)
    }

    fn stale_at(&mut self, now: Instant, pages: Vec<Vec<T>>, stale_after: Duration) -> Vec<T> {
        let mut stale = Vec::new();
        for (state, page) in self.partitions.iter_mut().zip(pages) {
            let is_full = page.len() >= self.page_size;
            for entry in page {
                let first_seen = state.record(entry.clone(), now);
                if now.duration_since(first_seen) >= stale_after {
                    stale.push(entry);
                }
            }
            if is_full {
                state.rank += self.page_size;
            } else {
                state.rank = 0;
                state.seen_before = std::mem::take(&mut state.seen);
                state.oldest_before = state.oldest.take();
            }
        }
        if let Some(metrics) = &self.metrics {
            metrics.note(self.size(), self.age_at(now), stale.len());
        }
        stale
    }

    /// Returns the number of entries seen.
    fn size(&self) -> usize {
        let size = |state: &PartitionState<T>| state.seen.len().max(state.seen_before.len());
        self.partitions.iter().map(size).sum()
    }

    /// Returns the age of the oldest entry.
    fn age_at(&self, now: Instant) -> Duration {
        let oldest =
            |state: &PartitionState<T>| state.oldest.into_iter().chain(state.oldest_before);
        let oldest = self.partitions.iter().flat_map(oldest).min();
        oldest.map_or(Duration::ZERO, |oldest| now.duration_since(oldest))
    }
}

impl<T: Eq + Hash> PartitionState<T> {
    fn new() -> Self {
        let (seen, seen_before) = (HashMap::new(), HashMap::new());
        Self { rank: 0, seen, seen_before, oldest: None, oldest_before: None }
    }

    /// Records an entry, and returns when it was first seen.
    fn record(&mut self, entry: T, now: Instant) -> Instant {
        let known = self.seen.get(&entry).or_else(|| self.seen_before.get(&entry));
        let first_seen = known.copied().unwrap_or(now);
        self.seen.insert(entry, first_seen);
        self.oldest = Some(self.oldest.map_or(first_seen, |oldest| oldest.min(first_seen)));
        first_seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALE_AFTER: Duration = Duration::from_secs(2);

    /// A backlog with pages of two entries, in which only one partition has entries.
    struct Sweep {
        backlog: Backlog<&'static str>,
        begin: Instant,
    }

    impl Sweep {
        const AT: usize = 7;

        fn new() -> Self {
            Self { backlog: Backlog::new(2), begin: Instant::now() }
        }

        /// Reads a page at this second. Returns the stale entries.
        fn read(&mut self, second: u64, page: &[&'static str]) -> Vec<&'static str> {
            let mut pages = vec![Vec::new(); usize::from(Partition::COUNT)];
            pages[Self::AT] = page.to_vec();
            self.backlog.stale_at(self.begin + Duration::from_secs(second), pages, STALE_AFTER)
        }

        /// Returns the size, and the age in seconds.
        fn size_and_age(&self, second: u64) -> (usize, u64) {
            let age = self.backlog.age_at(self.begin + Duration::from_secs(second));
            (self.backlog.size(), age.as_secs())
        }

        fn rank(&self) -> usize {
            let places = self.backlog.places();
            let others = places.iter().filter(|(partition, _)| partition.number() != 7);
            assert!(others.clone().all(|&(_, rank)| rank == 0));
            assert_eq!(others.count() + 1, places.len());
            places[Self::AT].1
        }
    }

    #[test]
    fn full_page_advances_the_rank_and_a_short_one_resets_it() {
        let mut sweep = Sweep::new();
        assert_eq!(sweep.rank(), 0);
        sweep.read(0, &["a", "b"]);
        assert_eq!(sweep.rank(), 2);
        sweep.read(0, &["c", "d"]);
        assert_eq!(sweep.rank(), 4);
        sweep.read(0, &["e"]);
        assert_eq!(sweep.rank(), 0);
        sweep.read(0, &["a", "b"]);
        sweep.read(0, &[]);
        assert_eq!(sweep.rank(), 0);
    }

    #[test]
    fn age_counts_from_the_previous_pass() {
        let mut sweep = Sweep::new();
        assert!(sweep.read(0, &["a", "b"]).is_empty());
        assert!(sweep.read(1, &["c"]).is_empty());
        // "b" was completed, so "c" is on the first page.
        assert_eq!(sweep.read(3, &["a", "c"]), ["a", "c"]);
        assert!(sweep.read(3, &["d"]).is_empty());
    }

    #[test]
    fn younger_entries_are_not_stale() {
        let mut sweep = Sweep::new();
        assert!(sweep.read(0, &["a"]).is_empty());
        assert!(sweep.read(1, &["a", "b"]).is_empty());
        assert!(sweep.read(1, &[]).is_empty());
        assert_eq!(sweep.read(2, &["a", "b"]), ["a"]);
    }

    #[test]
    fn size_and_age_are_those_of_a_pass() {
        let mut sweep = Sweep::new();
        assert_eq!(sweep.size_and_age(0), (0, 0));
        sweep.read(0, &["a", "b"]);
        sweep.read(1, &["c"]);
        assert_eq!(sweep.size_and_age(5), (3, 5));
        sweep.read(6, &["a", "c"]);
        assert_eq!(sweep.size_and_age(6), (3, 6), "only one page of the next pass was read");
        sweep.read(7, &[]);
        assert_eq!(sweep.size_and_age(7), (2, 7));
        sweep.read(8, &["c"]);
        assert_eq!(sweep.size_and_age(8), (1, 7));
        sweep.read(9, &[]);
        assert_eq!(sweep.size_and_age(9), (0, 0));
    }

    #[test]
    fn entry_missing_for_a_pass_is_new_when_it_returns() {
        let mut sweep = Sweep::new();
        assert!(sweep.read(0, &["a"]).is_empty());
        assert!(sweep.read(1, &[]).is_empty());
        assert!(sweep.read(2, &["a"]).is_empty());
        assert_eq!(sweep.read(4, &["a"]), ["a"]);
    }

    #[test]
    fn all_entries_are_stale_after_zero_time() {
        let mut backlog = Backlog::new(2);
        let pages: Vec<Vec<u16>> = Partition::all().map(|p| vec![p.number()]).collect();
        let all: Vec<u16> = Partition::all().map(Partition::number).collect();
        assert_eq!(backlog.stale_entries(pages, Duration::ZERO), all);
    }
}
