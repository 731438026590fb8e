//! How the trace of a call goes on in a job that the call leaves in a queue, as the conventions for
//! messaging have it (<https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/>): the
//! job carries where it was sent from, and its span is a child of that, and has a link to it. Who acted
//! does not go on in it: who works on a job acts as the system, as all jobs do.

use std::future::Future;

use opentelemetry::{Context as OtelContext, trace::TraceContextExt as _};
use tracing::{Instrument as _, Span, field::Empty};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::{
    call::span,
    context::{self, Context, Trace},
};

/// Jobs that are about to be sent.
#[derive(Debug)]
pub struct Sending {
    span: Span,
    traceparent: String,
}

/// Returns what goes with some jobs that the current call, or job, sends to a queue of this name.
pub fn send(queue: &'static str, count: usize) -> Sending {
    let nothing = || Sending { span: Span::none(), traceparent: String::new() };
    let place = context::with(|context| (context.trace.clone(), context.shared.recording));
    let Some((mut trace, is_recording)) = place.filter(|(trace, _)| trace.sampled()) else {
        return nothing();
    };
    // Within what is recorded, and only there, there is a span.
    if !is_recording || Span::current().is_none() {
        return Sending { traceparent: trace.text(), ..nothing() };
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
    Sending { span, traceparent: trace.text() }
}

impl Sending {
    /// Returns what each job is to carry: its sender's place in the trace, or nothing where that is
    /// not recorded.
    pub fn traceparent(&self) -> &str {
        &self.traceparent
    }

    /// Sends them.
    pub async fn run<F: Future>(self, work: F) -> F::Output {
        work.instrument(self.span).await
    }
}

/// Works on a job of a queue of this name, which is there under an id: as part of the trace that it
/// came from, if it carries a place in one. The calls that it makes belong to that trace.
pub async fn process<T, E>(
    queue: &'static str,
    id: &str,
    traceparent: &str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let place = Trace::parse(traceparent).zip(context::with(Context::clone));
    let Some((mut trace, context)) = place.filter(|(trace, _)| trace.sampled()) else {
        return work.await;
    };
    let span = if context.shared.recording { begin(queue, id, &trace) } else { Span::none() };
    span::set_parent(&mut trace, &span);
    let done = Context { trace, ..context }.scope(work).instrument(span.clone()).await;
    if done.is_err() {
        span.record("otel.status_code", "ERROR");
        span.record("error.type", "_OTHER");
    }
    done
}

fn begin(queue: &str, id: &str, sender: &Trace) -> Span {
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
        // Fails only where nothing records.
        let _ = span.set_parent(OtelContext::new().with_remote_span_context(sender));
    }
    span
}
