//! Trace propagation through queues, by the semantic conventions for messaging
//! (<https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/>). A job carries its
//! producer's trace context. The consumer's span is a child of the producer's, and links to it. The
//! identity is not propagated: jobs act as the system.

use std::future::Future;

use opentelemetry::{Context as OtelContext, trace::TraceContextExt as _};
use tracing::{Instrument as _, Span, field::Empty};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::{
    context::{self, Context},
    span,
    trace_context::Trace,
};

/// A batch of jobs before it is sent.
#[derive(Debug)]
pub struct ProducerSpan {
    span: Span,
    traceparent: String,
}

/// Starts the producer span for jobs that the current call sends to a queue.
pub fn send(queue: &'static str, count: usize) -> ProducerSpan {
    let nothing = || ProducerSpan { span: Span::none(), traceparent: String::new() };
    let traced = context::with(|context| (context.trace.clone(), context.server_state.recording));
    let Some((mut trace, is_recording)) = traced.filter(|(trace, _)| trace.sampled()) else {
        return nothing();
    };
    // Spans exist only within a recorded call.
    if !is_recording || Span::current().is_none() {
        return ProducerSpan { traceparent: trace.text(), ..nothing() };
    }
    let span = tracing::info_span!(
        target: "microblog::message",
        "send",
        otel.name = format!("send {queue}"),
        otel.kind = "producer",
        messaging.system = "redis",
        messaging.operation.name = "send",
        messaging.operation.type = "send",
        messaging.destination.name = queue,
        messaging.batch.message_count = (count > 1).then_some(count),
    );
    span::set_parent(&mut trace, &span);
    ProducerSpan { span, traceparent: trace.text() }
}

impl ProducerSpan {
    /// Returns the trace context to store in each job; empty if the trace is not sampled.
    pub fn traceparent(&self) -> &str {
        &self.traceparent
    }

    /// Runs the send within the producer span.
    pub async fn run<F: Future>(self, work: F) -> F::Output {
        work.instrument(self.span).await
    }
}

/// Runs the work for a job within the trace that it carries, if any. The job's calls belong to that
/// trace.
pub async fn process<T, E>(
    queue: &'static str,
    id: &str,
    traceparent: &str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let traced = Trace::parse(traceparent).zip(context::with(Context::clone));
    let Some((mut trace, context)) = traced.filter(|(trace, _)| trace.sampled()) else {
        return work.await;
    };
    let span = if context.server_state.recording {
        consumer_span(queue, id, &trace)
    } else {
        Span::none()
    };
    span::set_parent(&mut trace, &span);
    let done = Context { trace, ..context }.scope(work).instrument(span.clone()).await;
    if done.is_err() {
        span.record("otel.status_code", "ERROR");
        span.record("error.type", "_OTHER");
    }
    done
}

fn consumer_span(queue: &str, id: &str, sender: &Trace) -> Span {
    let span = tracing::info_span!(
        target: "microblog::message",
        parent: None,
        "process",
        otel.name = format!("process {queue}"),
        otel.kind = "consumer",
        otel.status_code = Empty,
        error.type = Empty,
        messaging.system = "redis",
        messaging.operation.name = "process",
        messaging.operation.type = "process",
        messaging.destination.name = queue,
        messaging.message.id = id,
    );
    if let Some(sender) = span::remote_parent(sender) {
        span.add_link(sender.clone());
        // Fails only without a recorder.
        let _ = span.set_parent(OtelContext::new().with_remote_span_context(sender));
    }
    span
}
