//! Where log lines, traces and metrics go. Set up once, by the process; a library or test that
//! never does loses nothing but its logs.

mod metrics;
mod traces;

use std::{
    env,
    ffi::OsStr,
    io::{self, IsTerminal as _},
    panic,
    path::Path,
    thread,
    time::Duration,
};

use opentelemetry::{global, trace::TracerProvider as _};
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::{
    Resource, error::OTelSdkResult, metrics::SdkMeterProvider, trace::SdkTracerProvider,
};
use tokio::{sync::oneshot, time::timeout};
use tracing_subscriber::{
    EnvFilter, Layer,
    filter::{FilterExt as _, ParseError, filter_fn},
    fmt,
    layer::SubscriberExt as _,
    util::{SubscriberInitExt as _, TryInitError},
};

use crate::{Config, LogFormat};

// A collector that is away must not hold up the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Telemetry that cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TelemetryError {
    #[error("the log filter cannot be read")]
    Filter(#[from] ParseError),
    #[error("the exporter cannot be made")]
    Exporter(#[from] ExporterBuildError),
    #[error("telemetry is set up already")]
    Subscriber(#[from] TryInitError),
}

/// The telemetry of a process.
#[derive(Debug)]
pub(crate) struct Telemetry {
    exported: Option<Exported>,
}

/// What goes to a collector.
#[derive(Debug)]
struct Exported {
    traces: SdkTracerProvider,
    metrics: SdkMeterProvider,
}

impl Exported {
    fn to(endpoint: &str) -> Result<Self, ExporterBuildError> {
        let resource = resource();
        let traces = traces::provider(endpoint, resource.clone())?;
        Ok(Self { traces, metrics: metrics::provider(endpoint, resource)? })
    }

    /// Sends what is left, and blocks meanwhile.
    fn shutdown(&self) -> OTelSdkResult {
        let traces = self.traces.shutdown_with_timeout(FLUSH_TIMEOUT);
        let metrics = self.metrics.shutdown_with_timeout(FLUSH_TIMEOUT);
        traces.and(metrics)
    }
}

impl Telemetry {
    /// Sets it up for the whole process. Must be called inside the runtime that is to carry the
    /// exporters' connections.
    pub(crate) fn start(config: &Config) -> Result<Self, TelemetryError> {
        let filter = EnvFilter::builder().parse(&config.log)?;
        let exported = config.otlp_endpoint.as_deref().map(Exported::to).transpose()?;
        if let Some(exported) = &exported {
            // Before there are log lines, in which it would announce itself.
            global::set_meter_provider(exported.metrics.clone());
        }
        match &exported {
            // One filter for all, which is cheaper than one for each layer.
            None => tracing_subscriber::registry().with(filter).with(lines(config)).try_init()?,
            Some(exported) => {
                let tracer = exported.traces.tracer("microblog");
                // Log lines name their trace; they need nothing else of its spans.
                let events = filter.and(filter_fn(|metadata| metadata.is_event()));
                let traces = traces::layer(tracer);
                let lines = lines(config).with_filter(events);
                tracing_subscriber::registry().with(traces).with(lines).try_init()?;
            }
        }
        panic::set_hook(Box::new(|panic| {
            // Not what it says, which may be a user's: an assertion shows the values it compared.
            let location = panic.location().map(ToString::to_string);
            tracing::error!(location, "panic");
        }));
        Ok(Self { exported })
    }

    /// Sends what is left. On a thread of its own: the exporters block, and their connections are
    /// driven by the runtime that waits here.
    pub(crate) async fn stop(self) {
        let Some(exported) = self.exported else { return };
        let (done, stopped) = oneshot::channel();
        let flush = move || {
            let result = exported.shutdown();
            // Nobody waits any more if it took too long.
            let _ = done.send(result);
        };
        let thread = thread::Builder::new().name("telemetry".to_owned()).spawn(flush);
        let flushed = match thread {
            Ok(_detached) => timeout(FLUSH_TIMEOUT, stopped).await,
            Err(_) => return,
        };
        if !matches!(flushed, Ok(Ok(Ok(())))) {
            tracing::warn!("the last traces and metrics were not sent");
        }
    }
}

/// Returns what collectors know the process by: as the environment says, or else by its executable.
fn resource() -> Resource {
    let mut resource = Resource::builder();
    if env::var_os("OTEL_SERVICE_NAME").is_none() {
        let executable = env::current_exe().ok();
        let name = executable.as_deref().and_then(Path::file_stem).and_then(OsStr::to_str);
        resource = resource.with_service_name(name.unwrap_or("microblog").to_owned());
    }
    resource.build()
}

fn lines<S>(config: &Config) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    let terminal = io::stderr().is_terminal();
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(terminal);
    match config.log_format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}
