//! The benchmark scenarios: operations of clients on a data set.

mod client;
mod methods;
mod sanity_checks;

pub(crate) use client::Client;

/// The scenarios in [`Scenario::Mixed`] and their weights: the mix of DeathStarBench's social
/// network (<https://github.com/delimitrou/DeathStarBench>).
pub(crate) const MIX: [(Scenario, u32); 3] =
    [(Scenario::Home, 6), (Scenario::UserTimeline, 3), (Scenario::Publish, 1)];

/// A scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scenario {
    /// A page of 50 followers of an account, with the viewer's relation to each
    ViewFollowers,
    /// Follow an account and, in the next call, unfollow it
    Follow,
    /// Publish a post
    Publish,
    /// The first page of the home timeline
    Home,
    /// The first page of a user timeline
    UserTimeline,
    /// 60% home, 30% user timeline, 10% publish, as in DeathStarBench's social network
    Mixed,
    /// Like a post and, in the next call, unlike it
    Like,
}
