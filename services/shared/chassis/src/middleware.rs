//! Server middleware around every call: metadata limit, admission, deadline, trace context,
//! identity, panic isolation, and the mapping of tonic's own errors.

mod arriving;
mod body;
mod error;
mod in_flight;

use std::{
    convert::Infallible,
    future::Future,
    panic::AssertUnwindSafe,
    sync::Arc,
    task::{Context as Waker, Poll},
};

use futures::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, Request, Response};
use microblog_proto::common::ErrorReason;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status, body::Body, service::Routes};
use tower::Service;
use tracing::Instrument as _;

pub(crate) use self::{
    arriving::ArrivingBody,
    body::CallBody,
    error::{message_too_large, unknown_method},
};
use self::{
    error::{complete_error, map_unbegun},
    in_flight::InFlightCall,
};
use crate::{
    call::{
        context::{self, Context, ServerState},
        metadata, span,
        trace_context::Trace,
    },
    identity::{self, Identity},
    methods::{self, Method},
    server::connection::Connection,
    status,
};

/// The response to a call, or its rejection.
pub(crate) type CallFuture = BoxFuture<'static, Result<Response<CallBody>, Infallible>>;

/// The routes of one server in one worker, wrapped in the call middleware.
#[derive(Clone)]
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
        self.dispatch(request, call, Ok(()))
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
        let mut call = self.start_local(method, caller, deadline);
        let result = run_to_end(&mut call, end, work).await;
        call.code = Some(result.as_ref().map_or_else(Status::code, |_| Code::Ok));
        result
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
        let mut call = start(method, server_state, incoming, Instant::now());
        call.deadline = deadline;
        call.permit = permit;
        call.identity = identity;
        call.is_debug_logged = true;
        call
    }

    /// Runs an admitted call's handler, and responds.
    fn dispatch(
        &mut self,
        request: Request<Body>,
        mut call: InFlightCall,
        admitted: Result<(), Status>,
    ) -> CallFuture {
        // The routes' future is created here and runs when polled, within the call's context.
        let work = admitted.map(|()| self.routes.call(request).map(|Ok(response)| Ok(response)));
        Box::pin(async {
            let end = call.deadline;
            let result = match work {
                Ok(work) => run_to_end(&mut call, end, work).await,
                Err(status) => Err(status),
            };
            Ok(respond(result, call))
        })
    }

    /// Admits a call from outside the process: sets its caller, slot, identity and deadline.
    fn admit(&self, call: &mut InFlightCall, request: &Request<Body>) -> Result<(), Status> {
        let (method, headers) = (call.method, request.headers());
        let connection = request.extensions().get::<Connection>();
        call.caller = connection.and_then(|from| from.remote_addr);
        metadata::check_size(request)?;
        span::record_peer(&call.span, request.uri(), call.caller);
        if !method.is_infrastructure {
            call.connection_call = connection.map(Connection::start_call);
            let permit = self.server_state.admission.try_admit(call.connection_call.clone());
            call.permit = Some(permit.ok_or_else(overloaded)?);
        }
        if let Some(keys) = self.server_state.keys.as_ref().filter(|_| method.requires_identity) {
            call.identity = identity::extract(keys, headers)?;
        }
        call.deadline = deadline(headers, method, call)?;
        Ok(())
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
        let incoming = Trace::extract(request.headers());
        let arrived = request.extensions().get().map_or_else(Instant::now, |Arrived(at)| *at);
        let mut call = start(method, self.server_state.clone(), incoming, arrived);
        let admitted = self.admit(&mut call, &request);
        let request = match &call.permit {
            // The message of a call that has waited is complete.
            Some(permit) if request.extensions().get::<Arrived>().is_none() => {
                let (permit, server_state) = (permit.clone(), self.server_state.clone());
                let until = call.deadline.unwrap_or(call.started + server_state.default_timeout);
                request.map(|body| Body::new(ArrivingBody::new(body, permit, server_state, until)))
            }
            _ => request,
        };
        self.dispatch(request, call, admitted)
    }
}

/// When a call arrived that has waited in its batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived(pub(crate) Instant);

fn start(
    method: &'static Method,
    server_state: Arc<ServerState>,
    incoming: Option<Trace>,
    started: Instant,
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
        connection_call: None,
        is_debug_logged: method.is_infrastructure,
        started,
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
        // A stream without a deadline may last for ever, so the maximum would only cut those that set one.
        Some(timeout) if method.streaming => timeout,
        Some(timeout) => timeout.min(server_state.max_timeout),
        None if method.streaming => return Ok(None),
        None => server_state.default_timeout,
    };
    Ok(Some(call.started + timeout))
}

/// Returns RESOURCE_EXHAUSTED for a call above the limit of calls in flight.
pub(crate) fn overloaded() -> Status {
    let text = "too many calls in flight";
    status::with_reason(Code::ResourceExhausted, ErrorReason::Overloaded, text)
}

/// Runs a handler to completion, to its panic, or to the deadline `end`. A panic becomes INTERNAL.
async fn run_to_end<T>(
    call: &mut InFlightCall,
    end: Option<Instant>,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    if call.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
        return Err(status::deadline_exceeded());
    }
    // The handler may set the identity. A stream that it returns keeps it.
    let work = call.context().scope(async { (work.await, context::identity()) });
    let work = AssertUnwindSafe(work).catch_unwind().instrument(call.span.clone());
    let result = match end {
        Some(end) => timeout_at(end, work).await,
        None => Ok(work.await),
    };
    match result {
        Ok(Ok((result, identity))) => {
            call.identity = identity;
            result
        }
        Ok(Err(_panic)) => Err(status::internal()),
        Err(_elapsed) => Err(status::deadline_exceeded()),
    }
}

fn respond(result: Result<Response<Body>, Status>, mut call: InFlightCall) -> Response<CallBody> {
    match result {
        Ok(mut response) => {
            complete_error(response.headers_mut(), call.method, map_unbegun);
            call.record_status(response.headers());
            response.map(|body| CallBody::new(body, call))
        }
        Err(status) => {
            call.code = Some(status.code());
            let mut response = status.into_http::<()>();
            status::add_retry_pushback(response.headers_mut());
            response.map(|()| CallBody::empty(call))
        }
    }
}
