//! The services whose change feeds are followed, and how far each is applied.

use microblog_proto::common::{ChangeKind, FeedPosition};

/// A service whose change feed is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Source {
    User,
    Relation,
    Post,
}

impl Source {
    pub(crate) const ALL: [Self; 3] = [Self::User, Self::Relation, Self::Post];

    /// Returns the service's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Relation => "relation",
            Self::Post => "post",
        }
    }

    /// Returns the kinds of changes that matter.
    pub(crate) fn kinds(self) -> &'static [ChangeKind] {
        match self {
            Self::User => &[ChangeKind::Account],
            Self::Relation => &[ChangeKind::Follow],
            Self::Post => {
                &[ChangeKind::Post, ChangeKind::Repost, ChangeKind::Comment, ChangeKind::Like]
            }
        }
    }
}

/// How far a change feed is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The position in the feed, as two numbers: 0 at its start.
    pub(crate) sequence: u64,
    pub(crate) token: u64,
    /// The number of the last change that was applied: changes behind the position may be.
    pub(crate) applied: u64,
    /// Until when all changes are applied, in Unix ms; 0 if it is not known.
    pub(crate) read_until_ms: u64,
}

impl Progress {
    /// Returns the position; `None` at the start of the feed.
    pub(crate) fn position(&self) -> Option<FeedPosition> {
        let Self { sequence, token, .. } = *self;
        (token != 0).then_some(FeedPosition { sequence, token })
    }
}
