//! The post service as its callers see it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod acl;
mod api;
mod authors;
mod batches;
mod changes;
mod cost;
mod deletion;
mod delivery;
mod idempotency;
mod imports;
mod kills;
mod large;
mod liked;
mod losses;
mod model;
mod paging;
mod partitions;
mod races;
mod rate_limits;
#[path = "../support/mod.rs"]
mod support;
mod texts;
mod validation;
mod verify;
