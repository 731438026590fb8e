//! Metrics: periodic OTLP export, and the reader for Prometheus.

use std::{env, time::Duration};

use opentelemetry_otlp::{MetricExporter, WithExportConfig as _, WithTonicConfig as _};
use opentelemetry_prometheus::PrometheusExporter;
use opentelemetry_sdk::{
    Resource,
    metrics::{OTEL_METRIC_EXPORT_INTERVAL, PeriodicReader, SdkMeterProvider},
};
use tonic::transport::ClientTlsConfig;

use super::TelemetryError;

// The specification's default of a minute is long during an incident.
const INTERVAL: Duration = Duration::from_secs(10);

/// Returns the OTLP exporter of metrics.
pub(super) fn exporter(
    endpoint: &str,
    tls: Option<ClientTlsConfig>,
) -> Result<MetricExporter, TelemetryError> {
    let mut exporter = MetricExporter::builder().with_tonic().with_endpoint(endpoint);
    if let Some(tls) = tls {
        exporter = exporter.with_tls_config(tls);
    }
    Ok(exporter.build()?)
}

/// Returns the meter provider with its readers. OTLP export runs on its own thread.
pub(super) fn provider(
    exporter: Option<MetricExporter>,
    prometheus_reader: Option<PrometheusExporter>,
    resource: Resource,
) -> SdkMeterProvider {
    let mut provider = SdkMeterProvider::builder().with_resource(resource);
    if let Some(exporter) = exporter {
        let mut reader = PeriodicReader::builder(exporter);
        // The reader uses the variable only if no interval is set.
        if env::var_os(OTEL_METRIC_EXPORT_INTERVAL).is_none() {
            reader = reader.with_interval(INTERVAL);
        }
        provider = provider.with_reader(reader.build());
    }
    if let Some(prometheus_reader) = prometheus_reader {
        provider = provider.with_reader(prometheus_reader);
    }
    provider.build()
}
