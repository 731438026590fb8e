//! Domain types of the follow graph. Pure.

use std::time::{Duration, SystemTime};

use microblog_domain::{Stamp, UserId};

/// A directed edge: `from` follows, blocks or mutes `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Edge {
    /// The follower, blocker or muter: the source.
    pub(crate) from: UserId,
    /// The target.
    pub(crate) to: UserId,
}

impl Edge {
    /// Returns the edge in the other direction.
    pub(crate) const fn reversed(self) -> Self {
        Self { from: self.to, to: self.from }
    }

    /// Returns the version of a change at a time: a stamp of the source's partition.
    pub(crate) fn version(self, time_ms: u64) -> u64 {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(time_ms);
        Stamp::first_at(time, self.from.partition()).get()
    }
}

/// A kind of edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum EdgeKind {
    /// A follow.
    Follow,
    /// A block.
    Block,
    /// A mute.
    Mute,
}

impl EdgeKind {
    /// All kinds.
    pub(crate) const ALL: [Self; 3] = [Self::Follow, Self::Block, Self::Mute];

    /// Returns the source's list of such edges.
    pub(crate) const fn outgoing(self) -> List {
        match self {
            Self::Follow => List::Following,
            Self::Block => List::Blocks,
            Self::Mute => List::Mutes,
        }
    }

    /// Returns the target's list of such edges; `None` if it has none.
    pub(crate) const fn incoming(self) -> Option<List> {
        match self {
            Self::Follow => Some(List::Followers),
            Self::Block => Some(List::BlockedBy),
            Self::Mute => None,
        }
    }
}

/// The relation state between a viewer and a target, by follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
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
    pub(crate) const fn of(follows: bool, is_follower: bool) -> Self {
        match (follows, is_follower) {
            (false, false) => Self::None,
            (true, false) => Self::Following,
            (false, true) => Self::Follower,
            (true, true) => Self::Mutual,
        }
    }

    /// Returns whether the viewer follows the target.
    pub(crate) const fn is_following(self) -> bool {
        matches!(self, Self::Following | Self::Mutual)
    }
}

/// The relation between a viewer and a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relation {
    /// The target.
    pub(crate) target: UserId,
    /// The state by follows.
    pub(crate) state: State,
    /// The requested lists of the viewer that contain the target.
    pub(crate) lists: ListSet,
    /// The time of the viewer's follow, in Unix ms; 0 if there is none, or if it was not requested.
    pub(crate) following_since_ms: u64,
}

/// Optional parts of relations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Include {
    /// The lists of the viewer in which targets are looked up.
    pub(crate) lists: ListSet,
    /// The time of the viewer's newest follow.
    pub(crate) newest_following: bool,
    /// The times of the viewer's follows of the targets.
    pub(crate) following_since: bool,
}

/// The lengths of a user's lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// The number of accounts that the user follows.
    pub(crate) following: u64,
    /// The number of followers.
    pub(crate) followers: u64,
    /// The number of mutual follows.
    pub(crate) mutuals: u64,
}

macro_rules! lists {
    ($($(#[$doc:meta])* $list:ident $name:literal,)*) => {
        /// A list of a user: accounts with times. It is an item of the storage library.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) enum List {
            $($(#[$doc])* $list,)*
        }

        impl List {
            /// All lists.
            pub(crate) const ALL: [Self; [$($name),*].len()] = [$(Self::$list),*];

            /// Returns the name in keys, columns and the feed.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$list => $name,)*
                }
            }
        }
    };
}

lists! {
    /// Accounts that the user follows.
    Following "following",
    /// Accounts that follow the user.
    Followers "followers",
    /// Accounts that do both. The time is that of the later follow.
    Mutuals "mutuals",
    /// Accounts that the user blocks.
    Blocks "blocks",
    /// Accounts that block the user. Never shown to the user.
    BlockedBy "blocked_by",
    /// Accounts that the user mutes.
    Mutes "mutes",
}

impl List {
    /// Returns whether only the user may read the list.
    pub(crate) const fn is_private(self) -> bool {
        match self {
            Self::Following | Self::Followers | Self::Mutuals => false,
            Self::Blocks | Self::BlockedBy | Self::Mutes => true,
        }
    }

    /// Returns the edge of an entry: from or to the user of the list.
    pub(crate) const fn edge(self, user: UserId, peer: UserId) -> Edge {
        match self {
            Self::Followers | Self::BlockedBy => Edge { from: peer, to: user },
            Self::Following | Self::Mutuals | Self::Blocks | Self::Mutes => {
                Edge { from: user, to: peer }
            }
        }
    }
}

/// A set of lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListSet(u16);

impl ListSet {
    /// Returns whether the set contains a list.
    pub(crate) const fn contains(self, list: List) -> bool {
        self.0 & Self::bit(list) != 0
    }

    /// Returns the set with a list added.
    pub(crate) const fn with(self, list: List) -> Self {
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
    fn a_set_contains_its_lists() {
        assert!(ListSet::default().iter().eq([]));
        assert!(ListSet::private().iter().eq([List::Blocks, List::BlockedBy, List::Mutes]));
        assert!(
            List::ALL.iter().copied().collect::<ListSet>().iter().eq(List::ALL.iter().copied())
        );
    }

    #[test]
    fn a_version_has_the_time_of_its_change() {
        let edge = Edge { from: UserId::new(4).unwrap(), to: UserId::new(8).unwrap() };
        let version = Stamp::new(edge.version(1_800_000_000_123)).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_123);
        assert_eq!((version.time(), version.partition()), (time, edge.from.partition()));
        assert!(edge.version(1_800_000_000_124) > edge.reversed().version(1_800_000_000_123));
    }
}
