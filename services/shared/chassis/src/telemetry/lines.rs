//! Log lines, for people or for machines. What is said while a call or a job is worked on names its
//! trace.

use std::{
    fmt::{self, Display, Write as _},
    io::{self, IsTerminal as _},
};

use tracing::{Event, Subscriber};
use tracing_subscriber::{
    Layer,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, Writer},
    },
    registry::LookupSpan,
};

use crate::{Config, LogFormat, context};

/// The lines of calls, which name their traces themselves.
const CALLS: &str = "microblog::call";

/// Returns what writes them.
pub(super) fn layer<S>(config: &Config) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let terminal = io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(terminal);
    match config.log_format {
        LogFormat::Text => {
            let inner = Format::default().with_ansi(terminal);
            lines.event_format(Traced { inner, add: add_for_people }).boxed()
        }
        LogFormat::Json => {
            let add = add_for_machines;
            lines.json().flatten_event(true).map_event_format(|inner| Traced { inner, add }).boxed()
        }
    }
}

/// Adds the trace to lines of some format.
struct Traced<F> {
    inner: F,
    add: fn(&mut String, &dyn Display) -> fmt::Result,
}

impl<S, N, F> FormatEvent<S, N> for Traced<F>
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
        let is_traced = event.metadata().target() != CALLS;
        let Some(trace) = is_traced.then(context::trace).flatten() else {
            return self.inner.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.inner.format_event(context, Writer::new(&mut line), event)?;
        (self.add)(&mut line, &trace.id())?;
        writer.write_str(&line)
    }
}

fn add_for_people(line: &mut String, trace: &dyn Display) -> fmt::Result {
    line.truncate(line.trim_end().len());
    writeln!(line, " trace_id={trace}")
}

/// Adds it at the end of a JSON object, which is never empty.
fn add_for_machines(line: &mut String, trace: &dyn Display) -> fmt::Result {
    line.truncate(line.trim_end().len() - 1);
    writeln!(line, r#","trace_id":"{trace}"}}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_stands_at_the_end() {
        let added = |line: &str, add: fn(&mut String, &dyn Display) -> fmt::Result| {
            let mut line = line.to_owned();
            add(&mut line, &"12ab").unwrap();
            line
        };
        assert_eq!(added("WARN a text x=1\n", add_for_people), "WARN a text x=1 trace_id=12ab\n");
        let object = added("{\"message\":\"a text\"}\n", add_for_machines);
        assert_eq!(object, "{\"message\":\"a text\",\"trace_id\":\"12ab\"}\n");
    }
}
