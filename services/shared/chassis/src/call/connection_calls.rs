//! The calls in flight on a connection, which the drain waits for.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

/// The calls in flight on a connection: not its watches, health checks and reflection, which do not
/// delay a drain.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionCalls(Arc<AtomicUsize>);

impl ConnectionCalls {
    /// Counts a call until it is dropped, or released.
    pub(crate) fn start(&self) -> Arc<ConnectionCall> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Arc::new(ConnectionCall { calls: self.0.clone(), is_counted: AtomicBool::new(true) })
    }

    /// Returns whether no call is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// A call in flight on a connection. Dropping it ends the call.
#[derive(Debug)]
pub(crate) struct ConnectionCall {
    calls: Arc<AtomicUsize>,
    is_counted: AtomicBool,
}

impl ConnectionCall {
    /// Makes it a watch, which does not count.
    pub(crate) fn release(&self) {
        if self.is_counted.swap(false, Ordering::Relaxed) {
            self.calls.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for ConnectionCall {
    fn drop(&mut self) {
        self.release();
    }
}
