//! The flags that every server has, and their environment variables.

use std::{num::NonZeroUsize, thread, time::Duration};

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One line for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The part of a server's configuration that does not depend on what it serves.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Server")]
// Flattened into other structs named `Config`: the groups of two would clash.
#[group(skip)]
pub struct Config {
    /// Worker threads, each with a listener and connections of its own; 0: one per core
    #[arg(long, env = "MICROBLOG_THREADS", value_name = "COUNT", default_value_t = 0)]
    pub threads: usize,

    /// Largest message taken from a caller, in bytes; larger ones are answered with
    /// RESOURCE_EXHAUSTED
    #[arg(long, env = "MICROBLOG_MAX_MESSAGE_BYTES", value_name = "BYTES", default_value_t = 4 << 20)]
    pub max_message_bytes: usize,

    /// Calls that one connection may have under way; the caller's side holds back more
    #[arg(long, env = "MICROBLOG_MAX_STREAMS", value_name = "COUNT", default_value_t = 100)]
    pub max_streams: u32,

    /// Calls that the whole process may have under way; more are answered with
    /// RESOURCE_EXHAUSTED. Health checks and reflection do not count
    #[arg(long, env = "MICROBLOG_MAX_CALLS", value_name = "COUNT", default_value_t = 1024)]
    pub max_calls: usize,

    /// Connections to each service behind, per worker thread, used in turn; each carries as many
    /// calls at once as its --max-streams
    #[arg(long, env = "MICROBLOG_PEER_CONNECTIONS", value_name = "COUNT", default_value_t = 4,
          value_parser = positive)]
    pub peer_connections: usize,

    /// Time for a call whose caller sets no deadline, in milliseconds; a streaming call without
    /// a deadline has no limit
    #[arg(long, env = "MICROBLOG_DEFAULT_TIMEOUT_MS", value_name = "MS", default_value_t = 10_000)]
    pub default_timeout_ms: u64,

    /// Longest time a caller may ask for, in milliseconds; a deadline further off is cut to it
    #[arg(long, env = "MICROBLOG_MAX_TIMEOUT_MS", value_name = "MS", default_value_t = 60_000)]
    pub max_timeout_ms: u64,

    /// Time in which a write that was begun runs to its end although its caller hung up, in
    /// milliseconds
    #[arg(long, env = "MICROBLOG_WRITE_BUDGET_MS", value_name = "MS", default_value_t = 10_000)]
    pub write_budget_ms: u64,

    /// Time between reporting NOT_SERVING and refusing new connections when the process is to
    /// stop, in milliseconds; load balancers need some to notice
    #[arg(long, env = "MICROBLOG_DRAIN_DELAY_MS", value_name = "MS", default_value_t = 0)]
    pub drain_delay_ms: u64,

    /// Time for calls and writes under way to end when the process is to stop, in milliseconds;
    /// what is left then is cut off
    #[arg(long, env = "MICROBLOG_DRAIN_TIMEOUT_MS", value_name = "MS", default_value_t = 20_000)]
    pub drain_timeout_ms: u64,

    /// What is logged: a level (error, warn, info, debug, trace), or a list of target=level;
    /// each call's line has the target microblog::call
    #[arg(long, env = "MICROBLOG_LOG", value_name = "FILTER", default_value = "info")]
    pub log: String,

    /// How log lines are written; they go to standard error
    #[arg(long, env = "MICROBLOG_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Address of an OpenTelemetry collector (gRPC) to send traces to, such as
    /// http://127.0.0.1:4317; without one, trace context is passed on but nothing is recorded
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// Share of the calls to record, from 0 to 1, where the caller's trace context does not
    /// decide it
    #[arg(long, env = "MICROBLOG_TRACE_SAMPLING", value_name = "RATIO", default_value_t = 0.01,
          value_parser = parse_ratio)]
    pub trace_sampling: f64,
}

impl Config {
    /// Returns how many workers to run: as told, or one per core.
    pub fn workers(&self) -> usize {
        let cores = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
        if self.threads == 0 { cores() } else { self.threads }
    }

    pub(crate) fn drain_delay(&self) -> Duration {
        Duration::from_millis(self.drain_delay_ms)
    }

    pub(crate) fn drain_timeout(&self) -> Duration {
        Duration::from_millis(self.drain_timeout_ms)
    }
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    let ratio: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1.0).contains(&ratio) { Ok(ratio) } else { Err("must be from 0 to 1".to_owned()) }
}
