//! Who acts, passed on from the gateway to the services, which believe nobody else's word.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod refused;
mod servers;
mod tour;
