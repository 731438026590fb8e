//! Posts that leave Redis for the archive, and come back: whoever calls the service does not see
//! where a post is, whatever is read, written or deleted, and whichever store is away.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod absent;
mod aging;
mod authors;
mod cost;
mod counts;
mod deletions;
mod erasure;
mod memory_limit;
mod outage;
mod races;
mod reads;
mod scroll;
#[path = "../support/mod.rs"]
mod support;
mod texts;
mod traces;
mod writes;
