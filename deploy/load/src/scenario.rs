//! What clients do: operations of each kind, on a world that was made for it.

mod caller;
mod methods;
mod sense;

pub(crate) use caller::Caller;

/// Of what [`Scenario::Mixed`] consists, and of how much in ten operations: the mix of
/// DeathStarBench's social network (<https://github.com/delimitrou/DeathStarBench>).
pub(crate) const MIX: [(Scenario, u32); 3] =
    [(Scenario::Home, 6), (Scenario::UserTimeline, 3), (Scenario::Publish, 1)];

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scenario {
    /// A page of 50 of somebody's followers, with the viewer's relation to each
    ViewFollowers,
    /// How one account stands to another, asked of the relation service itself
    Relation,
    /// One account, with the viewer's relation to it
    ViewUser,
    /// Follow somebody and, in the next call, not any more
    Follow,
    /// Publish a post
    Publish,
    /// The first page of the home timeline
    Home,
    /// Five pages of the home timeline, as one operation
    Scroll,
    /// The first page of somebody's timeline
    UserTimeline,
    /// 60% home, 30% somebody's timeline, 10% publish: as in DeathStarBench's social network
    Mixed,
    /// Like a post and, in the next call, not any more
    Like,
    /// Register an account and log in, as one operation
    RegisterLogin,
}

impl Scenario {
    /// Returns its name as the command line knows it.
    pub(crate) fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self);
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}
