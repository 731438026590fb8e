//! Keyspaces on real Redis servers.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod client_side_cache;
mod dedicated_connections;
mod password_file;
mod recovery;
mod sentinel;
#[path = "../support/mod.rs"]
mod support;
mod tls;
mod topologies;
