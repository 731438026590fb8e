//! The words of the follow graph: edges, versions, changes, states. Pure.

use microblog_domain::UserId;

/// A directed edge between two accounts: `from` follows (or blocks) `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// Who follows or blocks: the truth lies in this account's partition.
    pub from: UserId,
    /// Whom: a projection lies in this account's partition.
    pub to: UserId,
}

/// What an edge became, as the side that owns it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which edge.
    pub edge: Edge,
    /// A stamp of the partition of `edge.from`: of two changes, the later has the greater one.
    pub version: u64,
    /// Whether the edge exists since then, or has ended then.
    pub exists: bool,
}

/// A change that the target's side does not agree with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The change, as the owner's side was seen; of an edge that never was, the end at 0.
    pub change: Change,
    /// The version that the target's side knows; 0 for none.
    pub known: u64,
}

/// What an atomic step did. `functions.lua` has the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The change was made.
    Done = 0,
    /// It had been made before, and both sides know.
    Unchanged = 1,
    /// It had been made before, and the other side may not know yet.
    Pending = 2,
    /// Refused: the target blocks the user.
    BlockedByTarget = 3,
    /// Refused: the user blocks the target.
    TargetBlocked = 4,
    /// Refused: the list is as long as it may be.
    Limit = 5,
    /// Refused: one of the two is a deleted account.
    Forgotten = 6,
    /// There was nothing to end.
    Nothing = 7,
    /// Refused by the target's side, which knows of a newer change.
    Stale = 8,
}

impl Outcome {
    /// Returns the outcome with this number.
    pub const fn from_number(number: i64) -> Option<Self> {
        Some(match number {
            0 => Self::Done,
            1 => Self::Unchanged,
            2 => Self::Pending,
            3 => Self::BlockedByTarget,
            4 => Self::TargetBlocked,
            5 => Self::Limit,
            6 => Self::Forgotten,
            7 => Self::Nothing,
            8 => Self::Stale,
            _ => return None,
        })
    }
}

/// How a target stands to its viewer, as far as follows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Neither follows the other.
    None,
    /// The viewer follows the target.
    Following,
    /// The target follows the viewer.
    Follower,
    /// Each follows the other.
    Mutual,
    /// The target is the viewer.
    Own,
}

impl State {
    /// Returns the state of another account for whether the viewer follows it, and it the viewer.
    pub const fn of(follows: bool, is_follower: bool) -> Self {
        match (follows, is_follower) {
            (false, false) => Self::None,
            (true, false) => Self::Following,
            (false, true) => Self::Follower,
            (true, true) => Self::Mutual,
        }
    }
}

/// How the viewer and a target stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relation {
    /// The target.
    pub target: UserId,
    /// As far as follows go.
    pub state: State,
    /// Whether the viewer blocks the target; false if it was not asked for.
    pub blocking: bool,
    /// Whether the target blocks the viewer; false if it was not asked for.
    pub blocked_by: bool,
    /// Whether the viewer mutes the target; false if it was not asked for.
    pub muting: bool,
}

/// What to tell of relations beside their states.
#[derive(Clone, Copy, Debug, Default)]
pub struct Include {
    /// Blocks, both ways.
    pub blocks: bool,
    /// Mutes.
    pub mutes: bool,
    /// The version of the viewer's newest follow.
    pub newest_following: bool,
}

impl Include {
    /// Returns the viewer's lists that have to be asked for it.
    pub(crate) fn lists(self) -> impl Iterator<Item = List> {
        let blocks = [List::Blocks, List::BlockedBy].into_iter().filter(move |_| self.blocks);
        blocks.chain([List::Mutes].into_iter().filter(move |_| self.mutes))
    }
}

/// The lengths of a user's lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How many the user follows.
    pub following: u64,
    /// How many follow the user.
    pub followers: u64,
    /// How many do both.
    pub mutuals: u64,
}

/// A list of a user's: accounts with versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Whom the user follows.
    Following,
    /// Who follows the user.
    Followers,
    /// Who does both.
    Mutuals,
    /// Whom the user blocks.
    Blocks,
    /// Who blocks the user. Never shown.
    BlockedBy,
    /// Whom the user mutes.
    Mutes,
}
