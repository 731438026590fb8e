//! Peers with several endpoints: load balancing, failover and retries.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod caller;
mod discovery;
mod draining;
mod failover;
mod replica;
mod retries;
#[path = "../support/mod.rs"]
mod support;
