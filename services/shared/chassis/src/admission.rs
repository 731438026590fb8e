//! How many calls the whole process works on at once, and how many wait in it for something to
//! happen. tonic's own limit is per connection, so that many connections would get past it.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use opentelemetry::{KeyValue, global, metrics::AsyncInstrument};

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
    /// How often there was none left.
    refused: AtomicU64,
}

impl Places {
    fn new(limit: usize) -> Self {
        Self { limit, taken: AtomicUsize::new(0), refused: AtomicU64::new(0) }
    }

    fn take(&self) -> bool {
        let before = self.taken.fetch_add(1, Ordering::Relaxed);
        if before >= self.limit {
            self.refused.fetch_add(1, Ordering::Relaxed);
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

    /// Has it looked at whenever metrics are collected. Once for each process, which has one.
    pub(crate) fn observe(self: &Arc<Self>) {
        let meter = global::meter("microblog-chassis");
        let gauge = |name, text, read: fn(&Places) -> usize| {
            let gauge = meter.u64_observable_gauge(name).with_unit("{call}").with_description(text);
            let each = self.each(move |places| read(places) as u64);
            gauge.with_callback(move |observer| each(observer)).build()
        };
        gauge(
            "microblog.calls.active",
            "Calls under way, by whether they only wait",
            Places::taken,
        );
        gauge("microblog.calls.limit", "How many may be", |places| places.limit);
        let each = self.each(|places| places.refused.load(Ordering::Relaxed));
        meter
            .u64_observable_counter("microblog.calls.refused")
            .with_unit("{call}")
            .with_description("Calls refused since there were as many as may be")
            .with_callback(move |observer| each(observer))
            .build();
    }

    /// Returns what tells an observer a number of the places for calls, and of those for watches.
    fn each<F: Fn(&Places) -> u64>(
        self: &Arc<Self>,
        read: F,
    ) -> impl Fn(&dyn AsyncInstrument<u64>) + use<F> {
        let admission: Weak<Self> = Arc::downgrade(self);
        move |observer| {
            let Some(admission) = admission.upgrade() else { return };
            for (kind, places) in [("call", &admission.calls), ("watch", &admission.watches)] {
                observer.observe(read(places), &[KeyValue::new("kind", kind)]);
            }
        }
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
