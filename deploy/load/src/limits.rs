//! What this machine can do at best, to be measured in the same minute as a call of the gateway:
//! a call that does nothing ([`Echo`]), one that makes as many calls that do nothing
//! ([`ChainSystem`]), the commands that a call sends to Redis with nothing around them
//! ([`Recording`]), and what the usual recipes cost in Redis ([`classical`]).
//!
//! Servers are processes of their own, as in the real thing, with the project's own chassis.

mod call;
mod chain;
mod child;
pub(crate) mod classical;
mod codec;
mod empty;
mod monitor;
pub(crate) mod plans;
mod recording;
mod replay;
pub(crate) mod serve;
mod servers;
mod stats;
mod wire;

pub(crate) use call::Target;
pub(crate) use plans::Plan;
pub(crate) use recording::Recording;
pub(crate) use replay::Replayed;
pub(crate) use servers::{ChainSystem, Echo};
