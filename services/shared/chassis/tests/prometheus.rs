//! Prometheus endpoint of a whole process.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use std::net::SocketAddr;

use microblog_testkit::PATIENCE;

use nix::sys::signal::Signal;
use support::{
    Port, get,
    process::{Process, get_answered, peer, run_if_started},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

#[test]
fn child_process() {
    run_if_started();
}

/// Starts a process with a metrics endpoint. Returns its service address and its metrics address.
fn start(flags: &str) -> (Process, SocketAddr, SocketAddr) {
    let flags = format!("--metrics-listen 127.0.0.1:0 {flags}");
    let process = Process::start("127.0.0.1:0", &flags);
    let line = process.wait(|line| line["message"] == "serving metrics");
    let metrics_address = line["address"].as_str().unwrap().parse().unwrap();
    let address = process.address();
    (process, address, metrics_address)
}

/// Sends an HTTP request; returns the head and the body of the response.
async fn scrape(address: SocketAddr, method: &str, path: &str) -> (String, String) {
    let ask = async {
        let mut connection = TcpStream::connect(address).await.unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = timeout(PATIENCE, ask).await.expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

async fn metrics(address: SocketAddr) -> String {
    scrape(address, "GET", "/metrics").await.1
}

/// Returns the value of the first series with this prefix.
fn value(metrics: &str, series: &str) -> f64 {
    let line = metrics.lines().find(|line| line.starts_with(series));
    let line = line.unwrap_or_else(|| panic!("no {series} in\n{metrics}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

const ANSWERED: &str = r#"{rpc_method="microblog.user.v1.UserService/GetUserByName",rpc_response_status_code="OK",rpc_system_name="grpc""#;

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_scrapes_metrics_without_a_collector() {
    let (process, address, metrics_address) = start("--max-calls 7");
    for _ in 0..3 {
        get_answered(address).await;
    }
    get(peer(address), "private").await.unwrap_err();
    let (head, metrics) = scrape(metrics_address, "GET", "/metrics").await;
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    let of_calls = |part: &str| format!("rpc_server_call_duration_seconds_{part}{ANSWERED}");
    assert_eq!(value(&metrics, &format!("{},le=\"+Inf\"}}", of_calls("bucket"))), 3.0);
    assert_eq!(value(&metrics, &of_calls("count")), 3.0);
    assert!(value(&metrics, &of_calls("sum")) > 0.0);
    assert!(metrics.contains("# TYPE rpc_server_call_duration_seconds histogram"));
    assert!(metrics.contains(r#"rpc_response_status_code="INTERNAL""#));
    assert_eq!(value(&metrics, "test_calls_total"), 4.0, "what a service counts is there too");
    assert_eq!(value(&metrics, r#"microblog_calls_limit{kind="call"}"#), 7.0);
    assert_eq!(value(&metrics, r#"microblog_calls_active{kind="watch"}"#), 0.0);
    assert_eq!(value(&metrics, r#"microblog_calls_rejected_total{kind="call"}"#), 0.0);
    assert_eq!(value(&metrics, "microblog_serving"), 1.0);
    assert_eq!(value(&metrics, "target_info{"), 1.0);
    let info = metrics.lines().find(|line| line.starts_with("target_info{")).unwrap();
    for label in ["service_name=\"", "service_version=\"", "service_instance_id=\""] {
        assert!(info.contains(label), "{info}");
    }

    get_answered(address).await;
    let again = self::metrics(metrics_address).await;
    assert_eq!(value(&again, &of_calls("count")), 4.0, "numbers grow from scrape to scrape");
    drop(process);
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_calls_are_counted() {
    let (process, address, metrics_address) = start("--max-calls 1");
    let stuck = tokio::spawn(get(peer(address), "stuck"));
    process.wait(|line| line["started"] == "stuck");
    get(peer(address), "").await.unwrap_err();
    let metrics = metrics(metrics_address).await;
    assert_eq!(value(&metrics, r#"microblog_calls_active{kind="call"}"#), 1.0);
    assert_eq!(value(&metrics, r#"microblog_calls_rejected_total{kind="call"}"#), 1.0);
    stuck.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_served_during_the_drain() {
    let (mut process, address, metrics_address) = start("");
    let slow = tokio::spawn(get(peer(address), "slow"));
    process.wait(|line| line["started"] == "slow");
    // A silent connection must not delay anything.
    let _silent = TcpStream::connect(metrics_address).await.unwrap();
    process.signal(Signal::SIGTERM);
    process.wait(|line| line["message"] == "stopping");
    assert!(metrics(metrics_address).await.contains("microblog_calls_active"), "while it drains");
    slow.await.unwrap().unwrap();
    assert!(process.ended().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn other_paths_and_methods_are_rejected() {
    let (_process, _, metrics_address) = start("");
    let (head, _) = scrape(metrics_address, "GET", "/").await;
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    let (head, _) = scrape(metrics_address, "POST", "/metrics").await;
    assert!(head.starts_with("HTTP/1.1 405"), "{head}");
}

#[tokio::test]
async fn metrics_address_in_use_fails_the_start() {
    let in_use = Port::take();
    let _listener = in_use.listen();
    let flags = format!("--metrics-listen {}", in_use.address());
    let mut process = Process::start("127.0.0.1:0", &flags);
    let error = format!("cannot listen on {} for metrics", in_use.address());
    process.wait(|line| line.as_str().is_some_and(|line| line.contains(&error)));
    assert!(!process.ended().success());
}
