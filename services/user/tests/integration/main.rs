//! The user service as its callers see it, and its atomic steps.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod acl;
mod api;
mod churn;
mod clock;
mod crashes;
mod external_accounts;
mod invalid_requests;
mod keyspace;
mod names;
mod process;
mod races;
mod record;
mod sessions;
#[path = "../support/mod.rs"]
mod support;
