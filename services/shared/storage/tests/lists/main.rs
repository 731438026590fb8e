//! A small service of lists with members, on real databases and Redis servers: writes in groups, reads,
//! and the verifier.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod addresses;
mod client_side;
mod faults;
mod groups;
mod lists;
mod losses;
mod reads;
mod streams;
