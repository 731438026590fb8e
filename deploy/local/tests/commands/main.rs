//! Black-box tests of the commands: real processes, with exit codes and output.

#![allow(clippy::unwrap_used, reason = "a test's helper fails with the test")]

mod call;
mod changes;
mod databases;
mod errors;
mod export;
mod import;
mod launcher;
mod limits;
mod readme;
mod service_clients;
mod timelines;
mod up;
mod verify;
