//! Where log lines and traces go. Set up once, by the process; a library or test that never does
//! loses nothing but its logs.

use std::{
    env,
    io::{self, IsTerminal as _},
    panic, thread,
    time::Duration,
};

use opentelemetry::{
    Context as OtelContext, KeyValue, TraceId,
    trace::{Link, SpanKind, TraceContextExt as _, TracerProvider as _},
};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{SamplingDecision, SamplingResult, SdkTracerProvider, ShouldSample, Tracer},
};
use tokio::{sync::oneshot, time::timeout};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::{FilterExt as _, ParseError, Targets, filter_fn},
    fmt,
    layer::SubscriberExt as _,
    util::{SubscriberInitExt as _, TryInitError},
};

use crate::{Config, LogFormat};

// A collector that is away must not hold up the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
// What carries the spans away must not make spans, which it would then carry away.
const EXPORTER_CRATES: [&str; 5] = ["h2", "hyper", "hyper_util", "tonic", "tower"];

/// Telemetry that cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TelemetryError {
    #[error("the log filter cannot be read")]
    Filter(#[from] ParseError),
    #[error("the trace exporter cannot be made")]
    Exporter(#[from] ExporterBuildError),
    #[error("telemetry is set up already")]
    Subscriber(#[from] TryInitError),
}

/// The telemetry of a process.
#[derive(Debug)]
pub(crate) struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Sets it up for the whole process. Must be called inside the runtime that is to carry the
    /// exporter's connection.
    pub(crate) fn start(config: &Config) -> Result<Self, TelemetryError> {
        let filter = EnvFilter::builder().parse(&config.log)?;
        let provider = config.otlp_endpoint.as_deref().map(provider).transpose()?;
        match &provider {
            // One filter for all, which is cheaper than one for each layer.
            None => tracing_subscriber::registry().with(filter).with(lines(config)).try_init()?,
            Some(provider) => {
                let tracer = provider.tracer("microblog");
                // Log lines name their trace; they need nothing else of its spans.
                let events = filter.and(filter_fn(|metadata| metadata.is_event()));
                let traces = traces(tracer);
                let lines = lines(config).with_filter(events);
                tracing_subscriber::registry().with(traces).with(lines).try_init()?;
            }
        }
        panic::set_hook(Box::new(|panic| {
            // Not what it says, which may be a user's: an assertion shows the values it compared.
            let location = panic.location().map(ToString::to_string);
            tracing::error!(location, "panic");
        }));
        Ok(Self { provider })
    }

    /// Sends what is left. On a thread of its own: the exporter blocks, and its connection is
    /// driven by the runtime that waits here.
    pub(crate) async fn stop(self) {
        let Some(provider) = self.provider else { return };
        let (done, stopped) = oneshot::channel();
        let flush = move || {
            let result = provider.shutdown_with_timeout(FLUSH_TIMEOUT);
            // Nobody waits any more if it took too long.
            let _ = done.send(result);
        };
        let thread = thread::Builder::new().name("telemetry".to_owned()).spawn(flush);
        let flushed = match thread {
            Ok(_detached) => timeout(FLUSH_TIMEOUT, stopped).await,
            Err(_) => return,
        };
        if !matches!(flushed, Ok(Ok(Ok(())))) {
            tracing::warn!("the last traces were not sent");
        }
    }
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

fn traces(tracer: Tracer) -> impl Layer<Registry> {
    let exporter = EXPORTER_CRATES.map(|name| (name, LevelFilter::ERROR));
    let filter = Targets::new().with_default(LevelFilter::INFO).with_targets(exporter);
    tracing_opentelemetry::layer().with_tracer(tracer).with_filter(filter)
}

fn provider(endpoint: &str) -> Result<SdkTracerProvider, ExporterBuildError> {
    let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
    let executable = env::current_exe().ok();
    let name =
        executable.as_deref().and_then(|path| path.file_stem()).and_then(|name| name.to_str());
    let mut resource = Resource::builder();
    if env::var_os("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name(name.unwrap_or("microblog").to_owned());
    }
    let resource = resource.build();
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource)
        .with_sampler(Decided)
        .build())
}

/// Takes the spans of calls, which are made only if they are to be recorded, and what is inside
/// them; anything else would begin a trace that nobody asked for.
#[derive(Clone, Debug)]
struct Decided;

impl ShouldSample for Decided {
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
