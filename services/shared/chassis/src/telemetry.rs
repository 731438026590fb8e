//! Telemetry: logs, traces and metrics of a process. Without [`Telemetry::start`], as in libraries
//! and tests, nothing is exported or logged. Does not know calls: log lines get the trace id from a
//! function.

mod call_duration;
mod log_format;
mod otlp;
pub(crate) mod prometheus;
mod settings;

use std::{
    env,
    ffi::OsStr,
    io,
    net::SocketAddr,
    panic,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use opentelemetry::{KeyValue, global, trace::TracerProvider as _};
use opentelemetry_sdk::{
    Resource, error::OTelSdkResult, metrics::SdkMeterProvider, trace::SdkTracerProvider,
};
use tokio::{sync::oneshot, time::timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing_subscriber::{
    EnvFilter, Layer,
    filter::{FilterExt as _, ParseError, filter_fn},
    layer::SubscriberExt as _,
    util::{SubscriberInitExt as _, TryInitError},
};
use uuid::Uuid;

pub(crate) use self::{
    call_duration::CallDurations,
    settings::{Sampling, Settings},
};
use self::{log_format::TraceId, otlp::OtlpError};
use crate::config::Config;

// An unreachable collector must not delay the exit.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// The target of the audit log: what callers with rights of their own have changed.
pub const AUDIT_TARGET: &str = "microblog::audit";

/// Why telemetry cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TelemetryError {
    #[error("invalid log filter")]
    Filter(#[from] ParseError),
    #[error(transparent)]
    Otlp(#[from] OtlpError),
    #[error("cannot set up the Prometheus exporter")]
    Registry(#[from] ::prometheus::Error),
    #[error("cannot listen on {0} for metrics")]
    Listener(SocketAddr, #[source] io::Error),
    #[error("telemetry is already set up")]
    Subscriber(#[from] TryInitError),
}

/// The telemetry of a process.
#[derive(Debug)]
pub(crate) struct Telemetry {
    providers: Providers,
    // Serves metrics until the end.
    _prometheus_server: Option<AbortOnDropHandle<()>>,
}

/// The providers that export.
#[derive(Debug)]
struct Providers {
    traces: Option<SdkTracerProvider>,
    metrics: Option<SdkMeterProvider>,
}

impl Providers {
    /// Flushes and shuts down. Blocks.
    fn shutdown(&self) -> OTelSdkResult {
        let traces = self.traces.as_ref().map(|it| it.shutdown_with_timeout(FLUSH_TIMEOUT));
        let metrics = self.metrics.as_ref().map(|it| it.shutdown_with_timeout(FLUSH_TIMEOUT));
        traces.unwrap_or(Ok(())).and(metrics.unwrap_or(Ok(())))
    }
}

impl Telemetry {
    /// Sets up telemetry for the process. Must be called inside the runtime that drives the
    /// exporters' connections.
    pub(crate) fn start(config: &Config, trace_id: TraceId) -> Result<Self, TelemetryError> {
        let filter = log_filter(&config.log)?;
        let settings = Settings::of(config);
        let (traces_endpoint, metrics_endpoint) =
            (settings.traces_endpoint.as_deref(), settings.metrics_endpoint.as_deref());
        let resource = resource();
        let prometheus_reader =
            settings.prometheus_address.map(|_| prometheus::reader()).transpose()?;
        let otlp_exporter = metrics_endpoint
            .map(|to| otlp::metric_exporter(to, settings.metrics_tls.read(to)?))
            .transpose()?;
        let metrics = settings
            .has_metrics()
            .then(|| otlp::meter_provider(otlp_exporter, prometheus_reader, resource.clone()));
        if let Some(metrics) = &metrics {
            // Set before logging starts, which would log it, and before tracing, whose processors
            // create instruments.
            global::set_meter_provider(metrics.clone());
        }
        let traces = traces_endpoint
            .map(|to| otlp::tracer_provider(to, settings.traces_tls.read(to)?, resource))
            .transpose()?;
        let providers = Providers { traces, metrics };
        match &providers.traces {
            // A global filter is cheaper than one per layer.
            None => tracing_subscriber::registry()
                .with(filter)
                .with(log_format::layer(config, trace_id))
                .try_init()?,
            Some(traces) => {
                let tracer = traces.tracer("microblog");
                // Log lines need only events, not spans.
                let events = filter.and(filter_fn(|metadata| metadata.is_event()));
                let traces = otlp::span_layer(tracer);
                let log_lines = log_format::layer(config, trace_id).with_filter(events);
                tracing_subscriber::registry().with(traces).with(log_lines).try_init()?;
            }
        }
        let prometheus_server = settings.prometheus_address.map(serve).transpose()?;
        panic::set_hook(Box::new(|panic| {
            // Omits the panic's message, which may contain user data: assertions show the compared
            // values.
            let location = panic.location().map(ToString::to_string);
            tracing::error!(location, "panic");
        }));
        Ok(Self { providers, _prometheus_server: prometheus_server })
    }

    /// Flushes telemetry. On its own thread: the exporters block, and this runtime drives their
    /// connections.
    pub(crate) async fn stop(self) {
        let providers = self.providers;
        let (done, stopped) = oneshot::channel();
        let flush = move || {
            let result = providers.shutdown();
            // The receiver is gone after the timeout.
            let _ = done.send(result);
        };
        let thread = thread::Builder::new().name("telemetry".to_owned()).spawn(flush);
        let flushed = match thread {
            Ok(_detached) => timeout(FLUSH_TIMEOUT, stopped).await,
            Err(_) => return,
        };
        if !matches!(flushed, Ok(Ok(Ok(())))) {
            tracing::warn!("traces and metrics not flushed");
        }
    }
}

/// Returns the filter of log lines. It has the audit log at INFO, unless it names that target.
fn log_filter(text: &str) -> Result<EnvFilter, ParseError> {
    let filter = EnvFilter::builder().parse(text)?;
    let names_audit = |directive: &str| directive.split(['=', '[']).next() == Some(AUDIT_TARGET);
    if text.split(',').any(names_audit) {
        return Ok(filter);
    }
    Ok(filter.add_directive(format!("{AUDIT_TARGET}=info").parse()?))
}

fn serve(at: SocketAddr) -> Result<AbortOnDropHandle<()>, TelemetryError> {
    let listened = prometheus::serve(at);
    let (address, work) = listened.map_err(|error| TelemetryError::Listener(at, error))?;
    tracing::info!(%address, "serving metrics");
    Ok(AbortOnDropHandle::new(tokio::spawn(work)))
}

/// Returns the resource attributes of the process: from the environment, with the executable's name
/// as default and a unique instance id, which separates the series of replicas.
fn resource() -> Resource {
    let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let own = |name: &str| {
        !attributes.split(',').any(|it| it.trim_start().starts_with(&format!("{name}=")))
    };
    let mut resource = Resource::builder();
    // The specification gives OTEL_SERVICE_NAME precedence over the attributes.
    let name = variable("OTEL_SERVICE_NAME").or_else(|| own("service.name").then(executable));
    if let Some(name) = name {
        resource = resource.with_service_name(name);
    }
    let id = || Uuid::new_v4().to_string();
    let version = || env!("CARGO_PKG_VERSION").to_owned();
    let others: [(&'static str, &dyn Fn() -> String); 2] =
        [("service.instance.id", &id), ("service.version", &version)];
    for (name, value) in others.into_iter().filter(|(name, _)| own(name)) {
        resource = resource.with_attribute(KeyValue::new(name, value()));
    }
    resource.build()
}

/// Returns the name by which the program was called: several may be links to one.
fn executable() -> String {
    let called = env::args_os().next().map(PathBuf::from);
    let name = called.as_deref().and_then(Path::file_stem).and_then(OsStr::to_str);
    name.unwrap_or("microblog").to_owned()
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Seek as _},
        sync::Arc,
    };

    use super::*;

    /// Returns which of three lines a filter lets through: an access log line, an audit line at INFO,
    /// and one at DEBUG.
    fn logged(filter: &str) -> [bool; 3] {
        let mut file = tempfile::tempfile().unwrap();
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(Arc::new(file.try_clone().unwrap()))
            .with_ansi(false);
        let subscriber = tracing_subscriber::registry().with(log_filter(filter).unwrap());
        tracing::subscriber::with_default(subscriber.with(lines), || {
            tracing::info!(target: "microblog::call", "access");
            tracing::info!(target: AUDIT_TARGET, "change");
            tracing::debug!(target: AUDIT_TARGET, "detail");
        });
        file.rewind().unwrap();
        let mut log = String::new();
        file.read_to_string(&mut log).unwrap();
        ["access", "change", "detail"].map(|line| log.contains(line))
    }

    #[test]
    fn only_a_filter_that_names_the_audit_log_leaves_it_out() {
        for filter in ["warn", "error", "off", "", "microblog=off", "warn,microblog::call=error"] {
            assert_eq!(logged(filter), [false, true, false], "{filter}");
        }
        assert_eq!(logged("info"), [true, true, false]);
        assert_eq!(logged("warn,microblog::call=info"), [true, true, false]);
        for filter in ["info,microblog::audit=off", "info,microblog::audit=warn"] {
            assert_eq!(logged(filter), [true, false, false], "{filter}");
        }
        assert_eq!(logged("off,microblog::audit=debug"), [false, true, true]);
        assert_eq!(logged("warn,microblog::audit"), [false, true, true], "all of it");
        assert!(log_filter("warn,microblog::call=loud").is_err());
    }
}
