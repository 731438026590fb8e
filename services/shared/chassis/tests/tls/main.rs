//! TLS between servers and clients, with a certificate authority of the test.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod certificate_reload;
mod collector;
mod connections;
mod fixture;
mod handshake;
mod handshake_metrics;
mod health_port;
mod log;
mod rejected;
mod startup;
#[path = "../support/mod.rs"]
mod support;

#[test]
fn child_process() {
    support::process::run_if_started();
}
