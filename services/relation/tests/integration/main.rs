//! The relation service as its callers see it, and its atomic steps.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod acl;
mod api;
mod clock;
mod common_lists;
mod cost;
mod crash;
mod durability;
mod forget;
mod journal;
mod lost_sides;
mod one_sided;
mod record;
mod relations;
mod repair;
mod steps;
#[path = "../support/mod.rs"]
mod support;
