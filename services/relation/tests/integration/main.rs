//! The relation service as its callers see it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod acl;
mod api;
mod changes;
mod common_lists;
mod cost;
mod deletion;
mod kills;
mod long_lists;
mod losses;
mod races;
mod relations;
#[path = "../support/mod.rs"]
mod support;
