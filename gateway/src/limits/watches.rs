//! How many streams each viewer has open at once.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use microblog_chassis::status;
use microblog_domain::UserId;
use microblog_proto::common::ErrorReason;
use tonic::{Code, Status};

use super::limit::Upkeep;

/// Counts the open streams of a process by their viewers. It has no more entries than there are
/// streams, of which a process has `--max-watches` at most.
#[derive(Debug)]
pub(super) struct Watches {
    /// 0 for any number.
    max: u32,
    open: Mutex<HashMap<UserId, u32>>,
    refused: AtomicU64,
}

/// An open stream, which counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Watching {
    viewer: UserId,
    watches: Arc<Watches>,
}

impl Watches {
    pub(super) fn new(max: u32) -> Arc<Self> {
        Arc::new(Self { max, open: Mutex::default(), refused: AtomicU64::new(0) })
    }

    /// Counts a stream, or refuses it with WATCH_LIMIT.
    pub(super) fn begin(self: &Arc<Self>, viewer: UserId) -> Result<Watching, Status> {
        let mut open = self.lock();
        let count = open.get(&viewer).copied().unwrap_or_default();
        if self.max != 0 && count >= self.max {
            self.refused.fetch_add(1, Ordering::Relaxed);
            let text = "the viewer has as many streams open as one may have";
            return Err(status::with_reason(
                Code::ResourceExhausted,
                ErrorReason::WatchLimit,
                text,
            ));
        }
        open.insert(viewer, count + 1);
        Ok(Watching { viewer, watches: self.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<UserId, u32>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut open = self.watches.lock();
        match open.get_mut(&self.viewer) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                open.remove(&self.viewer);
            }
        }
    }
}

impl Upkeep for Watches {
    fn what(&self) -> &'static str {
        "watches"
    }

    fn limits(&self) -> bool {
        self.max != 0
    }

    fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn remembered(&self) -> usize {
        self.lock().len()
    }

    // Who watches no more is forgotten at once; what is left is the room of those who did.
    fn forget_idle(&self) {
        self.lock().shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn viewer(id: u64) -> UserId {
        UserId::new(id).unwrap()
    }

    #[test]
    fn so_many_are_open_at_once_and_each_that_ends_makes_room() {
        let watches = Watches::new(2);
        let [first, _second] = [(); 2].map(|()| watches.begin(viewer(1)).unwrap());
        let refusal = watches.begin(viewer(1)).unwrap_err();
        assert_eq!(refusal.code(), Code::ResourceExhausted);
        assert_eq!(status::reason_of(&refusal), Some(ErrorReason::WatchLimit));
        assert_eq!((watches.refused(), watches.remembered()), (1, 1));
        let _others = watches.begin(viewer(2)).unwrap();
        drop(first);
        let _third = watches.begin(viewer(1)).unwrap();
        assert!(watches.begin(viewer(1)).is_err());
    }

    #[test]
    fn nobody_is_remembered_who_does_not_watch() {
        for max in [0, 1] {
            let watches = Watches::new(max);
            for id in 1..100 {
                drop(watches.begin(viewer(id)).unwrap());
            }
            assert_eq!(watches.remembered(), 0);
        }
        let any = Watches::new(0);
        let open: Vec<_> = (0..100).map(|_| any.begin(viewer(1)).unwrap()).collect();
        assert_eq!((open.len(), any.remembered()), (100, 1));
    }
}
