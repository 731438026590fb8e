//! The limit on open streams of each viewer, and of each service caller.

use std::{
    collections::HashMap,
    fmt::Debug,
    hash::Hash,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use microblog_chassis::status;
use microblog_proto::common::ErrorReason;
use tonic::{Code, Status};

use super::limit::Maintain;

/// The open streams of a process, counted by their readers. It has at most one entry for each stream,
/// and `--max-watches` bounds the streams of a process.
#[derive(Debug)]
pub(super) struct Watches<K> {
    /// For metrics.
    name: &'static str,
    /// 0 disables the limit.
    max: u32,
    open: Mutex<HashMap<K, u32>>,
    rejected: AtomicU64,
}

/// A permit for one open stream. Dropping it releases the stream's slot.
#[derive(Debug)]
pub(crate) struct WatchPermit<K: Clone + Eq + Hash> {
    reader: K,
    watches: Arc<Watches<K>>,
}

impl<K: Clone + Eq + Hash> Watches<K> {
    pub(super) fn new(name: &'static str, max: u32) -> Arc<Self> {
        Arc::new(Self { name, max, open: Mutex::default(), rejected: AtomicU64::new(0) })
    }

    /// Counts a stream until the permit is dropped, or rejects it with WATCH_LIMIT.
    pub(super) fn acquire(self: &Arc<Self>, reader: K) -> Result<WatchPermit<K>, Status> {
        let mut open = self.lock();
        let count = open.get(&reader).copied().unwrap_or_default();
        if self.max != 0 && count >= self.max {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            let text = "the caller has as many streams open as one may have";
            return Err(status::with_reason(
                Code::ResourceExhausted,
                ErrorReason::WatchLimit,
                text,
            ));
        }
        open.insert(reader.clone(), count + 1);
        Ok(WatchPermit { reader, watches: self.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, u32>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> Drop for WatchPermit<K> {
    fn drop(&mut self) {
        let mut open = self.watches.lock();
        match open.get_mut(&self.reader) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                open.remove(&self.reader);
            }
        }
    }
}

impl<K: Clone + Debug + Eq + Hash + Send> Maintain for Watches<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_enabled(&self) -> bool {
        self.max != 0
    }

    fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    fn tracked(&self) -> usize {
        self.lock().len()
    }

    // A dropped permit removes its entry at once; only spare capacity is left to free.
    fn evict_idle(&self) {
        self.lock().shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use microblog_domain::UserId;

    use super::*;

    fn viewer(id: u64) -> UserId {
        UserId::new(id).unwrap()
    }

    #[test]
    fn a_viewer_has_a_bounded_number_of_open_streams() {
        let watches = Watches::new("watches", 2);
        let [first, _second] = [(); 2].map(|()| watches.acquire(viewer(1)).unwrap());
        let rejection = watches.acquire(viewer(1)).unwrap_err();
        assert_eq!(rejection.code(), Code::ResourceExhausted);
        assert_eq!(status::reason_of(&rejection), Some(ErrorReason::WatchLimit));
        assert_eq!((watches.rejected(), watches.tracked()), (1, 1));
        let _others = watches.acquire(viewer(2)).unwrap();
        drop(first);
        let _third = watches.acquire(viewer(1)).unwrap();
        assert!(watches.acquire(viewer(1)).is_err());
    }

    #[test]
    fn viewers_without_an_open_stream_have_no_entry() {
        for max in [0, 1] {
            let watches = Watches::new("watches", max);
            for id in 1..100 {
                drop(watches.acquire(viewer(id)).unwrap());
            }
            assert_eq!(watches.tracked(), 0);
        }
        let any = Watches::new("watches", 0);
        let open: Vec<_> = (0..100).map(|_| any.acquire(viewer(1)).unwrap()).collect();
        assert_eq!((open.len(), any.tracked()), (100, 1));
    }
}
