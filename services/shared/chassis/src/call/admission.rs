//! Admission control: a concurrency limit on calls in flight and on watches, with load shedding
//! above it. The limit covers the whole process. tonic's own limit is per connection, so that many
//! connections would exceed it.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use opentelemetry::{KeyValue, global, metrics::AsyncInstrument};

use super::connection_calls::ConnectionCall;
use crate::config::Config;

/// The concurrency limits of a process, shared by all its workers and services.
#[derive(Debug)]
pub(crate) struct Admission {
    slots: [Slots; KINDS.len()],
    message_max: usize,
    arriving_bytes: AtomicUsize,
}

/// How many of the largest messages the parts of incomplete messages may take together.
const ARRIVING_MAX: usize = 16;

/// What a call does in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It waits for the rest of its message.
    Arriving,
    /// It runs.
    Call,
    /// It sends updates to its caller.
    Watch,
}

const KINDS: [(Kind, &str); 3] =
    [(Kind::Arriving, "arriving"), (Kind::Call, "call"), (Kind::Watch, "watch")];

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
        let limit = |kind| match kind {
            Kind::Arriving | Kind::Call => config.max_calls,
            Kind::Watch => config.max_watches,
        };
        Self {
            slots: KINDS.map(|(kind, _)| Slots::new(limit(kind))),
            message_max: config.max_message_bytes,
            arriving_bytes: AtomicUsize::new(0),
        }
    }

    /// Counts bytes of an incomplete message that has `held` already, until they are released. Returns
    /// how many count: a message that is too large is rejected, and what follows is discarded.
    pub(crate) fn hold(&self, held: usize, bytes: usize) -> usize {
        let counted = bytes.min(self.message_max.saturating_sub(held));
        self.arriving_bytes.fetch_add(counted, Ordering::Relaxed);
        counted
    }

    /// Returns whether incomplete messages have too many bytes together for a call to wait for its own,
    /// which counts as a rejection.
    pub(crate) fn holds_too_much(&self) -> bool {
        let max = self.message_max.saturating_mul(ARRIVING_MAX);
        let is_too_much = self.arriving_bytes.load(Ordering::Relaxed) > max;
        if is_too_much {
            self.of(Kind::Arriving).rejected.fetch_add(1, Ordering::Relaxed);
        }
        is_too_much
    }

    /// Releases bytes of a message.
    pub(crate) fn release(&self, bytes: usize) {
        self.arriving_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn of(&self, kind: Kind) -> &Slots {
        &self.slots[kind as usize]
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

    /// Returns a callback that observes one value per kind of slot.
    fn observe_each<F: Fn(&Slots) -> u64>(
        self: &Arc<Self>,
        read: F,
    ) -> impl Fn(&dyn AsyncInstrument<u64>) + use<F> {
        let admission: Weak<Self> = Arc::downgrade(self);
        move |observer| {
            let Some(admission) = admission.upgrade() else { return };
            for (kind, name) in KINDS {
                observer.observe(read(admission.of(kind)), &[KeyValue::new("kind", name)]);
            }
        }
    }

    /// Admits a call of a connection, or returns `None` at the limit.
    pub(crate) fn try_admit(
        self: &Arc<Self>,
        connection_call: Option<Arc<ConnectionCall>>,
    ) -> Option<Arc<Permit>> {
        let kind = AtomicUsize::new(Kind::Call as usize);
        let permit = || Permit { admission: self.clone(), kind, connection_call };
        self.of(Kind::Call).try_acquire().then(|| Arc::new(permit()))
    }

    /// Returns the number of calls in flight, including watches.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.iter().map(Slots::in_use).sum()
    }
}

/// A slot of a call in flight. The call shares it with its message, with its writes, which may outlive
/// it, and with its calls within the process. Dropping the last reference frees the slot.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Arc<Admission>,
    /// A [`Kind`].
    kind: AtomicUsize,
    /// `None` for a call from within the process.
    connection_call: Option<Arc<ConnectionCall>>,
}

impl Permit {
    /// Exchanges the slot for one of another kind. Returns `false` at the limit of these.
    pub(crate) fn exchange(&self, kind: Kind) -> bool {
        if self.is(kind) {
            return true;
        }
        if !self.admission.of(kind).try_acquire() {
            return false;
        }
        // Another reference may have made the same exchange meanwhile: then this slot is the surplus.
        let before = self.kind.swap(kind as usize, Ordering::Relaxed);
        self.admission.slots[before].release();
        if kind == Kind::Watch
            && let Some(call) = &self.connection_call
        {
            call.release();
        }
        true
    }

    /// Returns whether the slot is of a kind.
    pub(crate) fn is(&self, kind: Kind) -> bool {
        self.kind.load(Ordering::Relaxed) == kind as usize
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.slots[*self.kind.get_mut()].release();
    }
}
