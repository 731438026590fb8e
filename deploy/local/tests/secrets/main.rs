//! Secrets stay secret: whatever the servers write, answer and send, in good times and in bad, has
//! none of them in it.
//!
//! Each secret is a canary, a word that nothing else looks like. Servers get them as
//! `deploy/README.md` says, by their environment, and people by what they type. Then all that can be
//! seen from outside is collected and searched. That it is really looked at is shown by words that
//! are nobody's secret, and must be found in it.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test's helper fails with the test")]

mod canaries;
mod collected;
mod help;
mod launched;
#[path = "../commands/launcher.rs"]
#[allow(dead_code, reason = "it can more than is needed here")]
mod launcher;
mod receiver;
mod separate;
mod server;
mod starts;
mod stores;
mod visitor;
