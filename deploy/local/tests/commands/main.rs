//! The commands of the program as people use them: real processes, told by their exit codes and by
//! what they say.

#![allow(clippy::unwrap_used, reason = "a test's helper fails with the test")]

mod archive;
mod export;
mod launcher;
mod limits;
mod people;
mod refusals;
mod timelines;
mod up;
mod verify;
