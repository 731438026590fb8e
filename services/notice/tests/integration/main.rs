//! The notice service as its callers see it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod acl;
mod expiry;
mod feeds;
mod invalid_requests;
mod kills;
mod kinds;
mod limits;
mod losses;
mod races;
mod seen;
#[path = "../support/mod.rs"]
mod support;
mod verify;
mod watch;
