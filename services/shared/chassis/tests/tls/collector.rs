//! A collector with mutual TLS.

use microblog_testkit::WAIT_TIMEOUT;

use nix::sys::signal::Signal;
use tokio::time::timeout;

use crate::{
    fixture::Fixture,
    support::{
        collector::Collector,
        process::{Process, get_answered},
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn telemetry_is_exported_with_mutual_tls() {
    let fixture = Fixture::new();
    let mut collector = Collector::start_with(fixture.server());
    let flags = format!("--otlp-endpoint {} --trace-sampling 1", collector.secure_url());
    let file = |name| fixture.files.path(name).display().to_string();
    let variables = [
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", &*file("ca.crt")),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &*file("caller.crt")),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", &*file("caller.key")),
    ];
    let mut process = Process::start_in(&variables, "127.0.0.1:0", &flags);
    get_answered(process.address()).await;
    process.signal(Signal::SIGTERM);
    assert!(process.ended().success());
    let both = async { (collector.traces.recv().await, collector.metrics.recv().await) };
    timeout(WAIT_TIMEOUT, both).await.expect("traces and metrics");
}

#[tokio::test(flavor = "multi_thread")]
async fn https_collector_without_a_ca_file_fails_the_start() {
    let mut process = Process::start("127.0.0.1:0", "--otlp-endpoint https://127.0.0.1:1");
    process.wait(|line| {
        let line = line.as_str().unwrap_or_default();
        line.starts_with("cannot start:") && line.contains("OTEL_EXPORTER_OTLP_CERTIFICATE")
    });
    assert!(!process.ended().success());
}
