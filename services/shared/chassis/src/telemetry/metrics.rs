//! Numbers that are sent to the collector every few seconds, or read by Prometheus when it asks,
//! whoever counts them.

use std::{env, time::Duration};

use opentelemetry_otlp::{ExporterBuildError, MetricExporter, WithExportConfig as _};
use opentelemetry_prometheus::PrometheusExporter;
use opentelemetry_sdk::{
    Resource,
    metrics::{OTEL_METRIC_EXPORT_INTERVAL, PeriodicReader, SdkMeterProvider},
};

// The specification's default, a minute, is long where something goes wrong.
const INTERVAL: Duration = Duration::from_secs(10);

/// Returns what sends metrics to a collector, from a thread of its own, and what lets Prometheus
/// read them.
pub(super) fn provider(
    endpoint: Option<&str>,
    scraped: Option<PrometheusExporter>,
    resource: Resource,
) -> Result<SdkMeterProvider, ExporterBuildError> {
    let mut provider = SdkMeterProvider::builder().with_resource(resource);
    if let Some(endpoint) = endpoint {
        let exporter = MetricExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
        let mut reader = PeriodicReader::builder(exporter);
        // The reader reads the variable by itself, unless it is told.
        if env::var_os(OTEL_METRIC_EXPORT_INTERVAL).is_none() {
            reader = reader.with_interval(INTERVAL);
        }
        provider = provider.with_reader(reader.build());
    }
    if let Some(scraped) = scraped {
        provider = provider.with_reader(scraped);
    }
    Ok(provider.build())
}
