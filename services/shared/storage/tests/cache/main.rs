//! Entries on real Redis servers: a single one and a cluster.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod changes;
mod leases;
mod marks;
mod same_bytes;
mod support;
