//! The system end to end: the gateway before the real user and relation services, on real Redis.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod account_refusals;
mod cost;
mod deletions;
mod graph;
mod outages;
mod paging;
mod process;
mod refusals;
mod refused;
mod sessions;
mod system;
