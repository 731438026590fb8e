//! The post service as its callers see it, and its atomic steps.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod acl;
#[allow(dead_code, unused_macros, unused_imports, reason = "no test file uses all of it")]
#[path = "../archive/aging.rs"]
mod aging;
mod api;
mod authors;
mod batches;
mod cost;
mod crash;
mod deletions;
mod delivery;
mod durability;
mod forget;
mod idempotency;
mod large;
mod paging;
mod races;
mod rate_limits;
mod record;
mod saga;
#[path = "../support/mod.rs"]
mod support;
mod validation;
mod verify;
