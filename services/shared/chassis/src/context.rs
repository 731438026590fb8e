//! The call that the current task works for: its deadline, its trace, and the server that answers
//! for it. A task that was spawned by hand has none.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{task::futures::TaskLocalFuture, time::Instant};
use tokio_util::task::TaskTracker;

use crate::{
    Config,
    admission::{Admission, Permit},
};

pub use crate::trace::Trace;

tokio::task_local! {
    static CURRENT: Context;
}

/// What the calls of one server in one worker have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) default_timeout: Duration,
    pub(crate) max_timeout: Duration,
    pub(crate) write_budget: Duration,
    /// The share of calls to record: 0 where nothing records.
    pub(crate) sampling: f64,
    /// Whether spans go anywhere.
    pub(crate) recording: bool,
    pub(crate) admission: Arc<Admission>,
    /// Writes under way, which the drain waits for.
    pub(crate) writes: TaskTracker,
}

impl Shared {
    pub(crate) fn new(config: &Config, admission: Arc<Admission>) -> Self {
        let recording = config.otlp_endpoint.is_some();
        Self {
            default_timeout: Duration::from_millis(config.default_timeout_ms),
            max_timeout: Duration::from_millis(config.max_timeout_ms),
            write_budget: Duration::from_millis(config.write_budget_ms),
            sampling: if recording { config.trace_sampling } else { 0.0 },
            recording,
            admission,
            writes: TaskTracker::new(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) deadline: Option<Instant>,
    pub(crate) trace: Trace,
    pub(crate) shared: Arc<Shared>,
    /// The call's place among those under way. `None` for what is not counted.
    pub(crate) permit: Option<Arc<Permit>>,
}

impl Context {
    /// Runs a future as part of the call.
    pub(crate) fn scope<F: Future>(self, work: F) -> TaskLocalFuture<Self, F> {
        CURRENT.scope(self, work)
    }

    /// Runs a function as part of the call.
    pub(crate) fn enter<T>(self, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self, work)
    }
}

pub(crate) fn with<T>(read: impl FnOnce(&Context) -> T) -> Option<T> {
    CURRENT.try_with(read).ok()
}

/// Returns when the current call's time is up. `None` where there is no call, or no deadline.
pub fn deadline() -> Option<Instant> {
    with(|context| context.deadline).flatten()
}

/// Returns how much of the current call's time is left; zero when it is up. `None` where there is
/// no call, or no deadline.
pub fn remaining() -> Option<Duration> {
    deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

/// Returns the current call's place in its trace.
pub fn trace() -> Option<Trace> {
    with(|context| context.trace.clone())
}
