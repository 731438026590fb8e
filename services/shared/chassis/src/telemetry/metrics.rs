//! Numbers that are sent to the collector every few seconds, or read by Prometheus when it asks,
//! whoever counts them.

use std::{env, time::Duration};

use opentelemetry_otlp::{MetricExporter, WithExportConfig as _, WithTonicConfig as _};
use opentelemetry_prometheus::PrometheusExporter;
use opentelemetry_sdk::{
    Resource,
    metrics::{OTEL_METRIC_EXPORT_INTERVAL, PeriodicReader, SdkMeterProvider},
};
use tonic::transport::ClientTlsConfig;

use super::TelemetryError;

// The specification's default, a minute, is long where something goes wrong.
const INTERVAL: Duration = Duration::from_secs(10);

/// Returns what sends metrics to a collector.
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

/// Returns what has metrics sent, from a thread of its own, and what lets Prometheus read them.
pub(super) fn provider(
    exporter: Option<MetricExporter>,
    prometheus_reader: Option<PrometheusExporter>,
    resource: Resource,
) -> SdkMeterProvider {
    let mut provider = SdkMeterProvider::builder().with_resource(resource);
    if let Some(exporter) = exporter {
        let mut reader = PeriodicReader::builder(exporter);
        // The reader reads the variable by itself, unless it is told.
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
