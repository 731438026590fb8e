//! Domain types of the follow graph. Pure.

use microblog_domain::UserId;

/// A directed edge: `from` follows or blocks `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// The follower or blocker. Its partition has the source edge.
    pub from: UserId,
    /// The target. Its partition has the inverse edge.
    pub to: UserId,
}

/// A change of an edge, from its source side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The edge.
    pub edge: Edge,
    /// The version: a stamp of the clock of `edge.from`'s partition. A later change has a greater
    /// one.
    pub version: u64,
    /// Whether the change creates or deletes the edge.
    pub exists: bool,
}

/// A change that the inverse side does not agree with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The change as the source side was read; for an edge that never existed, a deletion at
    /// version 0.
    pub change: Change,
    /// The version of the inverse side; 0 if it has none.
    pub known: u64,
}

/// The outcome of a Redis function. `functions.lua` has the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The change was made.
    Done = 0,
    /// The change existed already and is acknowledged.
    Unchanged = 1,
    /// The change existed already and is still in the outbox.
    Pending = 2,
    /// Rejected: the target blocks the user.
    BlockedByTarget = 3,
    /// Rejected: the user blocks the target.
    TargetBlocked = 4,
    /// Rejected: the list is at its limit.
    Limit = 5,
    /// Rejected: one account is deleted.
    Forgotten = 6,
    /// The edge to delete does not exist.
    Nothing = 7,
    /// Rejected by the inverse side, which has a newer version.
    Stale = 8,
}

impl Outcome {
    /// Converts from the number.
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

/// The relation state between a viewer and a target, by follows.
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
    /// Returns the state from both directions.
    pub const fn of(follows: bool, is_follower: bool) -> Self {
        match (follows, is_follower) {
            (false, false) => Self::None,
            (true, false) => Self::Following,
            (false, true) => Self::Follower,
            (true, true) => Self::Mutual,
        }
    }

    /// Returns whether the viewer follows the target.
    pub const fn is_following(self) -> bool {
        matches!(self, Self::Following | Self::Mutual)
    }
}

/// The relation between a viewer and a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relation {
    /// The target.
    pub target: UserId,
    /// The state by follows.
    pub state: State,
    /// The requested lists of the viewer that contain the target.
    pub lists: ListSet,
    /// The version of the viewer's follow; 0 if there is none, or if it was not requested.
    pub following_version: u64,
}

/// Optional parts of relations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Include {
    /// The lists of the viewer in which targets are looked up.
    pub lists: ListSet,
    /// The version of the viewer's newest follow.
    pub newest_following: bool,
    /// The versions of the viewer's follows of the targets.
    pub following_versions: bool,
}

/// The lengths of a user's lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of accounts that the user follows.
    pub following: u64,
    /// The number of followers.
    pub followers: u64,
    /// The number of mutual follows.
    pub mutuals: u64,
}

macro_rules! lists {
    ($($(#[$doc:meta])* $list:ident,)*) => {
        /// A list of a user: accounts with versions. The record has the numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum List {
            $($(#[$doc])* $list,)*
        }

        impl List {
            /// All lists.
            pub(crate) const ALL: &[Self] = &[$(Self::$list),*];
        }
    };
}

lists! {
    /// Accounts that the user follows.
    Following,
    /// Accounts that follow the user.
    Followers,
    /// Accounts that do both.
    Mutuals,
    /// Accounts that the user blocks.
    Blocks,
    /// Accounts that block the user. Never shown to the user.
    BlockedBy,
    /// Accounts that the user mutes.
    Mutes,
}

impl List {
    /// Returns whether only the user may read the list.
    pub(crate) const fn is_private(self) -> bool {
        match self {
            Self::Following | Self::Followers | Self::Mutuals => false,
            Self::Blocks | Self::BlockedBy | Self::Mutes => true,
        }
    }

    /// Returns the names of a beginning and an end of an entry in the change journal; `None` for a
    /// list that follows from others of its account.
    pub(crate) const fn change_names(self) -> Option<[&'static str; 2]> {
        match self {
            Self::Following => Some(["follow", "unfollow"]),
            Self::Followers => Some(["followed", "unfollowed"]),
            Self::Blocks => Some(["block", "unblock"]),
            Self::BlockedBy => Some(["blocked", "unblocked"]),
            Self::Mutes => Some(["mute", "unmute"]),
            Self::Mutuals => None,
        }
    }

    /// Returns the list of the other account from which its edges follow; `None` if there is none.
    pub(crate) const fn source(self) -> Option<Self> {
        match self {
            Self::Followers => Some(Self::Following),
            Self::BlockedBy => Some(Self::Blocks),
            Self::Following | Self::Blocks | Self::Mutuals | Self::Mutes => None,
        }
    }

    /// Returns the list of the other account with the inverse edges; `None` if there are none.
    pub(crate) const fn inverse(self) -> Option<Self> {
        match self {
            Self::Following => Some(Self::Followers),
            Self::Followers => Some(Self::Following),
            Self::Blocks => Some(Self::BlockedBy),
            Self::BlockedBy => Some(Self::Blocks),
            Self::Mutuals | Self::Mutes => None,
        }
    }
}

/// A set of lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListSet(u16);

impl ListSet {
    /// Returns whether the set contains a list.
    pub const fn contains(self, list: List) -> bool {
        self.0 & Self::bit(list) != 0
    }

    /// Returns the set with a list added.
    pub const fn with(self, list: List) -> Self {
        Self(self.0 | Self::bit(list))
    }

    /// Returns all private lists, which are the states between two accounts besides follows.
    pub(crate) fn private() -> Self {
        List::ALL.iter().copied().filter(|list| list.is_private()).collect()
    }

    /// Returns the lists.
    pub(crate) fn iter(self) -> impl Iterator<Item = List> {
        List::ALL.iter().copied().filter(move |&list| self.contains(list))
    }

    const fn bit(list: List) -> u16 {
        1 << list as u16
    }
}

impl FromIterator<List> for ListSet {
    fn from_iter<T: IntoIterator<Item = List>>(lists: T) -> Self {
        lists.into_iter().fold(Self::default(), Self::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inverse_lists_are_inverse_to_each_other() {
        for &list in List::ALL {
            assert!(list.inverse().is_none_or(|other| other.inverse() == Some(list)), "{list:?}");
        }
    }

    #[test]
    fn a_set_contains_its_lists() {
        assert!(ListSet::default().iter().eq([]));
        assert!(ListSet::private().iter().eq([List::Blocks, List::BlockedBy, List::Mutes]));
        assert!(
            List::ALL.iter().copied().collect::<ListSet>().iter().eq(List::ALL.iter().copied())
        );
    }
}
