//! Head-based sampling: decides whether to record a call before creating a span. A discarded span
//! costs a fifth of a small call.

use std::net::SocketAddr;

use http::Uri;
use opentelemetry::{
    Context as OtelContext,
    trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState},
};
use rand::RngExt as _;
use tonic::Code;
use tracing::{Span, field::Empty};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::{context::ServerState, trace_context::Trace};
use crate::{methods::Method, status};

/// Starts a call's part of the trace: returns its trace context, and its span if it is sampled.
pub(crate) fn start(
    incoming: Option<Trace>,
    method: &Method,
    server_state: &ServerState,
) -> (Trace, Span) {
    let sampling = &server_state.sampling;
    // Health checks run every second; they start no sampled trace.
    let is_samplable = sampling.ratio > 0.0 && !method.is_infrastructure;
    let is_sampled = || is_samplable && rand::rng().random_bool(sampling.ratio);
    let (mut trace, parent) = match incoming {
        Some(mut trace) => {
            if !sampling.is_parent_based {
                trace.sampled = is_sampled();
            }
            let parent = remote_parent(&trace);
            (trace, parent)
        }
        None => (Trace::new_root(is_sampled()), None),
    };
    if !(trace.sampled && server_state.recording) {
        return (trace, Span::none());
    }
    let span = tracing::info_span!(
        target: "microblog::call",
        "call",
        otel.name = method.name(),
        otel.kind = "server",
        otel.status_code = Empty,
        rpc.system.name = "grpc",
        rpc.method = method.name(),
        rpc.response.status_code = Empty,
        error.type = Empty,
        server.address = Empty,
        server.port = Empty,
        network.peer.address = Empty,
        network.peer.port = Empty,
    );
    if let Some(parent) = parent {
        // Fails only without a recorder.
        let _ = span.set_parent(OtelContext::new().with_remote_span_context(parent));
    }
    set_parent(&mut trace, &span);
    (trace, span)
}

/// Records the server's address and the client's, for calls from outside the process.
pub(crate) fn record_peer(span: &Span, server: &Uri, caller: Option<SocketAddr>) {
    if span.is_none() {
        return;
    }
    span.record("server.address", server.host());
    span.record("server.port", server.port_u16());
    if let Some(caller) = caller {
        span.record("network.peer.address", tracing::field::display(caller.ip()));
        span.record("network.peer.port", caller.port());
    }
}

/// Makes a span the parent of outgoing calls.
pub(crate) fn set_parent(trace: &mut Trace, span: &Span) {
    let recorded = span.context().span().span_context().clone();
    if recorded.is_valid() {
        trace.id = u128::from_be_bytes(recorded.trace_id().to_bytes());
        trace.span = u64::from_be_bytes(recorded.span_id().to_bytes());
    }
}

/// Returns the remote parent span, if it is sampled.
pub(crate) fn remote_parent(trace: &Trace) -> Option<SpanContext> {
    let (id, span) = (TraceId::from(trace.id), SpanId::from(trace.span));
    let state = TraceState::default();
    trace.sampled.then(|| SpanContext::new(id, span, TraceFlags::SAMPLED, true, state))
}

/// Records the status code by the semantic conventions
/// (<https://opentelemetry.io/docs/specs/semconv/rpc/grpc/>).
pub(crate) fn record_status(span: &Span, code: Code, was_stopped: bool) {
    let name = status::code_name(code);
    span.record("rpc.response.status_code", name);
    if is_error(code) && !was_stopped {
        span.record("otel.status_code", "ERROR");
        span.record("error.type", name);
    }
}

/// Returns whether the conventions count a code as a server error. They include two that the access
/// log does not count as faults.
fn is_error(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}
