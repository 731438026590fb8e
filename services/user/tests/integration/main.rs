//! The user service as its callers see it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod acl;
mod api;
mod changes;
mod churn;
mod cost;
mod deletion;
mod external_accounts;
mod imports;
mod invalid_requests;
mod kills;
mod losses;
mod names;
mod process;
mod races;
mod sessions;
#[path = "../support/mod.rs"]
mod support;
mod verify;
