//! A whole process: workers on one port, signals, a second instance.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use nix::sys::signal::Signal;
use support::{
    eventually, get,
    process::{Process, get_answered, peer, run_if_started},
};

#[test]
fn child_process() {
    run_if_started();
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_share_one_port() {
    let process = Process::start("127.0.0.1:0", "");
    let address = process.address();
    let mut seen = [false; 2];
    // The kernel selects a worker for each connection, which may hand it over.
    eventually("both workers have answered", async || {
        let worker: usize = get(peer(address), "").await.unwrap().parse().unwrap();
        seen[worker] = true;
        seen == [true; 2]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_stops_the_process_after_in_flight_writes() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut process = Process::start("127.0.0.1:0", "");
        let address = process.address();
        let peer = peer(address);
        let write = tokio::spawn(async move { get(peer, "slow").await });
        process.wait(|line| line["started"] == "slow");
        // The write is in flight; its caller disconnects.
        write.abort();
        process.signal(signal);
        process.wait(|line| line["message"] == "stopping" && line["signal"] == signal.as_str());
        process.wait(|line| line["written"] == true);
        assert!(process.ended().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn panic_log_has_the_location_but_not_the_message() {
    let process = Process::start("127.0.0.1:0", "");
    get(peer(process.address()), "private").await.unwrap_err();
    let line = process.wait(|line| line["message"] == "panic");
    assert!(line["location"].as_str().unwrap().contains("process.rs"), "{line}");
    assert!(!line.to_string().contains("private"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn second_signal_exits_immediately() {
    let mut process =
        Process::start("127.0.0.1:0", "--write-budget-ms 600000 --drain-timeout-ms 600000");
    let address = process.address();
    let peer = peer(address);
    let write = tokio::spawn(async move { get(peer, "stuck").await });
    process.wait(|line| line["started"] == "stuck");
    process.signal(Signal::SIGTERM);
    process.wait(|line| line["message"] == "stopping");
    process.signal(Signal::SIGTERM);
    // The limit of the wait is below the drain timeout.
    assert!(!process.ended().success());
    write.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_timeout_cuts_off_calls_in_flight() {
    let mut process = Process::start("127.0.0.1:0", "--drain-timeout-ms 300");
    let address = process.address();
    let peer = peer(address);
    let write = tokio::spawn(async move { get(peer, "stuck").await });
    process.wait(|line| line["started"] == "stuck");
    process.signal(Signal::SIGTERM);
    process.wait(|line| line["message"] == "drain timed out, aborting the rest");
    process.ended();
    write.await.unwrap().unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn second_instance_on_a_port_fails_with_a_clear_message() {
    let first = Process::start("127.0.0.1:0", "");
    let address = first.address();
    let mut second = Process::start(&address.to_string(), "");
    let line = second.wait(|line| line["message"] == "worker failed");
    let error = line["error"].as_str().unwrap();
    assert!(error.starts_with(&format!("cannot listen on {address}: another process")), "{error}");
    assert!(!second.ended().success());
    get_answered(address).await;
}
