//! What this machine can do at best, to be measured in the same minute as a call of the gateway:
//! a call that does nothing ([`Echo`]), one that makes as many calls that do nothing
//! ([`ChainSystem`]), one that makes the look-ups of a call itself ([`EchoWithLookUps`]), the
//! commands that a call sends to Redis with nothing around them ([`Recording`]), and what the usual
//! recipes cost in Redis ([`classical`]).
//!
//! Servers are processes of their own, as in the real thing, with the project's own chassis.

mod call;
mod chain;
pub(crate) mod classical;
mod empty;
mod look_ups;
mod monitor;
pub(crate) mod plans;
mod recording;
mod replay;
pub(crate) mod serve;
mod servers;
mod wire;

pub(crate) use call::Target;
pub(crate) use plans::Plan;
pub(crate) use recording::Recording;
pub(crate) use replay::Replayed;
pub(crate) use servers::{ChainSystem, Echo, EchoWithLookUps};
