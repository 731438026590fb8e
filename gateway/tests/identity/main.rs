//! Signed caller identities, passed from the gateway to the services.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod rejected;
mod servers;
mod tour;
