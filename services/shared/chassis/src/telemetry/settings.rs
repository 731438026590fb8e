//! Telemetry settings: from flags, and from OpenTelemetry's environment variables
//! (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>) that the
//! SDK does not read itself.

use std::{env, net::SocketAddr, path::PathBuf};

use super::otlp::CollectorTls;
use crate::config::Config;

/// Low enough to have a negligible cost.
const SAMPLING_RATIO_DEFAULT: f64 = 0.01;

/// Head-based sampling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sampling {
    /// Share of sampled root traces.
    pub(crate) ratio: f64,
    /// Whether the caller's sampling decision has precedence.
    pub(crate) is_parent_based: bool,
}

/// Exporters and sampling of a process.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// OTLP endpoint of traces; without it, there are no spans.
    pub(crate) traces_endpoint: Option<String>,
    /// TLS to that collector.
    pub(crate) traces_tls: CollectorTls,
    /// OTLP endpoint of metrics.
    pub(crate) metrics_endpoint: Option<String>,
    /// TLS to that collector.
    pub(crate) metrics_tls: CollectorTls,
    /// Listen address of the Prometheus endpoint.
    pub(crate) prometheus_address: Option<SocketAddr>,
    pub(crate) sampling: Sampling,
}

impl Settings {
    /// Reads the settings of this process.
    pub(crate) fn of(config: &Config) -> Self {
        Self::read(config, |name| env::var(name).ok())
    }

    /// Returns whether any reader exports metrics.
    pub(crate) fn has_metrics(&self) -> bool {
        self.metrics_endpoint.is_some() || self.prometheus_address.is_some()
    }

    fn read(config: &Config, variable: impl Fn(&str) -> Option<String>) -> Self {
        // By the specification, an empty variable counts as unset.
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let is_off = variable("OTEL_SDK_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true"));
        let signal = |name: &str| {
            let exporter = variable(&format!("OTEL_{name}_EXPORTER"));
            let own = variable(&format!("OTEL_EXPORTER_OTLP_{name}_ENDPOINT"));
            let common = || config.otlp_endpoint.clone().filter(|endpoint| !endpoint.is_empty());
            let endpoint = own.or_else(common);
            endpoint.filter(|_| !is_off && exporter.as_deref() != Some("none"))
        };
        let tls = |name: &str| {
            let file = |what: &str| {
                let own = variable(&format!("OTEL_EXPORTER_OTLP_{name}_{what}"));
                own.or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{what}"))).map(PathBuf::from)
            };
            CollectorTls {
                authorities: file("CERTIFICATE"),
                certificate: file("CLIENT_CERTIFICATE"),
                key: file("CLIENT_KEY"),
            }
        };
        Self {
            traces_endpoint: signal("TRACES"),
            traces_tls: tls("TRACES"),
            metrics_endpoint: signal("METRICS"),
            metrics_tls: tls("METRICS"),
            prometheus_address: config.metrics_listen.filter(|_| !is_off),
            sampling: sampling(config, variable),
        }
    }
}

/// The flag has precedence: it is specific to this server.
fn sampling(config: &Config, variable: impl Fn(&str) -> Option<String>) -> Sampling {
    let parent_based = |ratio| Sampling { ratio, is_parent_based: true };
    if let Some(ratio) = config.trace_sampling {
        return parent_based(ratio);
    }
    let Some(name) = variable("OTEL_TRACES_SAMPLER") else {
        return parent_based(SAMPLING_RATIO_DEFAULT);
    };
    let argument = || {
        let ratio = variable("OTEL_TRACES_SAMPLER_ARG").and_then(|ratio| ratio.parse().ok());
        ratio.filter(|ratio| (0.0..=1.0).contains(ratio)).unwrap_or(1.0)
    };
    let (is_parent_based, root) = match name.strip_prefix("parentbased_") {
        Some(root) => (true, root),
        None => (false, &*name),
    };
    match root {
        "always_on" => Sampling { ratio: 1.0, is_parent_based },
        "always_off" => Sampling { ratio: 0.0, is_parent_based },
        // With or without the prefix: per-service decisions would leave gaps in every trace.
        "traceidratio" => parent_based(argument()),
        // An unsupported sampler counts as unset.
        _ => parent_based(SAMPLING_RATIO_DEFAULT),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        config: Config,
    }

    fn read(flags: &[&str], variables: &[(&str, &str)]) -> Settings {
        // Set by flags, so that the environment of the test run does not apply.
        let all = ["test"].iter().chain(flags);
        let config = Flags::try_parse_from(all).unwrap().config;
        let variable = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Settings::read(&config, variable)
    }

    const COLLECTOR: &[&str] = &["--otlp-endpoint=http://common", "--metrics-listen=127.0.0.1:1"];

    #[test]
    fn signals_may_have_separate_endpoints() {
        let common = read(COLLECTOR, &[]);
        assert_eq!(common.traces_endpoint.as_deref(), Some("http://common"));
        assert_eq!(common.metrics_endpoint, common.traces_endpoint);
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://own");
        assert_eq!(read(COLLECTOR, &[own]).traces_endpoint.as_deref(), Some("http://own"));
        assert_eq!(read(COLLECTOR, &[own]).metrics_endpoint, common.metrics_endpoint);
        assert_eq!(read(&[], &[own]).metrics_endpoint, None, "the other signal has no endpoint");
        let empty = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "");
        assert_eq!(read(COLLECTOR, &[empty]), common);
    }

    #[test]
    fn signals_may_have_separate_certificates() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca"),
            ("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "own-ca"),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "key"),
        ];
        let Settings { traces_tls, metrics_tls, .. } = read(&[], &variables);
        let files = |authorities: &str| CollectorTls {
            authorities: Some(authorities.into()),
            certificate: None,
            key: Some("key".into()),
        };
        assert_eq!((traces_tls, metrics_tls), (files("ca"), files("own-ca")));
    }

    #[test]
    fn signals_can_be_disabled() {
        let untraced = read(COLLECTOR, &[("OTEL_TRACES_EXPORTER", "none")]);
        assert_eq!(untraced.traces_endpoint, None);
        assert!(untraced.metrics_endpoint.is_some() && untraced.has_metrics());
        let off = read(COLLECTOR, &[("OTEL_SDK_DISABLED", "True")]);
        assert!(off.traces_endpoint.is_none() && !off.has_metrics());
        assert!(read(COLLECTOR, &[("OTEL_SDK_DISABLED", "1")]).has_metrics(), "only true is true");
        assert!(read(&COLLECTOR[1..], &[]).has_metrics(), "Prometheus alone is enough");
    }

    #[test]
    fn sampling_flag_overrides_otel_traces_sampler() {
        let sampler = |name| ("OTEL_TRACES_SAMPLER", name);
        let of = |variables: &[(&str, &str)]| {
            let Sampling { ratio, is_parent_based } = read(&[], variables).sampling;
            (ratio, is_parent_based)
        };
        let argument = ("OTEL_TRACES_SAMPLER_ARG", "0.25");
        assert_eq!(of(&[]), (0.01, true));
        assert_eq!(of(&[sampler("always_on")]), (1.0, false));
        assert_eq!(of(&[sampler("parentbased_always_off")]), (0.0, true));
        assert_eq!(of(&[sampler("traceidratio"), argument]), (0.25, true));
        assert_eq!(of(&[sampler("parentbased_traceidratio"), argument]), (0.25, true));
        assert_eq!(of(&[sampler("parentbased_traceidratio")]), (1.0, true));
        assert_eq!(of(&[sampler("xray")]), (0.01, true));
        let both = read(&["--trace-sampling=0.5"], &[sampler("always_on")]).sampling;
        assert_eq!(both, Sampling { ratio: 0.5, is_parent_based: true });
    }
}
