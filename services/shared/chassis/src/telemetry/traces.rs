//! Spans, and which of them are sent to the collector.

use opentelemetry::{
    Context as OtelContext, KeyValue, TraceId,
    trace::{Link, SpanKind, TraceContextExt as _},
};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{SamplingDecision, SamplingResult, SdkTracerProvider, ShouldSample, Tracer},
};
use tonic::transport::ClientTlsConfig;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer, Registry, filter::Targets};

use super::TelemetryError;

// What carries the spans away must not make spans, which it would then carry away.
const EXPORTER_CRATES: [&str; 5] = ["h2", "hyper", "hyper_util", "tonic", "tower"];

/// Returns what makes spans of those of `tracing`.
pub(super) fn layer(tracer: Tracer) -> impl Layer<Registry> {
    let exporter = EXPORTER_CRATES.map(|name| (name, LevelFilter::ERROR));
    let filter = Targets::new().with_default(LevelFilter::INFO).with_targets(exporter);
    // Where in the code and in which thread it was, and how long nobody worked for it, is dear to
    // send and of little use.
    tracing_opentelemetry::layer()
        .with_tracer(tracer)
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_filter(filter)
}

/// Returns what sends spans to a collector.
pub(super) fn provider(
    endpoint: &str,
    tls: Option<ClientTlsConfig>,
    resource: Resource,
) -> Result<SdkTracerProvider, TelemetryError> {
    let mut exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint);
    if let Some(tls) = tls {
        exporter = exporter.with_tls_config(tls);
    }
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter.build()?)
        .with_resource(resource)
        .with_sampler(HeadSampler)
        .build())
}

/// Takes the spans of calls, which are made only if they are to be recorded, and what is inside
/// them; anything else would begin a trace that nobody asked for.
#[derive(Clone, Debug)]
struct HeadSampler;

impl ShouldSample for HeadSampler {
    fn should_sample(
        &self,
        parent: Option<&OtelContext>,
        _: TraceId,
        _: &str,
        kind: &SpanKind,
        _: &[KeyValue],
        _: &[Link],
    ) -> SamplingResult {
        let parent = parent.map(|context| context.span().span_context().clone());
        let recorded = parent.as_ref().is_some_and(|parent| parent.is_sampled());
        let decision = match kind {
            SpanKind::Server => SamplingDecision::RecordAndSample,
            _ if recorded => SamplingDecision::RecordAndSample,
            _ => SamplingDecision::Drop,
        };
        let trace_state = parent.map(|parent| parent.trace_state().clone()).unwrap_or_default();
        SamplingResult { decision, attributes: Vec::new(), trace_state }
    }
}
