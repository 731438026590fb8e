//! Export to an OpenTelemetry collector (OTLP over gRPC): spans, with their sampler, and metrics. TLS
//! to collectors follows OpenTelemetry's environment variables
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>).

use std::{env, path::PathBuf, time::Duration};

use microblog_files::{File, TlsError};
use opentelemetry::{
    Context as OtelContext, KeyValue, TraceId,
    trace::{Link, SpanKind, TraceContextExt as _},
};
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, SpanExporter, WithExportConfig as _, WithTonicConfig as _,
};
use opentelemetry_prometheus::PrometheusExporter;
use opentelemetry_sdk::{
    Resource,
    metrics::{OTEL_METRIC_EXPORT_INTERVAL, PeriodicReader, SdkMeterProvider},
    trace::{SamplingDecision, SamplingResult, SdkTracerProvider, ShouldSample, Tracer},
};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer, Registry, filter::Targets};

// The exporter's own connections must not create spans, which it would export in turn.
const EXPORTER_CRATES: [&str; 5] = ["h2", "hyper", "hyper_util", "tonic", "tower"];

// The specification's default of a minute is long during an incident.
const METRICS_INTERVAL: Duration = Duration::from_secs(10);

/// Why OTLP exporters cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OtlpError {
    // Omits the cause: it contains the collector's URL, which may have a password.
    #[error("cannot create the OTLP exporter: invalid OTEL_EXPORTER_OTLP_* variables")]
    Exporter,
    #[error(
        "no trusted certificate authorities for an https collector: set OTEL_EXPORTER_OTLP_CERTIFICATE"
    )]
    Untrusted,
    #[error(
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY must be set together"
    )]
    HalfIdentity,
    #[error("cannot set up TLS to the collector")]
    Tls(#[from] TlsError),
}

impl From<ExporterBuildError> for OtlpError {
    fn from(_: ExporterBuildError) -> Self {
        Self::Exporter
    }
}

/// TLS files for the collector of one signal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CollectorTls {
    pub(super) authorities: Option<PathBuf>,
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

impl CollectorTls {
    /// Returns the exporter's TLS settings for an `https` endpoint. Read once: a new certificate
    /// needs a restart.
    pub(super) fn read(&self, endpoint: &str) -> Result<Option<ClientTlsConfig>, OtlpError> {
        if !endpoint.starts_with("https://") {
            return Ok(None);
        }
        let authorities = self.authorities.as_deref().ok_or(OtlpError::Untrusted)?;
        let authorities = Certificate::from_pem(File::read(authorities)?.authorities_pem()?);
        let config = ClientTlsConfig::new().ca_certificate(authorities);
        Ok(Some(match (self.certificate.as_deref(), self.key.as_deref()) {
            (None, None) => config,
            (Some(_), None) | (None, Some(_)) => return Err(OtlpError::HalfIdentity),
            (Some(certificate), Some(key)) => {
                let identity = microblog_files::Identity::read(certificate, key)?;
                let (certificate, key) = identity.pem()?;
                config.identity(Identity::from_pem(certificate, key))
            }
        }))
    }
}

/// Returns the layer that converts `tracing` spans to OpenTelemetry spans.
pub(super) fn span_layer(tracer: Tracer) -> impl Layer<Registry> {
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
pub(super) fn tracer_provider(
    endpoint: &str,
    tls: Option<ClientTlsConfig>,
    resource: Resource,
) -> Result<SdkTracerProvider, OtlpError> {
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

/// Returns the OTLP exporter of metrics.
pub(super) fn metric_exporter(
    endpoint: &str,
    tls: Option<ClientTlsConfig>,
) -> Result<MetricExporter, OtlpError> {
    let mut exporter = MetricExporter::builder().with_tonic().with_endpoint(endpoint);
    if let Some(tls) = tls {
        exporter = exporter.with_tls_config(tls);
    }
    Ok(exporter.build()?)
}

/// Returns the meter provider with its readers. OTLP export runs on its own thread.
pub(super) fn meter_provider(
    exporter: Option<MetricExporter>,
    prometheus_reader: Option<PrometheusExporter>,
    resource: Resource,
) -> SdkMeterProvider {
    let mut provider = SdkMeterProvider::builder().with_resource(resource);
    if let Some(exporter) = exporter {
        let mut reader = PeriodicReader::builder(exporter);
        // The reader uses the variable only if no interval is set.
        if env::var_os(OTEL_METRIC_EXPORT_INTERVAL).is_none() {
            reader = reader.with_interval(METRICS_INTERVAL);
        }
        provider = provider.with_reader(reader.build());
    }
    if let Some(prometheus_reader) = prometheus_reader {
        provider = provider.with_reader(prometheus_reader);
    }
    provider.build()
}
