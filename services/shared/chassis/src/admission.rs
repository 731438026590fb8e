//! How many calls the whole process works on at once, and how many wait in it for something to
//! happen. tonic's own limit is per connection, so that many connections would get past it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use crate::Config;

/// Counts the calls under way in a process, over all of its workers and services.
#[derive(Debug)]
pub(crate) struct Admission {
    calls: Places,
    watches: Places,
}

#[derive(Debug)]
struct Places {
    limit: usize,
    taken: AtomicUsize,
}

impl Places {
    fn new(limit: usize) -> Self {
        Self { limit, taken: AtomicUsize::new(0) }
    }

    fn take(&self) -> bool {
        let before = self.taken.fetch_add(1, Ordering::Relaxed);
        if before >= self.limit {
            self.give_back();
        }
        before < self.limit
    }

    fn give_back(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }

    fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Admission {
    pub(crate) fn new(config: &Config) -> Self {
        Self { calls: Places::new(config.max_calls), watches: Places::new(config.max_watches) }
    }

    /// Takes a call in, unless there are as many as may be.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Arc<Permit>> {
        let permit = || Permit { admission: self.clone(), is_watch: AtomicBool::new(false) };
        self.calls.take().then(|| Arc::new(permit()))
    }

    /// Returns how many calls are under way, watches among them.
    pub(crate) fn under_way(&self) -> usize {
        self.calls.taken() + self.watches.taken()
    }
}

/// A call's place among those under way. The call shares it with the writes that it began, which
/// may outlive it, and with the calls that it makes inside the process; the place is free when the
/// last of them is done.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Arc<Admission>,
    is_watch: AtomicBool,
}

impl Permit {
    /// Gives the place back for one among the watches, once. Returns whether there was one.
    pub(crate) fn watch(&self) -> bool {
        if self.is_watch() {
            return true;
        }
        if !self.admission.watches.take() {
            return false;
        }
        let was_watch = self.is_watch.swap(true, Ordering::Relaxed);
        let too_many = if was_watch { &self.admission.watches } else { &self.admission.calls };
        too_many.give_back();
        true
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.is_watch.load(Ordering::Relaxed)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Self { admission, is_watch } = self;
        let taken = if *is_watch.get_mut() { &admission.watches } else { &admission.calls };
        taken.give_back();
    }
}
