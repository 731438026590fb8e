//! Traces: spans, their sampler, and their OTLP export.

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

// The exporter's own connections must not create spans, which it would export in turn.
const EXPORTER_CRATES: [&str; 5] = ["h2", "hyper", "hyper_util", "tonic", "tower"];

/// Returns the layer that converts `tracing` spans to OpenTelemetry spans.
pub(super) fn layer(tracer: Tracer) -> impl Layer<Registry> {
    let exporter = EXPORTER_CRATES.map(|name| (name, LevelFilter::ERROR));
    let filter = Targets::new().with_default(LevelFilter::INFO).with_targets(exporter);
    // Code location, thread and idle time are costly to export, and of little use.
    tracing_opentelemetry::layer()
        .with_tracer(tracer)
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_filter(filter)
}

/// Returns the tracer provider with its OTLP exporter.
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

/// Sampler that follows the head-based decision: `call/span.rs` creates spans only for sampled
/// calls. Records server spans and children of recorded ones. Other spans would start unrelated
/// traces.
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
