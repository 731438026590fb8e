//! A call that is under way, from its headers to the end of its answer; when it ends, writes its
//! line into the log and counts in the metric of durations.

use std::{net::SocketAddr, sync::Arc};

use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;
use tonic::Code;
use tracing::Span;

use super::span;
use crate::{
    admission::Permit,
    context::{Context, Shared, Trace},
    identity::Identity,
    methods::Method,
};

const GRPC_STATUS: &str = "grpc-status";

/// Dropping it ends the call: by then its code is known, or the caller has left.
#[derive(Debug)]
pub(super) struct InFlightCall {
    pub(super) method: &'static Method,
    pub(super) deadline: Option<Instant>,
    pub(super) trace: Trace,
    /// Who acts.
    pub(super) identity: Identity,
    pub(super) span: Span,
    pub(super) shared: Arc<Shared>,
    /// `None` for a call from within the process.
    pub(super) caller: Option<SocketAddr>,
    /// Its place among the calls of the process. `None` for what is not counted.
    pub(super) permit: Option<Arc<Permit>>,
    /// Whether its line is for debugging only: the caller has one of its own, or asks often.
    pub(super) quiet: bool,
    pub(super) started: Instant,
    pub(super) code: Option<Code>,
    /// Whether the server ended it since it stops, which is no fault.
    pub(super) stopped: bool,
}

impl InFlightCall {
    /// Returns what the handler knows of its call.
    pub(super) fn context(&self) -> Context {
        Context {
            deadline: self.deadline,
            trace: self.trace.clone(),
            identity: self.identity.into(),
            shared: self.shared.clone(),
            permit: self.permit.clone(),
        }
    }

    /// Takes the call's code from the headers or trailers that carry it.
    pub(super) fn record_status(&mut self, headers: &HeaderMap) {
        if let Some(code) = headers.get(GRPC_STATUS).map(HeaderValue::as_bytes) {
            self.code = Some(Code::from_bytes(code));
        }
    }

    /// The answer ended without a code, which is what a caller makes of it, too.
    pub(super) fn record_end(&mut self) {
        self.code.get_or_insert(Code::Unknown);
    }

    fn final_code(&self) -> Code {
        // A caller hangs up at its deadline, often a moment before we notice it ourselves.
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
        if let Some(durations) = &self.shared.durations
            && !self.method.is_infrastructure
        {
            durations.record(self.method, code, self.started.elapsed());
        }
        write_line(self, code, is_fault);
    }
}

/// Returns whether a code tells of a fault of ours, and not of the caller's.
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
    if call.quiet {
        line!(DEBUG, call, code);
    } else if is_fault {
        line!(WARN, call, code);
    } else {
        line!(INFO, call, code);
    }
}
