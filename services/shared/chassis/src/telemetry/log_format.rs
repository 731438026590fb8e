//! Log format: text or JSON. Lines written within a call or job get its trace id, and errors get
//! their sources.

use std::{
    error::Error,
    fmt::{self, Debug, Write as _},
    io::{self, IsTerminal as _},
    iter::successors,
};

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, Writer},
    },
    registry::LookupSpan,
};

use crate::config::{Config, LogFormat};

/// Target of the access log, whose lines already have a trace id.
const CALL_TARGET: &str = "microblog::call";

/// Returns the trace id of the current call, for log lines.
pub(super) type TraceId = fn() -> Option<String>;

/// Returns the layer that writes log lines to standard error.
pub(super) fn layer<S>(config: &Config, trace_id: TraceId) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let terminal = io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(terminal);
    match config.log_format {
        LogFormat::Text => {
            let inner = Format::default().with_ansi(terminal);
            lines.event_format(ExtendedFormat { inner, append: append_text, trace_id }).boxed()
        }
        LogFormat::Json => {
            let format = |inner| json_format(inner, trace_id);
            lines.json().flatten_event(true).map_event_format(format).boxed()
        }
    }
}

fn json_format<F>(inner: F, trace_id: TraceId) -> ExtendedFormat<F> {
    ExtendedFormat { inner, append: append_json, trace_id }
}

/// Extends an event format with the trace id and error sources.
struct ExtendedFormat<F> {
    inner: F,
    append: fn(&mut String, &Extras) -> fmt::Result,
    trace_id: TraceId,
}

/// Additions to a log line.
#[derive(Default)]
struct Extras {
    /// Sources of each error field that has some.
    causes: Vec<(&'static str, Vec<String>)>,
    trace_id: Option<String>,
}

impl<S, N, F> FormatEvent<S, N> for ExtendedFormat<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if event.metadata().target() == CALL_TARGET {
            return self.inner.format_event(context, writer, event);
        }
        let mut extras = Extras::default();
        event.record(&mut extras);
        extras.trace_id = (self.trace_id)();
        let mut line = String::new();
        self.inner.format_event(context, Writer::new(&mut line), event)?;
        (self.append)(&mut line, &extras)?;
        writer.write_str(&line)
    }
}

impl Visit for Extras {
    fn record_error(&mut self, field: &Field, error: &(dyn Error + 'static)) {
        let causes: Vec<_> =
            successors(error.source(), |&cause| cause.source()).map(ToString::to_string).collect();
        if !causes.is_empty() {
            self.causes.push((field.name(), causes));
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

/// Appends the trace id. The text format already has the sources.
fn append_text(line: &mut String, extras: &Extras) -> fmt::Result {
    let Some(trace) = &extras.trace_id else { return Ok(()) };
    line.truncate(line.trim_end().len());
    writeln!(line, " trace_id={trace}")
}

/// Appends both to a JSON object, which is never empty.
fn append_json(line: &mut String, extras: &Extras) -> fmt::Result {
    line.truncate(line.trim_end().len() - 1);
    for (field, causes) in &extras.causes {
        let causes = serde_json::Value::from(causes.as_slice());
        write!(line, r#","{field}.sources":{causes}"#)?;
    }
    if let Some(trace) = &extras.trace_id {
        write!(line, r#","trace_id":"{trace}""#)?;
    }
    writeln!(line, "}}")
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::{fmt::MakeWriter, layer::SubscriberExt as _};

    use super::*;

    /// A log writer for tests.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Written {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the store failed")]
    struct Failed(#[source] Rejected);

    #[derive(Debug, thiserror::Error)]
    #[error("rejected: \"no\"")]
    struct Rejected(#[source] io::Error);

    /// Returns the JSON object of a log event.
    fn object(say: impl FnOnce()) -> serde_json::Value {
        let written = Written::default();
        let layer = tracing_subscriber::fmt::layer().with_writer(written.clone());
        let layer =
            layer.json().flatten_event(true).map_event_format(|inner| json_format(inner, || None));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), say);
        let line = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert_eq!(line.lines().count(), 1, "{line}");
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn trace_id_is_appended() {
        let added = |line: &str, add: fn(&mut String, &Extras) -> fmt::Result| {
            let mut line = line.to_owned();
            add(&mut line, &Extras { trace_id: Some("12ab".to_owned()), ..Extras::default() })
                .unwrap();
            line
        };
        assert_eq!(added("WARN a text x=1\n", append_text), "WARN a text x=1 trace_id=12ab\n");
        let object = added("{\"message\":\"a text\"}\n", append_json);
        assert_eq!(object, "{\"message\":\"a text\",\"trace_id\":\"12ab\"}\n");
    }

    #[test]
    fn json_lists_the_sources_of_an_error() {
        let error = Failed(Rejected(io::Error::other("closed")));
        let logged = object(|| tracing::warn!(error = &error as &dyn Error, calls = 1, "failed"));
        assert_eq!(logged["error"], "the store failed");
        assert_eq!(logged["error.sources"], serde_json::json!(["rejected: \"no\"", "closed"]));
        assert_eq!((&logged["calls"], &logged["message"]), (&1.into(), &"failed".into()));
    }

    #[test]
    fn json_omits_sources_if_there_are_none() {
        let error = io::Error::other("closed");
        let logged = object(|| tracing::warn!(error = &error as &dyn Error, "failed"));
        assert_eq!(logged["error"], "closed");
        assert!(
            logged.get("error.sources").is_none() && logged.get("trace_id").is_none(),
            "{logged}"
        );
    }
}
