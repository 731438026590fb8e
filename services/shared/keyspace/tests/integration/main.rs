//! Keyspaces on real Redis servers.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod client_side_cache;
mod dedicated_connections;
mod journal;
mod pages;
mod password_file;
mod recovery;
mod replication;
mod sentinel;
#[path = "../support/mod.rs"]
mod support;
mod tls;
mod topologies;
