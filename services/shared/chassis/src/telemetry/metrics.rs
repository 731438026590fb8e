//! Numbers that are sent to the collector every few seconds, whoever counts them.

use std::{env, time::Duration};

use opentelemetry_otlp::{ExporterBuildError, MetricExporter, WithExportConfig as _};
use opentelemetry_sdk::{
    Resource,
    metrics::{PeriodicReader, SdkMeterProvider},
};

// Of the OpenTelemetry specification; its default, a minute, is long where something goes wrong.
const INTERVAL_VARIABLE: &str = "OTEL_METRIC_EXPORT_INTERVAL";
const INTERVAL: Duration = Duration::from_secs(10);

/// Returns what sends metrics to a collector, from a thread of its own.
pub(super) fn provider(
    endpoint: &str,
    resource: Resource,
) -> Result<SdkMeterProvider, ExporterBuildError> {
    let exporter = MetricExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
    let mut reader = PeriodicReader::builder(exporter);
    // The reader reads the variable by itself, unless it is told.
    if env::var_os(INTERVAL_VARIABLE).is_none() {
        reader = reader.with_interval(INTERVAL);
    }
    Ok(SdkMeterProvider::builder().with_reader(reader.build()).with_resource(resource).build())
}
