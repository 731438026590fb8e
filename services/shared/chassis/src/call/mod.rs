//! The one layer around every call: refuses too much metadata, lets it in, bounds it by its deadline, places it in its
//! trace, finds out who acts, keeps its panics to itself, and says in the project's terms what tonic refuses.

mod body;
mod code;
mod duration;
mod foreign;
mod future;
mod inside;
mod metadata;
mod running;
pub(crate) mod span;
pub(crate) mod timeout;

use std::{
    convert::Infallible,
    future::Future,
    sync::Arc,
    task::{Context as Waker, Poll},
};

use http::{HeaderMap, Request, Response};
use microblog_proto::common::ErrorReason;
use tokio::time::Instant;
use tonic::{Code, Status, body::Body, service::Routes, transport::server::TcpConnectInfo};
use tower::Service;

use self::running::Running;
pub(crate) use self::{
    body::CallBody, duration::Durations, future::CallFuture, metadata::HEADER_LIST_MAX,
};
use crate::{
    context::{Context, Shared, Trace},
    identity::{self, Identity},
    methods::{self, Method},
    status,
};

/// The routes of one server in one worker, with all that a call needs around them.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    routes: Routes,
    shared: Arc<Shared>,
}

impl Calls {
    pub(crate) fn new(routes: Routes, shared: Arc<Shared>) -> Self {
        Self { routes: routes.prepare(), shared }
    }

    /// Takes a call from within the process.
    pub(crate) fn call_inside(
        &mut self,
        request: Request<Body>,
        method: &'static Method,
        caller: Option<Context>,
        deadline: Option<Instant>,
    ) -> CallFuture {
        let running = self.begin_inside(method, caller, deadline);
        self.work(request, running)
    }

    /// Runs what a handler makes of a call from within the process, as if it had come through the
    /// routes.
    pub(crate) async fn run_inside<A>(
        &self,
        method: &'static Method,
        caller: Option<Context>,
        deadline: Option<Instant>,
        work: impl Future<Output = Result<tonic::Response<A>, Status>>,
    ) -> Result<tonic::Response<A>, Status> {
        // Who has no more time than the caller ends with it.
        let end = deadline.filter(|_| caller.as_ref().and_then(|one| one.deadline) != deadline);
        inside::run(self.begin_inside(method, caller, deadline), end, work).await
    }

    /// A call from within the process works for the call that made it, if there is one: by its
    /// trace, for whom that acts, in its place, and among the writes of its server. It is not counted again, since a
    /// call that was let in must not be refused half-way.
    fn begin_inside(
        &self,
        method: &'static Method,
        caller: Option<Context>,
        deadline: Option<Instant>,
    ) -> Running {
        let (shared, incoming, permit, identity) = match caller {
            Some(Context { shared, trace, permit, identity, .. }) => {
                (shared, Some(trace), permit, identity.get())
            }
            None => (self.shared.clone(), None, None, Identity::Nobody),
        };
        let mut running = begin(method, shared, incoming);
        running.deadline = deadline;
        running.permit = permit;
        running.identity = identity;
        running.quiet = true;
        running
    }

    fn work(&mut self, request: Request<Body>, running: Running) -> CallFuture {
        if running.deadline.is_some_and(|deadline| deadline <= running.started) {
            return CallFuture::refused(status::deadline_exceeded(), running);
        }
        // Made here, and run when it is polled: as part of the call.
        let routes = &mut self.routes;
        CallFuture::working(running.context().scope(routes.call(request)), running)
    }
}

impl Service<Request<Body>> for Calls {
    type Response = Response<CallBody>;
    type Error = Infallible;
    type Future = CallFuture;

    fn poll_ready(&mut self, _: &mut Waker<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> CallFuture {
        let method = methods::find(request.uri().path());
        let headers = request.headers();
        let mut running = begin(method, self.shared.clone(), Trace::read(headers));
        running.caller = request.extensions().get().and_then(TcpConnectInfo::remote_addr);
        if let Err(status) = metadata::check(&request) {
            return CallFuture::refused(status, running);
        }
        span::note_caller(&running.span, request.uri(), running.caller);
        if !method.inspection {
            running.permit = self.shared.admission.enter();
            if running.permit.is_none() {
                return CallFuture::refused(overloaded(), running);
            }
        }
        if let Some(keys) = self.shared.keys.as_ref().filter(|_| method.is_guarded) {
            match identity::read(keys, headers) {
                Ok(identity) => running.identity = identity,
                Err(status) => return CallFuture::refused(status, running),
            }
        }
        match deadline(headers, method, &running) {
            Ok(deadline) => running.deadline = deadline,
            Err(status) => return CallFuture::refused(status, running),
        }
        self.work(request, running)
    }
}

fn begin(method: &'static Method, shared: Arc<Shared>, incoming: Option<Trace>) -> Running {
    let (trace, span) = span::place(incoming, method, &shared);
    Running {
        method,
        deadline: None,
        trace,
        identity: Identity::Nobody,
        span,
        shared,
        caller: None,
        permit: None,
        quiet: method.inspection,
        started: Instant::now(),
        code: None,
        stopped: false,
    }
}

fn deadline(
    headers: &HeaderMap,
    method: &Method,
    running: &Running,
) -> Result<Option<Instant>, Status> {
    let shared = &running.shared;
    let timeout = match timeout::read(headers).map_err(|invalid| status::invalid([invalid]))? {
        Some(timeout) => timeout.min(shared.max_timeout),
        None if method.streaming => return Ok(None),
        None => shared.default_timeout,
    };
    Ok(Some(running.started + timeout))
}

fn overloaded() -> Status {
    let text = "the process works on as many calls as it takes at once";
    status::with_reason(Code::ResourceExhausted, ErrorReason::Overloaded, text)
}
