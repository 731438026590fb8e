//! Flags of every server, with their environment variables.

use std::{net::SocketAddr, num::NonZeroUsize, path::PathBuf, thread, time::Duration};

use crate::identity::KeyFile;

const TLS: &str = "TLS";

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One line of text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Configuration that does not depend on the service.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Server")]
// Without `Debug`: the address of the collector may contain a password.
// Flattened into other structs named `Config`, whose argument groups would clash.
#[group(skip)]
pub struct Config {
    /// Worker threads, each with its own listener and connections; 0: one per core
    #[arg(long, env = "MICROBLOG_THREADS", value_name = "COUNT", default_value_t = 0)]
    pub threads: usize,

    /// Largest request message, in bytes; larger ones are rejected with RESOURCE_EXHAUSTED, as are
    /// calls whose message is incomplete while such messages have 16 times as many bytes together
    #[arg(long, env = "MICROBLOG_MAX_MESSAGE_BYTES", value_name = "BYTES", default_value_t = 4 << 20,
          value_parser = positive)]
    pub max_message_bytes: usize,

    /// Concurrent streams per connection, and calls per stream of batches; more wait. The same for
    /// all servers
    #[arg(long, env = "MICROBLOG_MAX_STREAMS", value_name = "COUNT", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_streams: u32,

    /// Maximum age of a connection, in seconds; 0: unlimited. Then the server sends GOAWAY, to peers
    /// of this project earlier, and calls in flight complete. Rebalances the clients behind one
    /// address over new replicas. Differs by up to 10% between worker threads and between processes;
    /// connections of one thread that were opened together close together
    #[arg(
        long,
        env = "MICROBLOG_MAX_CONNECTION_AGE_S",
        value_name = "SECONDS",
        default_value_t = 0
    )]
    pub max_connection_age_s: u64,

    /// Calls in flight in the whole process; more are rejected with RESOURCE_EXHAUSTED. Health
    /// checks and reflection do not count. As many more may wait for the rest of their message
    #[arg(long, env = "MICROBLOG_MAX_CALLS", value_name = "COUNT", default_value_t = 1024,
          value_parser = positive)]
    pub max_calls: usize,

    /// Watches in flight in the whole process, such as those of a timeline; more are rejected with
    /// RESOURCE_EXHAUSTED. They do not count toward --max-calls
    #[arg(long, env = "MICROBLOG_MAX_WATCHES", value_name = "COUNT", default_value_t = 10_000,
          value_parser = positive)]
    pub max_watches: usize,

    /// Connections to each endpoint of a peer, per worker thread, for unary calls. Each carries up to
    /// --max-streams calls; the next one is used from half of that.
    /// Server-streaming calls use separate connections, opened on demand
    #[arg(long, env = "MICROBLOG_PEER_CONNECTIONS", value_name = "COUNT", default_value_t = 4,
          value_parser = positive)]
    pub peer_connections: usize,

    /// Interval between DNS lookups of a peer's host name, in milliseconds; calls are balanced over
    /// all addresses. The name is looked up at once if no address is reachable
    #[arg(long, env = "MICROBLOG_PEER_REFRESH_MS", value_name = "MS", default_value_t = 5000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub peer_refresh_ms: u64,

    /// Default deadline of a call whose caller sets none, in milliseconds; a streaming call without
    /// a deadline is unlimited once its request has arrived, which has this time
    #[arg(long, env = "MICROBLOG_DEFAULT_TIMEOUT_MS", value_name = "MS", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub default_timeout_ms: u64,

    /// Maximum deadline of a call, in milliseconds; a longer one is capped, except that of a streaming
    /// call
    #[arg(long, env = "MICROBLOG_MAX_TIMEOUT_MS", value_name = "MS", default_value_t = 60_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub max_timeout_ms: u64,

    /// Time for a write to complete after its caller disconnected, in milliseconds
    #[arg(long, env = "MICROBLOG_WRITE_BUDGET_MS", value_name = "MS", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub write_budget_ms: u64,

    /// Delay at shutdown between reporting NOT_SERVING and closing the listeners, in milliseconds,
    /// so that load balancers stop sending calls
    #[arg(long, env = "MICROBLOG_DRAIN_DELAY_MS", value_name = "MS", default_value_t = 0)]
    pub drain_delay_ms: u64,

    /// Maximum time for calls and writes in flight to complete at shutdown, in milliseconds; the
    /// rest is aborted
    #[arg(long, env = "MICROBLOG_DRAIN_TIMEOUT_MS", value_name = "MS", default_value_t = 20_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub drain_timeout_ms: u64,

    /// File with the server's certificate chain (PEM); with it, all service ports accept only TLS
    /// 1.2 and 1.3. All TLS files are reloaded when they change; open connections are not affected
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

    /// File with the certificate authorities (PEM) of clients; enables mutual TLS, with which each
    /// client must present a certificate for client authentication. By default, clients need no
    /// certificate
    #[arg(
        long,
        env = "MICROBLOG_TLS_CLIENT_CA_FILE",
        value_name = "FILE",
        requires = "tls_cert_file",
        help_heading = TLS
    )]
    pub tls_client_ca_file: Option<PathBuf>,

    /// File with the certificate authorities (PEM) of peers; required for https URLs. A peer's
    /// certificate must be valid for the host in its URL. The system's authorities are not trusted
    #[arg(long, env = "MICROBLOG_PEER_CA_FILE", value_name = "FILE", help_heading = TLS)]
    pub peer_ca_file: Option<PathBuf>,

    /// File with the client certificate chain (PEM), for peers that require mutual TLS
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

    /// Address of a listener without TLS for health checks only (grpc.health.v1, and GET /healthz), such
    /// as 0.0.0.0:50061; it serves until the end of the drain. It knows all services of the process by
    /// their names; the empty name stands for all of them. For clients without TLS, such as
    /// Kubernetes probes
    #[arg(long, env = "MICROBLOG_HEALTH_LISTEN", value_name = "ADDRESS", help_heading = TLS)]
    pub health_listen: Option<SocketAddr>,

    /// File with the shared HMAC keys that sign the caller identity between services: base64 or
    /// hexadecimal, at least 32 bytes each, one a line. The first key signs, all keys verify; a
    /// call without a valid signature is rejected. The file is reloaded when it changes. By
    /// default, identities are neither signed nor verified
    #[arg(long, env = "MICROBLOG_IDENTITY_KEY_FILE", value_name = "FILE")]
    pub identity_key_file: Option<KeyFile>,

    /// Log filter: a level (error, warn, info, debug, trace), or a list of target=level. The access log
    /// has the target microblog::call. The audit log of service callers, microblog::audit, is at info
    /// unless the filter names it
    #[arg(long, env = "MICROBLOG_LOG", value_name = "FILTER", default_value = "info")]
    pub log: String,

    /// Format of log lines, which go to standard error
    #[arg(long, env = "MICROBLOG_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// OTLP endpoint (gRPC) of an OpenTelemetry collector for traces and metrics, such as
    /// http://127.0.0.1:4317. By default, trace context is propagated but not recorded
    ///
    /// An https endpoint requires OTEL_EXPORTER_OTLP_CERTIFICATE, a file with the certificate
    /// authorities (PEM) of the collector. OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and
    /// OTEL_EXPORTER_OTLP_CLIENT_KEY enable mutual TLS.
    ///
    /// These standard variables apply as well: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and
    /// OTEL_EXPORTER_OTLP_METRICS_ENDPOINT (one signal only), OTEL_EXPORTER_OTLP_HEADERS,
    /// OTEL_EXPORTER_OTLP_TIMEOUT, OTEL_TRACES_EXPORTER and OTEL_METRICS_EXPORTER (`none` disables
    /// the signal), OTEL_SERVICE_NAME (default: the name of the program),
    /// OTEL_RESOURCE_ATTRIBUTES, OTEL_BSP_*, OTEL_METRIC_EXPORT_INTERVAL (in milliseconds; default:
    /// 10 seconds), and OTEL_SDK_DISABLED (`true` disables traces and metrics, including
    /// --metrics-listen).
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL", hide_env_values = true)]
    pub otlp_endpoint: Option<String>,

    /// Head-based sampling ratio, from 0 to 1, of traces that begin here. Default: as
    /// OTEL_TRACES_SAMPLER says, else 0.01
    ///
    /// OTEL_TRACES_SAMPLER may be always_on or always_off, which ignore the caller's decision; or
    /// parentbased_always_on, parentbased_always_off or parentbased_traceidratio, which follow it,
    /// and apply to traces that begin here. OTEL_TRACES_SAMPLER_ARG is the ratio. traceidratio is
    /// treated as parentbased_traceidratio, because a decision of each service would leave gaps in
    /// traces.
    #[arg(long, env = "MICROBLOG_TRACE_SAMPLING", value_name = "RATIO", value_parser = parse_ratio)]
    pub trace_sampling: Option<f64>,

    /// Listen address of the Prometheus endpoint, `GET /metrics` over HTTP, such as 0.0.0.0:9464;
    /// one per process, disabled by default. It needs no collector and has no authentication
    #[arg(long, env = "MICROBLOG_METRICS_LISTEN", value_name = "ADDRESS")]
    pub metrics_listen: Option<SocketAddr>,
}

impl Config {
    /// Returns the number of workers: as configured, or one per core.
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

    #[derive(Parser)]
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
        assert!(!whole(&["peer-cert-file", "peer-key-file"]), "certificates without authorities");
        assert!(whole(&["peer-ca-file", "peer-cert-file", "peer-key-file"]));
    }

    #[test]
    fn help_hides_the_otlp_endpoint() {
        let command = Flags::command();
        let endpoint = command.get_arguments().find(|flag| flag.get_id() == "otlp_endpoint");
        assert!(endpoint.unwrap().is_hide_env_values_set(), "the help shows the environment's");
    }
}
