//! Servers and their callers, over the network and within a process.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod call_batches;
mod connections;
mod deadlines;
mod drain;
mod exchange;
mod health;
mod identity;
mod limits;
mod local_calls;
mod peers;
mod protocols;
#[path = "../support/mod.rs"]
mod support;
mod watches;
mod web;
mod writes;
