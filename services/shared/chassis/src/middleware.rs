//! Server middleware around every call: metadata limit, admission, deadline, trace context,
//! identity, panic isolation, and the mapping of tonic's own errors.

mod body;
mod future;
mod in_flight;

use std::{
    convert::Infallible,
    future::Future,
    panic::AssertUnwindSafe,
    sync::Arc,
    task::{Context as Waker, Poll},
};

use futures::FutureExt as _;
use http::{HeaderMap, Request, Response};
use microblog_proto::common::ErrorReason;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status, body::Body, service::Routes, transport::server::TcpConnectInfo};
use tower::Service;
use tracing::Instrument as _;

pub(crate) use self::future::CallFuture;
use self::{body::CallBody, in_flight::InFlightCall};
use crate::{
    call::{
        context::{Context, ServerState},
        metadata, span,
        trace_context::Trace,
    },
    identity::{self, Identity},
    methods::{self, Method},
    status,
};

/// The routes of one server in one worker, wrapped in the call middleware.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    routes: Routes,
    server_state: Arc<ServerState>,
}

impl Calls {
    pub(crate) fn new(routes: Routes, server_state: Arc<ServerState>) -> Self {
        Self { routes: routes.prepare(), server_state }
    }

    /// Starts a call from within the process.
    pub(crate) fn call_local(
        &mut self,
        request: Request<Body>,
        method: &'static Method,
        caller: Option<Context>,
        deadline: Option<Instant>,
    ) -> CallFuture {
        let call = self.start_local(method, caller, deadline);
        self.dispatch(request, call)
    }

    /// Runs a handler for a call from within the process, with the same middleware as the routes.
    pub(crate) async fn run_local<A>(
        &self,
        method: &'static Method,
        caller: Option<Context>,
        deadline: Option<Instant>,
        work: impl Future<Output = Result<tonic::Response<A>, Status>>,
    ) -> Result<tonic::Response<A>, Status> {
        // A call with its caller's deadline needs no timer of its own.
        let end = deadline.filter(|_| caller.as_ref().and_then(|one| one.deadline) != deadline);
        run_to_end(self.start_local(method, caller, deadline), end, work).await
    }

    /// A local call inherits trace, identity, admission slot and server state from the call that
    /// makes it. It is not admitted again: an admitted call must not fail half-way.
    fn start_local(
        &self,
        method: &'static Method,
        caller: Option<Context>,
        deadline: Option<Instant>,
    ) -> InFlightCall {
        let (server_state, incoming, permit, identity) = match caller {
            Some(Context { server_state, trace, permit, identity, .. }) => {
                (server_state, Some(trace), permit, identity.get())
            }
            None => (self.server_state.clone(), None, None, Identity::Anonymous),
        };
        let mut call = start(method, server_state, incoming);
        call.deadline = deadline;
        call.permit = permit;
        call.identity = identity;
        call.is_debug_logged = true;
        call
    }

    fn dispatch(&mut self, request: Request<Body>, call: InFlightCall) -> CallFuture {
        if call.deadline.is_some_and(|deadline| deadline <= call.started) {
            return CallFuture::rejected(status::deadline_exceeded(), call);
        }
        // The routes' future is created here and runs when polled, within the call's context.
        let routes = &mut self.routes;
        CallFuture::handling(call.context().scope(routes.call(request)), call)
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
        let mut call = start(method, self.server_state.clone(), Trace::extract(headers));
        call.caller = request.extensions().get().and_then(TcpConnectInfo::remote_addr);
        if let Err(status) = metadata::check_size(&request) {
            return CallFuture::rejected(status, call);
        }
        span::record_peer(&call.span, request.uri(), call.caller);
        if !method.is_infrastructure {
            call.permit = self.server_state.admission.try_admit();
            if call.permit.is_none() {
                return CallFuture::rejected(overloaded(), call);
            }
        }
        if let Some(keys) = self.server_state.keys.as_ref().filter(|_| method.requires_identity) {
            match identity::extract(keys, headers) {
                Ok(identity) => call.identity = identity,
                Err(status) => return CallFuture::rejected(status, call),
            }
        }
        match deadline(headers, method, &call) {
            Ok(deadline) => call.deadline = deadline,
            Err(status) => return CallFuture::rejected(status, call),
        }
        self.dispatch(request, call)
    }
}

fn start(
    method: &'static Method,
    server_state: Arc<ServerState>,
    incoming: Option<Trace>,
) -> InFlightCall {
    let (trace, span) = span::start(incoming, method, &server_state);
    InFlightCall {
        method,
        deadline: None,
        trace,
        identity: Identity::Anonymous,
        span,
        server_state,
        caller: None,
        permit: None,
        is_debug_logged: method.is_infrastructure,
        started: Instant::now(),
        code: None,
        stopped: false,
    }
}

fn deadline(
    headers: &HeaderMap,
    method: &Method,
    call: &InFlightCall,
) -> Result<Option<Instant>, Status> {
    let server_state = &call.server_state;
    let timeout = match metadata::timeout(headers).map_err(|invalid| status::invalid([invalid]))? {
        Some(timeout) => timeout.min(server_state.max_timeout),
        None if method.streaming => return Ok(None),
        None => server_state.default_timeout,
    };
    Ok(Some(call.started + timeout))
}

fn overloaded() -> Status {
    let text = "too many calls in flight";
    status::with_reason(Code::ResourceExhausted, ErrorReason::Overloaded, text)
}

/// Runs a handler to completion, to its panic, or to the deadline `end`. A panic becomes INTERNAL.
async fn run_to_end<A>(
    mut call: InFlightCall,
    end: Option<Instant>,
    work: impl Future<Output = Result<tonic::Response<A>, Status>>,
) -> Result<tonic::Response<A>, Status> {
    let result = if call.deadline.is_some_and(|deadline| deadline <= call.started) {
        Err(status::deadline_exceeded())
    } else {
        let span = call.span.clone();
        let work = call.context().scope(work);
        let work = AssertUnwindSafe(work).catch_unwind().instrument(span);
        let result = match end {
            Some(end) => timeout_at(end, work).await,
            None => Ok(work.await),
        };
        match result {
            Ok(Ok(result)) => result,
            Ok(Err(_panic)) => Err(status::internal()),
            Err(_elapsed) => Err(status::deadline_exceeded()),
        }
    };
    call.code = Some(result.as_ref().map_or_else(Status::code, |_| Code::Ok));
    result
}
