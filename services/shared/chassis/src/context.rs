//! The call that the current task works for: its deadline, its trace, who acts, and the server that
//! answers for it. A task that was spawned by hand has none, and acts for nobody.

use std::{cell::Cell, future::Future, sync::Arc, time::Duration};

use microblog_domain::UserId;
use microblog_proto::common::ErrorReason;
use tokio::{task::futures::TaskLocalFuture, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Code, Status};
use tracing::{Instrument as _, Span};

use crate::{
    Config,
    admission::{Admission, Permit},
    identity::{Identity, KeyFile},
    status,
    telemetry::{CallDurations, Sampling, Settings},
};

pub use crate::trace_context::Trace;

tokio::task_local! {
    static CURRENT: Context;
}

/// What the calls of one server in one worker have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) default_timeout: Duration,
    pub(crate) max_timeout: Duration,
    pub(crate) write_budget: Duration,
    /// Which calls to record: none where nothing records.
    pub(crate) sampling: Sampling,
    /// Whether spans go anywhere.
    pub(crate) recording: bool,
    /// How long calls take. `None` where it goes nowhere.
    pub(crate) durations: Option<CallDurations>,
    /// What says who acts is signed with them, and checked. `None`: neither.
    pub(crate) keys: Option<KeyFile>,
    pub(crate) admission: Arc<Admission>,
    /// Writes under way, which the drain waits for.
    pub(crate) writes: TaskTracker,
    /// Cancelled when the server takes no more calls, and those who watch are to go elsewhere.
    pub(crate) closing: CancellationToken,
}

impl Shared {
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
            closing: CancellationToken::new(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) deadline: Option<Instant>,
    pub(crate) trace: Trace,
    /// Who acts, as far as it is known by now.
    pub(crate) identity: Cell<Identity>,
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

    /// Returns whether the call waits for something to happen, and holds up nothing.
    pub(crate) fn is_watch(&self) -> bool {
        self.permit.as_ref().is_some_and(|permit| permit.is_watch())
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

/// Returns who acts in the current call: nobody, where there is none.
pub fn identity() -> Identity {
    with(|context| context.identity.get()).unwrap_or(Identity::Nobody)
}

/// Says who acts in the current call, from now on: whom its caller showed to be. What it calls is
/// called by them. For a server that knows it of something else than what its caller signed.
pub fn act_for(user: UserId) {
    with(|context| context.identity.set(Identity::User(user)));
}

/// Does a part of the current call's work as the system itself, which answers for it: what the call
/// brings about beyond what its caller may do. Outside of a call it is as without.
pub async fn as_system<T>(work: impl Future<Output = T>) -> T {
    let Some(context) = with(Context::clone) else { return work.await };
    context.identity.set(Identity::System);
    context.scope(work).await
}

/// A place in the current call's trace, for work that several calls have in common.
#[derive(Clone, Debug)]
pub struct Joint {
    context: Option<Context>,
    span: Span,
}

/// Returns the current call's place, for work that it has in common with others. That work may begin
/// and end at any time: it has neither the call's deadline nor its place among `--max-calls`, and
/// is done as the system itself.
pub fn joint() -> Joint {
    let context = with(Context::clone).map(|context| {
        let identity = Identity::System.into();
        Context { deadline: None, identity, permit: None, ..context }
    });
    Joint { context, span: Span::current() }
}

impl Joint {
    /// Does the work, in the trace of the call that this is from. Outside of a call it is as without.
    pub async fn run<T>(self, work: impl Future<Output = T>) -> T {
        let work = work.instrument(self.span);
        match self.context {
            Some(context) => context.scope(work).await,
            None => work.await,
        }
    }
}

/// Says that the current call is a watch: one that answers with a stream which waits, maybe for
/// hours, for something to happen. Its handler says so before it answers, and passes the refusal
/// on.
///
/// The call gives back its place among `--max-calls`, which is for calls that work, for one among
/// `--max-watches`. When the server stops, its stream ends with UNAVAILABLE at once, or rather
/// after `--drain-delay-ms`, so that it does not hold up the drain and its caller goes elsewhere:
/// the handler and its stream are dropped wherever they wait, and need not know.
///
/// A call from within the process has the place of the call that it works for: whichever of their
/// handlers says it, and if both do, they are one watch. What works for no call has no place, and
/// nothing changes for it.
///
/// Returns RESOURCE_EXHAUSTED, with the reason OVERLOADED, if there are as many watches as may be.
pub fn watch() -> Result<(), Status> {
    let permit = with(|context| context.permit.clone()).flatten();
    if permit.is_none_or(|permit| permit.become_watch()) {
        return Ok(());
    }
    let text = "too many watches in flight";
    Err(status::with_reason(Code::ResourceExhausted, ErrorReason::Overloaded, text))
}
