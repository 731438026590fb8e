//! Call context: deadline, trace, identity and server state of the call that the current task works
//! for. A spawned task has no context, and acts as [`Identity::Anonymous`].

use std::{cell::Cell, future::Future, sync::Arc, time::Duration};

use microblog_domain::UserId;
use microblog_proto::common::ErrorReason;
use tokio::{task::futures::TaskLocalFuture, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Code, Status};
use tracing::{Instrument as _, Span};

use super::admission::{Admission, Kind, Permit};
pub use super::trace_context::Trace;
use crate::{
    config::Config,
    identity::{Identity, KeyFile},
    status,
    telemetry::{CallDurations, Sampling, Settings},
};

tokio::task_local! {
    static CURRENT: Context;
}

/// Server state: what the calls of one server in one worker share.
pub(crate) struct ServerState {
    pub(crate) default_timeout: Duration,
    pub(crate) max_timeout: Duration,
    pub(crate) write_budget: Duration,
    /// Head-based sampling; ratio 0 without a collector.
    pub(crate) sampling: Sampling,
    /// Whether a collector receives spans.
    pub(crate) recording: bool,
    /// Call duration metric; `None` without a reader.
    pub(crate) durations: Option<CallDurations>,
    /// Keys that sign and verify identities; `None` disables both.
    pub(crate) keys: Option<KeyFile>,
    pub(crate) admission: Arc<Admission>,
    /// Writes in flight; the drain waits for them.
    pub(crate) writes: TaskTracker,
    /// Cancelled when the server begins to drain.
    pub(crate) draining: CancellationToken,
    /// Cancelled when the server accepts no more calls; ends the watches.
    pub(crate) closing: CancellationToken,
}

impl ServerState {
    pub(crate) fn new(config: &Config, admission: Arc<Admission>) -> Self {
        let settings = Settings::of(config);
        let recording = settings.traces_endpoint.is_some();
        let nothing = Sampling { ratio: 0.0, is_parent_based: true };
        Self {
            default_timeout: Duration::from_millis(config.default_timeout_ms),
            max_timeout: Duration::from_millis(config.max_timeout_ms),
            write_budget: Duration::from_millis(config.write_budget_ms),
            sampling: if recording { settings.sampling } else { nothing },
            recording,
            durations: settings.has_metrics().then(CallDurations::new),
            keys: config.identity_key_file.clone(),
            admission,
            writes: TaskTracker::new(),
            draining: CancellationToken::new(),
            closing: CancellationToken::new(),
        }
    }
}

#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) deadline: Option<Instant>,
    pub(crate) trace: Trace,
    /// The caller's identity, or the one that the handler has set.
    pub(crate) identity: Cell<Identity>,
    pub(crate) server_state: Arc<ServerState>,
    /// The slot of the concurrency limit. `None` for calls that are not limited.
    pub(crate) permit: Option<Arc<Permit>>,
}

impl Context {
    /// Runs a future within the call's context.
    pub(crate) fn scope<F: Future>(self, work: F) -> TaskLocalFuture<Self, F> {
        CURRENT.scope(self, work)
    }

    /// Runs a function within the call's context.
    pub(crate) fn enter<T>(self, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self, work)
    }

    /// Returns whether the call is a watch, which must not delay the drain.
    pub(crate) fn is_watch(&self) -> bool {
        self.permit.as_ref().is_some_and(|permit| permit.is(Kind::Watch))
    }
}

pub(crate) fn with<T>(read: impl FnOnce(&Context) -> T) -> Option<T> {
    CURRENT.try_with(read).ok()
}

/// Returns the deadline of the current call. `None` without a call or a deadline.
pub fn deadline() -> Option<Instant> {
    with(|context| context.deadline).flatten()
}

/// Returns the time left until the current call's deadline; zero after it. `None` without a call or
/// a deadline.
pub fn remaining() -> Option<Duration> {
    deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

/// Returns the trace context of the current call.
pub fn trace() -> Option<Trace> {
    with(|context| context.trace.clone())
}

/// Returns the identity that the current call acts for: [`Identity::Anonymous`] outside a call.
pub fn identity() -> Identity {
    with(|context| context.identity.get()).unwrap_or(Identity::Anonymous)
}

/// Sets the identity of the current call to a user. Its later calls to peers carry that identity.
/// For a server that authenticates users itself, such as the gateway.
pub fn act_for(user: UserId) {
    with(|context| context.identity.set(Identity::User(user)));
}

/// Runs a part of the current call as [`Identity::System`]: effects that the caller itself is not
/// authorized for. Outside a call it only runs the future.
pub async fn as_system<T>(work: impl Future<Output = T>) -> T {
    let Some(context) = with(Context::clone) else { return work.await };
    context.identity.set(Identity::System);
    context.scope(work).await
}

/// The trace context of a call, for work that it shares with other calls.
#[derive(Clone)]
pub struct DetachedContext {
    context: Option<Context>,
    span: Span,
}

/// Returns the current trace context, detached from the call, for work that it shares with other
/// calls. That work may begin and end at any time. It has neither the call's deadline nor its slot
/// of `--max-calls`, and acts as [`Identity::System`].
pub fn detach() -> DetachedContext {
    let context = with(Context::clone).map(|context| {
        let identity = Identity::System.into();
        Context { deadline: None, identity, permit: None, ..context }
    });
    DetachedContext { context, span: Span::current() }
}

impl DetachedContext {
    /// Runs the work within the trace. Outside a call it only runs the future.
    pub async fn run<T>(self, work: impl Future<Output = T>) -> T {
        let work = work.instrument(self.span);
        match self.context {
            Some(context) => context.scope(work).await,
            None => work.await,
        }
    }
}

/// Declares the current call a watch: a server-streaming call that may wait for events for hours.
/// The handler calls this before it responds, and returns the error if there is one.
///
/// A watch exchanges its slot of `--max-calls` for one of `--max-watches`. At shutdown, after
/// `--drain-delay-ms`, its stream ends with UNAVAILABLE, so that it does not delay the drain. The
/// server drops the handler and its stream; the handler needs no code for it.
///
/// A call within the process shares the slot of the call that makes it. If both handlers declare a
/// watch, they count as one. Outside a call this does nothing.
///
/// Returns RESOURCE_EXHAUSTED, with the reason OVERLOADED, at the limit of watches.
pub fn watch() -> Result<(), Status> {
    let permit = with(|context| context.permit.clone()).flatten();
    if permit.is_none_or(|permit| permit.exchange(Kind::Watch)) {
        return Ok(());
    }
    let text = "too many watches in flight";
    Err(status::with_reason(Code::ResourceExhausted, ErrorReason::Overloaded, text))
}
