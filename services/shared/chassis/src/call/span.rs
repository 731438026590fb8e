//! Whether a call is recorded, decided before any span is made: a span that is thrown away costs
//! a fifth of what a small call does.

use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState,
};
use rand::RngExt as _;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::{
    context::{Shared, Trace},
    methods::Method,
};

/// Returns a call's place in its trace, and its span if it is recorded.
pub(super) fn place(incoming: Option<Trace>, method: &Method, shared: &Shared) -> (Trace, Span) {
    let (mut trace, parent) = match incoming {
        Some(trace) => {
            let parent = parent(&trace);
            (trace, parent)
        }
        None => {
            (Trace::begin(shared.sampling > 0.0 && rand::rng().random_bool(shared.sampling)), None)
        }
    };
    if !(trace.sampled && shared.recording) {
        return (trace, Span::none());
    }
    let span = tracing::info_span!(
        target: "microblog::call",
        "call",
        otel.name = method.name(),
        otel.kind = "server",
        otel.status_code = tracing::field::Empty,
        rpc.system = "grpc",
        rpc.grpc.status_code = tracing::field::Empty,
    );
    if let Some(parent) = parent {
        // Fails only where nothing records.
        let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(parent));
    }
    let recorded = span.context().span().span_context().clone();
    if recorded.is_valid() {
        trace.id = u128::from_be_bytes(recorded.trace_id().to_bytes());
        trace.span = u64::from_be_bytes(recorded.span_id().to_bytes());
    }
    (trace, span)
}

fn parent(trace: &Trace) -> Option<SpanContext> {
    let (id, span) = (TraceId::from(trace.id), SpanId::from(trace.span));
    let state = TraceState::default();
    trace.sampled.then(|| SpanContext::new(id, span, TraceFlags::SAMPLED, true, state))
}
