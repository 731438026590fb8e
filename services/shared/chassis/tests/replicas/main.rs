//! A peer that has several addresses: which of them are called, and what is called again.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod addresses;
mod caller;
mod endings;
mod outages;
mod replica;
mod retries;
#[path = "../support/mod.rs"]
mod support;
