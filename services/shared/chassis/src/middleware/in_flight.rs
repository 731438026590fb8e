//! A call in flight, from its request headers to the end of its response. At the end it writes the
//! access log line and records the call duration.

use std::{net::SocketAddr, sync::Arc};

use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;
use tonic::Code;
use tracing::Span;

use crate::{
    call::{
        admission::Permit,
        connection_calls::ConnectionCall,
        context::{Context, ServerState},
        metadata::GRPC_STATUS,
        span,
        trace_context::Trace,
    },
    identity::Identity,
    methods::Method,
};

/// Dropping it ends the call. A call without a status code was cancelled by its caller.
pub(super) struct InFlightCall {
    pub(super) method: &'static Method,
    pub(super) deadline: Option<Instant>,
    pub(super) trace: Trace,
    /// The caller's identity.
    pub(super) identity: Identity,
    pub(super) span: Span,
    pub(super) server_state: Arc<ServerState>,
    /// Remote address; `None` for a call within the process.
    pub(super) caller: Option<SocketAddr>,
    /// The slot of the concurrency limit. `None` for calls that are not limited.
    pub(super) permit: Option<Arc<Permit>>,
    /// Counts the call, also while its response is sent. `None` like `permit`.
    pub(super) connection_call: Option<Arc<ConnectionCall>>,
    /// Whether the access log line has level DEBUG: for calls within the process, health checks and
    /// reflection.
    pub(super) is_debug_logged: bool,
    pub(super) started: Instant,
    pub(super) code: Option<Code>,
    /// Whether the server's shutdown ended the call, which is not a fault.
    pub(super) stopped: bool,
}

impl InFlightCall {
    /// Returns the handler's view of the call.
    pub(super) fn context(&self) -> Context {
        Context {
            deadline: self.deadline,
            trace: self.trace.clone(),
            identity: self.identity.into(),
            server_state: self.server_state.clone(),
            permit: self.permit.clone(),
        }
    }

    /// Reads `grpc-status` from headers or trailers.
    pub(super) fn record_status(&mut self, headers: &HeaderMap) {
        if let Some(code) = headers.get(GRPC_STATUS).map(HeaderValue::as_bytes) {
            self.code = Some(Code::from_bytes(code));
        }
    }

    /// Records UNKNOWN for a response without a status, as clients do.
    pub(super) fn record_end(&mut self) {
        self.code.get_or_insert(Code::Unknown);
    }

    fn final_code(&self) -> Code {
        // A caller cancels at its deadline, often a moment before the server's timer fires.
        let is_late = || self.deadline.is_some_and(|deadline| deadline <= Instant::now());
        match self.code {
            Some(code) => code,
            None if is_late() => Code::DeadlineExceeded,
            None => Code::Cancelled,
        }
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        let code = self.final_code();
        let is_fault = is_fault(code) && !self.stopped;
        if !self.span.is_none() {
            span::record_status(&self.span, code, self.stopped);
        }
        if let Some(durations) = &self.server_state.durations
            && !self.method.is_infrastructure
        {
            durations.record(self.method, code, self.started.elapsed());
        }
        write_line(self, code, is_fault);
    }
}

/// Returns whether a status code is the server's fault.
fn is_fault(code: Code) -> bool {
    match code {
        Code::Unknown | Code::Internal | Code::Unavailable | Code::DataLoss => true,
        Code::Ok
        | Code::Cancelled
        | Code::InvalidArgument
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Unauthenticated => false,
    }
}

macro_rules! line {
    ($level:ident, $call:expr, $code:expr) => {
        tracing::event!(
            target: "microblog::call",
            tracing::Level::$level,
            method = $call.method.path,
            code = ?$code,
            duration_ms = $call.started.elapsed().as_micros() as f64 / 1000.0,
            caller = $call.caller.map(tracing::field::display),
            trace_id = %$call.trace.id(),
        )
    };
}

fn write_line(call: &InFlightCall, code: Code, is_fault: bool) {
    if call.is_debug_logged {
        line!(DEBUG, call, code);
    } else if is_fault {
        line!(WARN, call, code);
    } else {
        line!(INFO, call, code);
    }
}
