//! The timeline service as its callers see it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod abandoned_steps;
mod acl;
mod api;
mod cost;
mod crash;
mod failover;
mod fanout_switch;
mod forget;
mod home_cache;
mod idempotent_delivery;
mod invalid_requests;
mod loss;
mod malformed_data;
mod memory_limit;
mod older_than;
mod outages;
mod scroll;
#[path = "../support/mod.rs"]
mod support;
mod unfollow;
mod watch;
