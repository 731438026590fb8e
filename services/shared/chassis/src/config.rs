//! The flags that every server has, and their environment variables.

use std::{fmt, net::SocketAddr, num::NonZeroUsize, thread, time::Duration};

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One line for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The part of a server's configuration that does not depend on what it serves.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Server")]
// Flattened into other structs named `Config`: the groups of two would clash.
#[group(skip)]
pub struct Config {
    /// Worker threads, each with a listener and connections of its own; 0: one per core
    #[arg(long, env = "MICROBLOG_THREADS", value_name = "COUNT", default_value_t = 0)]
    pub threads: usize,

    /// Largest message taken from a caller, in bytes; larger ones are answered with
    /// RESOURCE_EXHAUSTED
    #[arg(long, env = "MICROBLOG_MAX_MESSAGE_BYTES", value_name = "BYTES", default_value_t = 4 << 20,
          value_parser = positive)]
    pub max_message_bytes: usize,

    /// Calls that one connection may have under way; the caller's side holds back more
    #[arg(long, env = "MICROBLOG_MAX_STREAMS", value_name = "COUNT", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_streams: u32,

    /// How long a connection is kept, in seconds, give or take a tenth; then its caller is asked to
    /// open another one, and what is under way goes on. 0: for as long as the caller likes. Behind
    /// one address for many replicas, it is what brings callers to those that are new
    #[arg(
        long,
        env = "MICROBLOG_MAX_CONNECTION_AGE_S",
        value_name = "SECONDS",
        default_value_t = 0
    )]
    pub max_connection_age_s: u64,

    /// Calls that the whole process may have under way; more are answered with
    /// RESOURCE_EXHAUSTED. Health checks and reflection do not count
    #[arg(long, env = "MICROBLOG_MAX_CALLS", value_name = "COUNT", default_value_t = 1024,
          value_parser = positive)]
    pub max_calls: usize,

    /// Calls that the whole process may have waiting for something to happen, such as those that
    /// watch a timeline; more are answered with RESOURCE_EXHAUSTED. They do not count among
    /// --max-calls
    #[arg(long, env = "MICROBLOG_MAX_WATCHES", value_name = "COUNT", default_value_t = 10_000,
          value_parser = positive)]
    pub max_watches: usize,

    /// Connections to each address of a service behind, per worker thread; a call takes the one with
    /// the fewest under way, and each carries as many at once as its --max-streams. Calls that are
    /// answered with a stream have others, opened as they are needed
    #[arg(long, env = "MICROBLOG_PEER_CONNECTIONS", value_name = "COUNT", default_value_t = 4,
          value_parser = positive)]
    pub peer_connections: usize,

    /// Time between two lookups of the name of a service behind, in milliseconds: each address that
    /// it has then gets its share of the calls. Where none of them answers, it is looked up at once
    #[arg(long, env = "MICROBLOG_PEER_REFRESH_MS", value_name = "MS", default_value_t = 5000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub peer_refresh_ms: u64,

    /// Time for a call whose caller sets no deadline, in milliseconds; a streaming call without
    /// a deadline has no limit
    #[arg(long, env = "MICROBLOG_DEFAULT_TIMEOUT_MS", value_name = "MS", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub default_timeout_ms: u64,

    /// Longest time a caller may ask for, in milliseconds; a deadline further off is cut to it
    #[arg(long, env = "MICROBLOG_MAX_TIMEOUT_MS", value_name = "MS", default_value_t = 60_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub max_timeout_ms: u64,

    /// Time in which a write that was begun runs to its end although its caller hung up, in
    /// milliseconds
    #[arg(long, env = "MICROBLOG_WRITE_BUDGET_MS", value_name = "MS", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub write_budget_ms: u64,

    /// Time between reporting NOT_SERVING and refusing new connections when the process is to
    /// stop, in milliseconds; load balancers need some to notice
    #[arg(long, env = "MICROBLOG_DRAIN_DELAY_MS", value_name = "MS", default_value_t = 0)]
    pub drain_delay_ms: u64,

    /// Time for calls and writes under way to end when the process is to stop, in milliseconds;
    /// what is left then is cut off
    #[arg(long, env = "MICROBLOG_DRAIN_TIMEOUT_MS", value_name = "MS", default_value_t = 20_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub drain_timeout_ms: u64,

    /// What is logged: a level (error, warn, info, debug, trace), or a list of target=level;
    /// each call's line has the target microblog::call
    #[arg(long, env = "MICROBLOG_LOG", value_name = "FILTER", default_value = "info")]
    pub log: String,

    /// How log lines are written; they go to standard error
    #[arg(long, env = "MICROBLOG_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Address of an OpenTelemetry collector (gRPC, without TLS) to send traces and metrics to, such
    /// as http://127.0.0.1:4317; without one, trace context is passed on but no trace is recorded.
    /// Of OpenTelemetry's own variables, these hold as well: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and
    /// _METRICS_ENDPOINT in its place for one signal, OTEL_EXPORTER_OTLP_HEADERS and _TIMEOUT,
    /// OTEL_TRACES_EXPORTER and OTEL_METRICS_EXPORTER where they say `none`, OTEL_SERVICE_NAME
    /// (without it, the name of the executable), OTEL_RESOURCE_ATTRIBUTES, OTEL_BSP_*,
    /// OTEL_METRIC_EXPORT_INTERVAL (in milliseconds; without it, 10 seconds), and OTEL_SDK_DISABLED:
    /// `true` switches off traces and metrics, those at --metrics-listen too
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL", hide_env_values = true)]
    pub otlp_endpoint: Option<String>,

    /// Share of the calls to record, from 0 to 1, where the caller's trace context does not
    /// decide it. Without it, OTEL_TRACES_SAMPLER says which: always_on or always_off, whatever
    /// the caller says; parentbased_always_on, parentbased_always_off or parentbased_traceidratio
    /// with OTEL_TRACES_SAMPLER_ARG, where the caller does not say (so does traceidratio, lest
    /// traces have holes); and without that, 0.01
    #[arg(long, env = "MICROBLOG_TRACE_SAMPLING", value_name = "RATIO", value_parser = parse_ratio)]
    pub trace_sampling: Option<f64>,

    /// Address to serve metrics at for Prometheus, as `GET /metrics` over HTTP, such as
    /// 0.0.0.0:9464; one for the whole process, and off without it. It needs no collector, and
    /// everybody who can reach it can read it
    #[arg(long, env = "MICROBLOG_METRICS_LISTEN", value_name = "ADDRESS")]
    pub metrics_listen: Option<SocketAddr>,
}

// The collector's address may carry a password: it never shows.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("threads", &self.threads)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("max_streams", &self.max_streams)
            .field("max_connection_age_s", &self.max_connection_age_s)
            .field("max_calls", &self.max_calls)
            .field("max_watches", &self.max_watches)
            .field("peer_connections", &self.peer_connections)
            .field("peer_refresh_ms", &self.peer_refresh_ms)
            .field("default_timeout_ms", &self.default_timeout_ms)
            .field("max_timeout_ms", &self.max_timeout_ms)
            .field("write_budget_ms", &self.write_budget_ms)
            .field("drain_delay_ms", &self.drain_delay_ms)
            .field("drain_timeout_ms", &self.drain_timeout_ms)
            .field("log", &self.log)
            .field("log_format", &self.log_format)
            .field("trace_sampling", &self.trace_sampling)
            .field("metrics_listen", &self.metrics_listen)
            .finish_non_exhaustive()
    }
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

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        config: Config,
    }

    #[test]
    fn limits_of_nothing_are_refused() {
        for flag in [
            "max-message-bytes",
            "max-streams",
            "max-calls",
            "max-watches",
            "peer-connections",
            "peer-refresh-ms",
            "default-timeout-ms",
            "max-timeout-ms",
            "write-budget-ms",
            "drain-timeout-ms",
        ] {
            let set = |value: u8| Flags::try_parse_from(["test", &format!("--{flag}={value}")]);
            assert!(set(0).is_err(), "{flag}");
            assert!(set(1).is_ok(), "{flag}");
        }
    }

    #[test]
    fn the_collectors_address_never_shows() {
        let secret = "--otlp-endpoint=http://user:secret@localhost";
        let flags = Flags::try_parse_from(["test", secret]).unwrap();
        assert!(flags.config.otlp_endpoint.is_some());
        assert!(!format!("{flags:?}").contains("secret"));
        let command = Flags::command();
        let endpoint = command.get_arguments().find(|flag| flag.get_id() == "otlp_endpoint");
        assert!(endpoint.unwrap().is_hide_env_values_set(), "the help shows the environment's");
    }
}
