//! Posts that are evicted to the archive, and restored: the tier of a post is transparent to
//! callers, in every read, write and deletion, and whichever store is unavailable.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod absent;
mod aging;
mod authors;
mod backups;
mod cost;
mod counts;
mod damaged;
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
