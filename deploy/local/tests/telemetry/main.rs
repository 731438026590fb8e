//! Traces and metrics of the whole system, as a collector and Prometheus receive them.

#![allow(clippy::unwrap_used, reason = "a test's helper fails with the test")]

mod client;
mod collector;
mod database_read;
#[path = "../commands/launcher.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod launcher;
mod metrics;
mod process;
mod trace;
mod tree;
