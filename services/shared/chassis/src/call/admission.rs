//! Admission control: a concurrency limit on calls in flight and on watches, with load shedding
//! above it. The limit covers the whole process. tonic's own limit is per connection, so that many
//! connections would exceed it.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use opentelemetry::{KeyValue, global, metrics::AsyncInstrument};

use crate::config::Config;

/// The concurrency limits of a process, shared by all its workers and services.
#[derive(Debug)]
pub(crate) struct Admission {
    calls: Slots,
    watches: Slots,
}

#[derive(Debug)]
struct Slots {
    limit: usize,
    in_use: AtomicUsize,
    /// Total of rejected acquisitions.
    rejected: AtomicU64,
}

impl Slots {
    fn new(limit: usize) -> Self {
        Self { limit, in_use: AtomicUsize::new(0), rejected: AtomicU64::new(0) }
    }

    fn try_acquire(&self) -> bool {
        let before = self.in_use.fetch_add(1, Ordering::Relaxed);
        if before >= self.limit {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            self.release();
        }
        before < self.limit
    }

    fn release(&self) {
        self.in_use.fetch_sub(1, Ordering::Relaxed);
    }

    fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }
}

impl Admission {
    pub(crate) fn new(config: &Config) -> Self {
        Self { calls: Slots::new(config.max_calls), watches: Slots::new(config.max_watches) }
    }

    /// Registers the observable metrics. Called once per process.
    pub(crate) fn observe(self: &Arc<Self>) {
        let meter = global::meter("microblog-chassis");
        let gauge = |name, text, read: fn(&Slots) -> usize| {
            let gauge = meter.u64_observable_gauge(name).with_unit("{call}").with_description(text);
            let each = self.observe_each(move |slots| read(slots) as u64);
            gauge.with_callback(move |observer| each(observer)).build()
        };
        gauge("microblog.calls.active", "Calls in flight, by kind", Slots::in_use);
        gauge("microblog.calls.limit", "Limit of calls in flight, by kind", |slots| slots.limit);
        let each = self.observe_each(|slots| slots.rejected.load(Ordering::Relaxed));
        meter
            .u64_observable_counter("microblog.calls.rejected")
            .with_unit("{call}")
            .with_description("Calls rejected at the limit, by kind")
            .with_callback(move |observer| each(observer))
            .build();
    }

    /// Returns a callback that observes one value per kind of slot: calls and watches.
    fn observe_each<F: Fn(&Slots) -> u64>(
        self: &Arc<Self>,
        read: F,
    ) -> impl Fn(&dyn AsyncInstrument<u64>) + use<F> {
        let admission: Weak<Self> = Arc::downgrade(self);
        move |observer| {
            let Some(admission) = admission.upgrade() else { return };
            for (kind, slots) in [("call", &admission.calls), ("watch", &admission.watches)] {
                observer.observe(read(slots), &[KeyValue::new("kind", kind)]);
            }
        }
    }

    /// Admits a call, or returns `None` at the limit.
    pub(crate) fn try_admit(self: &Arc<Self>) -> Option<Arc<Permit>> {
        let permit = || Permit { admission: self.clone(), is_watch: AtomicBool::new(false) };
        self.calls.try_acquire().then(|| Arc::new(permit()))
    }

    /// Returns the number of calls in flight, including watches.
    pub(crate) fn in_flight(&self) -> usize {
        self.calls.in_use() + self.watches.in_use()
    }
}

/// A slot of a call in flight. The call shares it with its writes, which may outlive it, and with
/// its calls within the process. Dropping the last reference frees the slot.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Arc<Admission>,
    is_watch: AtomicBool,
}

impl Permit {
    /// Exchanges the call's slot for a watch slot, once. Returns `false` at the limit of watches.
    pub(crate) fn become_watch(&self) -> bool {
        if self.is_watch() {
            return true;
        }
        if !self.admission.watches.try_acquire() {
            return false;
        }
        let was_watch = self.is_watch.swap(true, Ordering::Relaxed);
        let surplus = if was_watch { &self.admission.watches } else { &self.admission.calls };
        surplus.release();
        true
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.is_watch.load(Ordering::Relaxed)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Self { admission, is_watch } = self;
        let in_use = if *is_watch.get_mut() { &admission.watches } else { &admission.calls };
        in_use.release();
    }
}
