//! What a sweeper has seen wait, in lists that each partition has one of. Does no input or output,
//! and knows no key names.

use std::{
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};

use microblog_domain::Partition;

use crate::BacklogMetrics;

/// What a sweeper has seen wait in all partitions, which it looks at a page of each at a time: what
/// cannot be completed yet must not hide what is behind it.
///
/// How long an entry waits is how long this backlog has seen it wait, on the process's own
/// monotonic clock: no machine's idea of the time makes an entry old.
#[derive(Debug)]
pub struct Backlog<T> {
    page_size: usize,
    partitions: Vec<Watched<T>>,
    metrics: Option<BacklogMetrics>,
}

#[derive(Debug)]
struct Watched<T> {
    // Where the next page begins.
    rank: usize,
    // Since when what was seen on the pages before this one has been waiting, and what was seen
    // the last time through all pages.
    seen: HashMap<T, Instant>,
    seen_before: HashMap<T, Instant>,
    // The first of these, of each.
    oldest: Option<Instant>,
    oldest_before: Option<Instant>,
}

impl<T: Clone + Eq + Hash> Backlog<T> {
    /// Returns a backlog of which nothing was seen yet. A page of fewer than `page_size` entries is
    /// the last one of its partition.
    pub fn new(page_size: usize) -> Self {
        let partitions = Partition::all().map(|_| Watched::new()).collect();
        Self { page_size, partitions, metrics: None }
    }

    /// Returns the same backlog, measured under a name.
    #[must_use]
    pub fn measured(self, name: &'static str) -> Self {
        Self { metrics: Some(BacklogMetrics::new(name)), ..self }
    }

    /// Returns every partition, and the rank at which its next page begins.
    pub fn places(&self) -> Vec<(Partition, usize)> {
        Partition::all().zip(self.partitions.iter().map(|watched| watched.rank)).collect()
    }

    /// Takes note of the pages, in the order of [`places`](Self::places). Returns what has been
    /// waiting for so long.
    ///
    /// A page must have all entries that were read, also what cannot be understood: without it, a
    /// full page would be taken for the last one. `T` may be an `Option` for that.
    pub fn left_behind(&mut self, pages: Vec<Vec<T>>, patience: Duration) -> Vec<T> {
        self.left_behind_at(Instant::now(), pages, patience)
    }

    fn left_behind_at(&mut self, now: Instant, pages: Vec<Vec<T>>, patience: Duration) -> Vec<T> {
        let mut left_behind = Vec::new();
        for (watched, page) in self.partitions.iter_mut().zip(pages) {
            let is_full = page.len() >= self.page_size;
            for entry in page {
                let since = watched.note(entry.clone(), now);
                if now.duration_since(since) >= patience {
                    left_behind.push(entry);
                }
            }
            if is_full {
                watched.rank += self.page_size;
            } else {
                watched.rank = 0;
                watched.seen_before = std::mem::take(&mut watched.seen);
                watched.oldest_before = watched.oldest.take();
            }
        }
        if let Some(metrics) = &self.metrics {
            metrics.note(self.size(), self.age_at(now), left_behind.len());
        }
        left_behind
    }

    /// Returns how much waits, as far as it was seen.
    fn size(&self) -> usize {
        let size = |watched: &Watched<T>| watched.seen.len().max(watched.seen_before.len());
        self.partitions.iter().map(size).sum()
    }

    /// Returns how long the oldest has been seen waiting.
    fn age_at(&self, now: Instant) -> Duration {
        let oldest = |watched: &Watched<T>| watched.oldest.into_iter().chain(watched.oldest_before);
        let oldest = self.partitions.iter().flat_map(oldest).min();
        oldest.map_or(Duration::ZERO, |oldest| now.duration_since(oldest))
    }
}

impl<T: Eq + Hash> Watched<T> {
    fn new() -> Self {
        let (seen, seen_before) = (HashMap::new(), HashMap::new());
        Self { rank: 0, seen, seen_before, oldest: None, oldest_before: None }
    }

    /// Takes note of an entry, and returns since when it has been waiting.
    fn note(&mut self, entry: T, now: Instant) -> Instant {
        let known = self.seen.get(&entry).or_else(|| self.seen_before.get(&entry));
        let since = known.copied().unwrap_or(now);
        self.seen.insert(entry, since);
        self.oldest = Some(self.oldest.map_or(since, |oldest| oldest.min(since)));
        since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);

    /// A backlog of pages of two, of which only one partition has entries.
    struct Looks {
        backlog: Backlog<&'static str>,
        begin: Instant,
    }

    impl Looks {
        const AT: usize = 7;

        fn new() -> Self {
            Self { backlog: Backlog::new(2), begin: Instant::now() }
        }

        /// Looks at a page at this second. Returns what was left behind.
        fn look(&mut self, second: u64, page: &[&'static str]) -> Vec<&'static str> {
            let mut pages = vec![Vec::new(); usize::from(Partition::COUNT)];
            pages[Self::AT] = page.to_vec();
            self.backlog.left_behind_at(self.begin + Duration::from_secs(second), pages, PATIENCE)
        }

        /// How much waits, and for how many seconds.
        fn waiting(&self, second: u64) -> (usize, u64) {
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
    fn a_full_page_goes_on_to_the_next_rank_and_another_back_to_the_first() {
        let mut looks = Looks::new();
        assert_eq!(looks.rank(), 0);
        looks.look(0, &["a", "b"]);
        assert_eq!(looks.rank(), 2);
        looks.look(0, &["c", "d"]);
        assert_eq!(looks.rank(), 4);
        looks.look(0, &["e"]);
        assert_eq!(looks.rank(), 0);
        looks.look(0, &["a", "b"]);
        looks.look(0, &[]);
        assert_eq!(looks.rank(), 0);
    }

    #[test]
    fn what_was_seen_in_the_pass_before_counts() {
        let mut looks = Looks::new();
        assert!(looks.look(0, &["a", "b"]).is_empty());
        assert!(looks.look(1, &["c"]).is_empty());
        // "b" was completed meanwhile, so "c" is on the first page.
        assert_eq!(looks.look(3, &["a", "c"]), ["a", "c"]);
        assert!(looks.look(3, &["d"]).is_empty());
    }

    #[test]
    fn what_is_younger_is_left_alone() {
        let mut looks = Looks::new();
        assert!(looks.look(0, &["a"]).is_empty());
        assert!(looks.look(1, &["a", "b"]).is_empty());
        assert!(looks.look(1, &[]).is_empty());
        assert_eq!(looks.look(2, &["a", "b"]), ["a"]);
    }

    #[test]
    fn what_waits_is_as_much_and_as_old_as_was_seen_in_a_pass() {
        let mut looks = Looks::new();
        assert_eq!(looks.waiting(0), (0, 0));
        looks.look(0, &["a", "b"]);
        looks.look(1, &["c"]);
        assert_eq!(looks.waiting(5), (3, 5));
        looks.look(6, &["a", "c"]);
        assert_eq!(looks.waiting(6), (3, 6), "of the next pass, only a page was seen");
        looks.look(7, &[]);
        assert_eq!(looks.waiting(7), (2, 7));
        looks.look(8, &["c"]);
        assert_eq!(looks.waiting(8), (1, 7));
        looks.look(9, &[]);
        assert_eq!(looks.waiting(9), (0, 0));
    }

    #[test]
    fn what_was_gone_for_a_pass_is_new_when_it_comes_again() {
        let mut looks = Looks::new();
        assert!(looks.look(0, &["a"]).is_empty());
        assert!(looks.look(1, &[]).is_empty());
        assert!(looks.look(2, &["a"]).is_empty());
        assert_eq!(looks.look(4, &["a"]), ["a"]);
    }

    #[test]
    fn without_patience_everything_comes_at_once() {
        let mut backlog = Backlog::new(2);
        let pages: Vec<Vec<u16>> = Partition::all().map(|p| vec![p.number()]).collect();
        let all: Vec<u16> = Partition::all().map(Partition::number).collect();
        assert_eq!(backlog.left_behind(pages, Duration::ZERO), all);
    }
}
