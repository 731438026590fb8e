//! Server middleware around every call: metadata limit, admission, deadline, trace context,
//! identity, panic isolation, and the mapping of tonic's own errors.

mod body;
mod future;
mod in_flight;
mod local;
mod metadata;
pub(crate) mod span;
pub(crate) mod timeout;
mod transport_error;

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

use self::in_flight::InFlightCall;
pub(crate) use self::{body::CallBody, future::CallFuture, metadata::HEADER_LIST_MAX};
use crate::{
    context::{Context, Shared, Trace},
    identity::{self, Identity},
    methods::{self, Method},
    status,
};

/// The routes of one server in one worker, wrapped in the call middleware.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    routes: Routes,
    shared: Arc<Shared>,
}

impl Calls {
    pub(crate) fn new(routes: Routes, shared: Arc<Shared>) -> Self {
        Self { routes: routes.prepare(), shared }
    }

    /// Starts a call from within the process.
    pub(crate) fn call_local(
        &mut self,
        request: Request<Body>,
        method: &'static Method,
        caller: Option<Context>,
        deadline: Option<Instant>,
    ) -> CallFuture {
        let call = self.begin_local(method, caller, deadline);
        self.work(request, call)
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
        local::run(self.begin_local(method, caller, deadline), end, work).await
    }

    /// A local call inherits trace, identity, admission slot and server state from the call that
    /// makes it. It is not admitted again: an admitted call must not fail half-way.
    fn begin_local(
        &self,
        method: &'static Method,
        caller: Option<Context>,
        deadline: Option<Instant>,
    ) -> InFlightCall {
        let (shared, incoming, permit, identity) = match caller {
            Some(Context { shared, trace, permit, identity, .. }) => {
                (shared, Some(trace), permit, identity.get())
            }
            None => (self.shared.clone(), None, None, Identity::Nobody),
        };
        let mut call = start(method, shared, incoming);
        call.deadline = deadline;
        call.permit = permit;
        call.identity = identity;
        call.quiet = true;
        call
    }

    fn work(&mut self, request: Request<Body>, call: InFlightCall) -> CallFuture {
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
        let mut call = start(method, self.shared.clone(), Trace::extract(headers));
        call.caller = request.extensions().get().and_then(TcpConnectInfo::remote_addr);
        if let Err(status) = metadata::check(&request) {
            return CallFuture::rejected(status, call);
        }
        span::record_peer(&call.span, request.uri(), call.caller);
        if !method.is_infrastructure {
            call.permit = self.shared.admission.try_admit();
            if call.permit.is_none() {
                return CallFuture::rejected(overloaded(), call);
            }
        }
        if let Some(keys) = self.shared.keys.as_ref().filter(|_| method.requires_identity) {
            match identity::extract(keys, headers) {
                Ok(identity) => call.identity = identity,
                Err(status) => return CallFuture::rejected(status, call),
            }
        }
        match deadline(headers, method, &call) {
            Ok(deadline) => call.deadline = deadline,
            Err(status) => return CallFuture::rejected(status, call),
        }
        self.work(request, call)
    }
}

fn start(method: &'static Method, shared: Arc<Shared>, incoming: Option<Trace>) -> InFlightCall {
    let (trace, span) = span::start(incoming, method, &shared);
    InFlightCall {
        method,
        deadline: None,
        trace,
        identity: Identity::Nobody,
        span,
        shared,
        caller: None,
        permit: None,
        quiet: method.is_infrastructure,
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
    let shared = &call.shared;
    let timeout = match timeout::read(headers).map_err(|invalid| status::invalid([invalid]))? {
        Some(timeout) => timeout.min(shared.max_timeout),
        None if method.streaming => return Ok(None),
        None => shared.default_timeout,
    };
    Ok(Some(call.started + timeout))
}

fn overloaded() -> Status {
    let text = "too many calls in flight";
    status::with_reason(Code::ResourceExhausted, ErrorReason::Overloaded, text)
}
