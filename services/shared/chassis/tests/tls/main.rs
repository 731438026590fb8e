//! TLS between servers and their callers, with certificates of an authority of the test's own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod agreed;
mod collector;
mod counted;
mod log;
mod probes;
mod refused;
mod renewed;
mod starting;
#[path = "../support/mod.rs"]
mod support;
mod world;

#[test]
fn the_process_that_the_other_tests_start() {
    support::process::run_if_started();
}
