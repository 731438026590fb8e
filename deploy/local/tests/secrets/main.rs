//! Leak tests: no log, error, response or telemetry of the servers contains a secret, under normal
//! and failing conditions.
//!
//! Each secret is a canary, a unique word. Servers get secrets by their environment, as in
//! `deploy/README.md`, and clients send them in requests. The tests collect and search all outputs.
//! Public words, which must be found, show that the outputs were searched.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test's helper fails with the test")]

mod canaries;
mod client;
mod collector;
mod help;
#[path = "../commands/launcher.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod launcher;
mod outputs;
mod separate_processes;
mod server;
mod single_process;
mod startup_errors;
mod stores;
