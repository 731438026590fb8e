//! The flags that every server has, and their environment variables.

use std::{fmt, net::SocketAddr, num::NonZeroUsize, path::PathBuf, thread, time::Duration};

use crate::identity::KeyFile;

const TLS: &str = "TLS";

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

    /// File with the certificate (PEM) that the server shows to its callers, followed by those that
    /// lead to its authority; with it, all ports of services speak TLS alone, 1.2 or 1.3. This and
    /// all other files of TLS are read again when they have changed; connections that are open stay
    /// as they are
    #[arg(
        long,
        env = "MICROBLOG_TLS_CERT_FILE",
        value_name = "FILE",
        requires = "tls_key_file",
        help_heading = TLS
    )]
    pub tls_cert_file: Option<PathBuf>,

    /// File with the private key (PEM) of --tls-cert-file
    #[arg(
        long,
        env = "MICROBLOG_TLS_KEY_FILE",
        value_name = "FILE",
        requires = "tls_cert_file",
        help_heading = TLS
    )]
    pub tls_key_file: Option<PathBuf>,

    /// File with authorities (PEM): with it, a caller must show a certificate that one of them has
    /// signed, for use by clients. Without it, everybody may call
    #[arg(
        long,
        env = "MICROBLOG_TLS_CLIENT_CA_FILE",
        value_name = "FILE",
        requires = "tls_cert_file",
        help_heading = TLS
    )]
    pub tls_client_ca_file: Option<PathBuf>,

    /// File with the authorities (PEM) of services behind, which those with an https URL need: one of
    /// them must have signed the service's certificate, for the host in the URL. The system's are
    /// not trusted
    #[arg(long, env = "MICROBLOG_PEER_CA_FILE", value_name = "FILE", help_heading = TLS)]
    pub peer_ca_file: Option<PathBuf>,

    /// File with the certificate (PEM) to show to services behind that ask for one, followed by those
    /// that lead to its authority
    #[arg(
        long,
        env = "MICROBLOG_PEER_CERT_FILE",
        value_name = "FILE",
        requires_all = ["peer_key_file", "peer_ca_file"],
        help_heading = TLS
    )]
    pub peer_cert_file: Option<PathBuf>,

    /// File with the private key (PEM) of --peer-cert-file
    #[arg(
        long,
        env = "MICROBLOG_PEER_KEY_FILE",
        value_name = "FILE",
        requires = "peer_cert_file",
        help_heading = TLS
    )]
    pub peer_key_file: Option<PathBuf>,

    /// Address to answer health checks at without TLS, such as 0.0.0.0:50061: grpc.health.v1 and
    /// nothing else, as on the service's own port, and to the end of the drain. For those who cannot
    /// speak TLS, as Kubernetes' probes
    #[arg(long, env = "MICROBLOG_HEALTH_LISTEN", value_name = "ADDRESS", help_heading = TLS)]
    pub health_listen: Option<SocketAddr>,

    /// File with the keys that services behind the gateway know each other's word by: base64 or
    /// hexadecimal, at least 32 bytes each, one a line. With it, each call tells who acts, signed
    /// with the first key, and what comes without that, or signed with none of the keys, is refused.
    /// It is read again when it has changed. Without it, everybody's word is taken
    #[arg(long, env = "MICROBLOG_IDENTITY_KEY_FILE", value_name = "FILE")]
    pub identity_key_file: Option<KeyFile>,

    /// What is logged: a level (error, warn, info, debug, trace), or a list of target=level;
    /// each call's line has the target microblog::call
    #[arg(long, env = "MICROBLOG_LOG", value_name = "FILTER", default_value = "info")]
    pub log: String,

    /// How log lines are written; they go to standard error
    #[arg(long, env = "MICROBLOG_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Address of an OpenTelemetry collector (gRPC) to send traces and metrics to, such as
    /// http://127.0.0.1:4317; without one, trace context is passed on but no trace is recorded. With
    /// https, OTEL_EXPORTER_OTLP_CERTIFICATE must name a file with its authorities (PEM);
    /// _CLIENT_CERTIFICATE and _CLIENT_KEY are shown to one that asks for a certificate.
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
            .field("tls_cert_file", &self.tls_cert_file)
            .field("tls_key_file", &self.tls_key_file)
            .field("tls_client_ca_file", &self.tls_client_ca_file)
            .field("peer_ca_file", &self.peer_ca_file)
            .field("peer_cert_file", &self.peer_cert_file)
            .field("peer_key_file", &self.peer_key_file)
            .field("health_listen", &self.health_listen)
            .field("identity_key_file", &self.identity_key_file)
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
    fn zero_limits_are_rejected() {
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
    fn incomplete_tls_flags_are_rejected() {
        let whole = |flags: &[&str]| {
            let flags = flags.iter().map(|flag| format!("--{flag}=file"));
            Flags::try_parse_from(["test".to_owned()].into_iter().chain(flags)).is_ok()
        };
        for half in ["tls-cert-file", "tls-key-file", "tls-client-ca-file"] {
            assert!(!whole(&[half]), "{half}");
        }
        assert!(whole(&["tls-cert-file", "tls-key-file"]));
        assert!(whole(&["tls-cert-file", "tls-key-file", "tls-client-ca-file"]));
        for half in ["peer-cert-file", "peer-key-file"] {
            assert!(!whole(&[half]) && !whole(&["peer-ca-file", half]), "{half}");
        }
        assert!(!whole(&["peer-cert-file", "peer-key-file"]), "who does not know whom to trust");
        assert!(whole(&["peer-ca-file", "peer-cert-file", "peer-key-file"]));
    }

    #[test]
    fn otlp_endpoint_is_never_shown() {
        let secret = "--otlp-endpoint=http://user:secret@localhost";
        let flags = Flags::try_parse_from(["test", secret]).unwrap();
        assert!(flags.config.otlp_endpoint.is_some());
        assert!(!format!("{flags:?}").contains("secret"));
        let command = Flags::command();
        let endpoint = command.get_arguments().find(|flag| flag.get_id() == "otlp_endpoint");
        assert!(endpoint.unwrap().is_hide_env_values_set(), "the help shows the environment's");
    }
}
