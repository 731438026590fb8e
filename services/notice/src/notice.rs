//! Notices: their kinds, names and acts.

use std::{fmt, time::Duration};

use microblog_domain::{CommentId, PostId, Stamp, UserId};
use microblog_proto::notice::NoticeKind;

/// The most accounts that a text notifies.
pub(crate) const MENTIONS_PER_TEXT: usize = 50;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// All kinds, with the letters by which the store names them.
pub(crate) const KINDS: [(NoticeKind, char); 7] = [
    (NoticeKind::Follow, 'f'),
    (NoticeKind::Mutual, 'u'),
    (NoticeKind::Mention, 'm'),
    (NoticeKind::Comment, 'c'),
    (NoticeKind::Reply, 'r'),
    (NoticeKind::Repost, 's'),
    (NoticeKind::Like, 'l'),
];

/// What a notice is about. An account has one notice of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// Follows of a day: days since 2006.
    Follows { day: u64, is_mutual: bool },
    /// Likes of a post.
    Likes(PostId),
    /// Reposts of a post.
    Reposts(PostId),
    /// A post that mentions the account.
    Mention(PostId),
    /// A comment, of one of the kinds MENTION, COMMENT and REPLY.
    Comment(NoticeKind, PostId, CommentId),
}

impl Subject {
    /// Returns the subject of a follow.
    pub(crate) fn follow(version: Stamp, is_mutual: bool) -> Self {
        // A stamp begins with milliseconds since 2006.
        let day = (version.get() >> 12) / DAY.as_millis() as u64;
        Self::Follows { day, is_mutual }
    }

    /// Returns the kind.
    pub(crate) fn kind(self) -> NoticeKind {
        match self {
            Self::Follows { is_mutual: false, .. } => NoticeKind::Follow,
            Self::Follows { is_mutual: true, .. } => NoticeKind::Mutual,
            Self::Likes(_) => NoticeKind::Like,
            Self::Reposts(_) => NoticeKind::Repost,
            Self::Mention(_) => NoticeKind::Mention,
            Self::Comment(kind, ..) => kind,
        }
    }

    /// Returns the post and the comment.
    pub(crate) fn ids(self) -> (Option<PostId>, Option<CommentId>) {
        match self {
            Self::Follows { .. } => (None, None),
            Self::Likes(post) | Self::Reposts(post) | Self::Mention(post) => (Some(post), None),
            Self::Comment(_, post, comment) => (Some(post), Some(comment)),
        }
    }

    /// Parses a name; `None` for one that no notice has.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let kind = KINDS.iter().find(|(_, letter)| name.starts_with(*letter))?.0;
        let rest = &name[1..];
        let post = |text: &str| PostId::new(text.parse().ok()?);
        let comment = |text: &str| CommentId::new(text.parse().ok()?);
        Some(match (kind, rest.split_once('.')) {
            (NoticeKind::Follow | NoticeKind::Mutual, None) => {
                let (day, is_mutual) = (rest.parse().ok()?, kind == NoticeKind::Mutual);
                Self::Follows { day, is_mutual }
            }
            (NoticeKind::Like, None) => Self::Likes(post(rest)?),
            (NoticeKind::Repost, None) => Self::Reposts(post(rest)?),
            (NoticeKind::Mention, None) => Self::Mention(post(rest)?),
            (NoticeKind::Mention | NoticeKind::Comment | NoticeKind::Reply, Some((of, number))) => {
                Self::Comment(kind, post(of)?, comment(number)?)
            }
            _ => return None,
        })
    }
}

/// The name in the store.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        if let Some((_, letter)) = KINDS.iter().find(|(other, _)| *other == kind) {
            write!(f, "{letter}")?;
        }
        match *self {
            Self::Follows { day, .. } => write!(f, "{day}"),
            Self::Likes(post) | Self::Reposts(post) | Self::Mention(post) => write!(f, "{post}"),
            Self::Comment(_, post, comment) => write!(f, "{post}.{comment}"),
        }
    }
}

/// A notice of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// The position of its newest act.
    pub(crate) position: u64,
    pub(crate) subject: Subject,
    /// Its acts, newest first.
    pub(crate) acts: Vec<Act>,
    /// How many earlier acts it has.
    pub(crate) earlier: u64,
}

/// An act of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Act {
    pub(crate) actor: UserId,
    pub(crate) position: u64,
    pub(crate) version: Stamp,
}

/// The sizes of an encoded notice's parts, as `functions.lua` describes them.
const HEAD_BYTES: usize = 9;
const ACT_BYTES: usize = 33;

impl Notice {
    /// Decodes a notice; `None` if it is damaged or has no acts that count.
    pub(crate) fn decode(name: &str, position: u64, packed: &[u8]) -> Option<Self> {
        let (head, packed) = packed.split_first_chunk::<HEAD_BYTES>()?;
        let (packed, rest) = packed.as_chunks::<ACT_BYTES>();
        let number = |bytes: &[u8]| Some(u64::from_le_bytes(*bytes.first_chunk::<8>()?));
        let mut acts = Vec::with_capacity(packed.len());
        for act in packed.iter().filter(|act| act[ACT_BYTES - 1] == 1) {
            acts.push(Act {
                actor: UserId::new(number(&act[8..])?)?,
                version: Stamp::new(number(&act[16..])?)?,
                position: number(&act[24..])?,
            });
        }
        acts.sort_unstable_by_key(|act| std::cmp::Reverse(act.position));
        let is_valid = rest.is_empty() && !acts.is_empty();
        let (subject, earlier) = (Subject::parse(name)?, number(&head[1..])?);
        is_valid.then_some(Self { position, subject, acts, earlier })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_as_they_are_written() {
        let (post, comment) = (PostId::new(40).unwrap(), CommentId::new(44).unwrap());
        for (subject, name) in [
            (Subject::Follows { day: 900, is_mutual: false }, "f900"),
            (Subject::Follows { day: 0, is_mutual: true }, "u0"),
            (Subject::Likes(post), "l40"),
            (Subject::Reposts(post), "s40"),
            (Subject::Mention(post), "m40"),
            (Subject::Comment(NoticeKind::Mention, post, comment), "m40.44"),
            (Subject::Comment(NoticeKind::Comment, post, comment), "c40.44"),
            (Subject::Comment(NoticeKind::Reply, post, comment), "r40.44"),
        ] {
            assert_eq!(subject.to_string(), name);
            assert_eq!(Subject::parse(name), Some(subject));
        }
        for name in ["", "x1", "f", "f1.2", "l", "l0", "l1.2", "c1", "c1.", "m.1", "ü"] {
            assert_eq!(Subject::parse(name), None, "{name}");
        }
    }

    #[test]
    fn days_begin_at_midnight() {
        let ms = |day: u64, ms: u64| Stamp::new((day * 86_400_000 + ms) << 12).unwrap();
        let day = |stamp| match Subject::follow(stamp, false) {
            Subject::Follows { day, .. } => day,
            _ => unreachable!("a follow"),
        };
        assert_eq!([day(ms(7, 0)), day(ms(7, 86_399_999)), day(ms(8, 0))], [7, 7, 8]);
    }

    #[test]
    fn fuzz_notices() {
        bolero::check!().with_type::<(String, Vec<u8>)>().for_each(|(name, packed)| {
            if let Some(notice) = Notice::decode(name, 1, packed) {
                assert!(!notice.acts.is_empty());
            }
        });
    }
}
