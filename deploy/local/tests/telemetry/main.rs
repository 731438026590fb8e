//! Traces and metrics of the whole system: what one call of somebody's is, seen by a collector and by
//! Prometheus.

#![allow(clippy::unwrap_used, reason = "a test's helper fails with the test")]

mod collector;
#[path = "../commands/launcher.rs"]
#[allow(dead_code, reason = "it can more than is needed here")]
mod launcher;
mod old;
mod people;
mod process;
mod scrape;
mod trace;
mod tree;

/// What the tests of separate processes start.
#[test]
fn a_service_that_the_other_tests_start() {
    process::run_if_started();
}
