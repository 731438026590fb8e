//! Notices: their kinds, subjects and acts, and how acts begin and end.

use std::{cmp::Reverse, time::Duration};

use microblog_domain::{CommentId, PostId, Stamp, UserId};
use microblog_proto::notice::NoticeKind;

/// The most accounts that a text notifies.
pub(crate) const MENTIONS_PER_TEXT: usize = 50;

/// The most acts of a notice that count, and the most of the others.
pub(crate) const ACTS_MAX: usize = 20;

/// A day, in milliseconds.
pub(crate) const DAY_MS: u64 = Duration::from_secs(24 * 60 * 60).as_millis() as u64;

/// All kinds, in the order of their numbers, which begin at 1.
pub(crate) const KINDS: [NoticeKind; 7] = [
    NoticeKind::Follow,
    NoticeKind::Mutual,
    NoticeKind::Mention,
    NoticeKind::Comment,
    NoticeKind::Reply,
    NoticeKind::Repost,
    NoticeKind::Like,
];

/// Up to which positions the notices of each kind are marked as seen, in the order of [`KINDS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen(pub(crate) [u64; KINDS.len()]);

impl Seen {
    /// Returns the position of a kind.
    pub(crate) fn of(&self, kind: NoticeKind) -> u64 {
        KINDS.iter().position(|one| *one == kind).map_or(0, |at| self.0[at])
    }

    /// Marks a kind as seen up to a position. Returns whether less was marked before.
    pub(crate) fn mark(&mut self, kind: NoticeKind, position: u64) -> bool {
        let at = KINDS.iter().position(|one| *one == kind);
        let Some(at) = at.filter(|&at| self.0[at] < position) else { return false };
        self.0[at] = position;
        true
    }
}

/// What a notice is about. An account has one notice of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// Returns the day of a change, in days since 2006.
fn day(version: Stamp) -> u64 {
    // A stamp begins with milliseconds since 2006.
    (version.get() >> 12) / DAY_MS
}

impl Subject {
    /// Returns the subject of a follow.
    pub(crate) fn follow(version: Stamp, is_mutual: bool) -> Self {
        Self::Follows { day: day(version), is_mutual }
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

    /// Returns the numbers of its columns: kind, subject and comment.
    pub(crate) fn numbers(self) -> [u64; 3] {
        let kind = self.kind() as u64;
        match self {
            Self::Follows { day, .. } => [kind, day, 0],
            Self::Likes(post) | Self::Reposts(post) | Self::Mention(post) => [kind, post.get(), 0],
            Self::Comment(_, post, comment) => [kind, post.get(), comment.get()],
        }
    }

    /// Reads the numbers of columns; `None` if no notice has them.
    pub(crate) fn read([kind, subject, comment]: [u64; 3]) -> Option<Self> {
        let kind = *KINDS.get(usize::try_from(kind).ok()?.checked_sub(1)?)?;
        let (post, comment) = (PostId::new(subject), CommentId::new(comment));
        Some(match (kind, comment) {
            (NoticeKind::Follow | NoticeKind::Mutual, None) => {
                Self::Follows { day: subject, is_mutual: kind == NoticeKind::Mutual }
            }
            (NoticeKind::Like, None) => Self::Likes(post?),
            (NoticeKind::Repost, None) => Self::Reposts(post?),
            (NoticeKind::Mention, None) => Self::Mention(post?),
            (NoticeKind::Mention | NoticeKind::Comment | NoticeKind::Reply, Some(comment)) => {
                Self::Comment(kind, post?, comment)
            }
            _ => return None,
        })
    }
}

/// An act of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Act {
    /// Its id within the notice: that of the account, repost, comment or post.
    pub(crate) id: u64,
    pub(crate) actor: UserId,
    /// Of its last change.
    pub(crate) version: Stamp,
    /// Its place among the acts of the account's notices.
    pub(crate) position: u64,
    pub(crate) state: ActState,
}

/// Whether an act counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActState {
    /// It counts.
    Counts,
    /// It was undone after it was marked as seen.
    UndoneSeen,
    /// It was undone before it was marked as seen.
    UndoneUnseen,
}

impl ActState {
    const fn byte(self) -> u8 {
        match self {
            Self::Counts => 1,
            Self::UndoneSeen => 2,
            Self::UndoneUnseen => 3,
        }
    }

    const fn read(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Counts,
            2 => Self::UndoneSeen,
            3 => Self::UndoneUnseen,
            _ => return None,
        })
    }
}

impl Act {
    /// The length of an act in bytes: four numbers, little endian, and its state.
    const BYTES: usize = 33;

    pub(crate) fn counts(&self) -> bool {
        self.state == ActState::Counts
    }

    /// Returns whether the act keeps its position if it begins again.
    fn keeps_position(&self, version: Stamp) -> bool {
        match self.state {
            ActState::Counts => true,
            ActState::UndoneSeen => day(self.version) == day(version),
            ActState::UndoneUnseen => false,
        }
    }

    /// Packs acts.
    pub(crate) fn pack<'a>(acts: impl IntoIterator<Item = &'a Self>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for Self { id, actor, version, position, state } in acts {
            for number in [*id, actor.get(), version.get(), *position] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            bytes.push(state.byte());
        }
        bytes
    }

    /// Reads packed acts; `None` if they are damaged.
    pub(crate) fn unpack(bytes: &[u8]) -> Option<Vec<Self>> {
        let (packed, []) = bytes.as_chunks::<{ Self::BYTES }>() else { return None };
        let number = |bytes: &[u8]| Some(u64::from_le_bytes(*bytes.first_chunk::<8>()?));
        let act = |act: &[u8; Self::BYTES]| {
            Some(Self {
                id: number(&act[..])?,
                actor: UserId::new(number(&act[8..])?)?,
                version: Stamp::new(number(&act[16..])?)?,
                position: number(&act[24..])?,
                state: ActState::read(act[32])?,
            })
        };
        packed.iter().map(act).collect()
    }
}

/// The row of a notice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NoticeRow {
    /// How many acts that counted were removed for newer ones.
    pub(crate) earlier: u64,
    /// The newest acts that count, and the newest ones of the others, in any order.
    pub(crate) acts: Vec<Act>,
}

impl NoticeRow {
    /// Returns how many acts count.
    pub(crate) fn counting(&self) -> usize {
        self.acts.iter().filter(|act| act.counts()).count()
    }

    /// Returns the position: that of the newest act that counts, or else of the newest one.
    pub(crate) fn position(&self) -> u64 {
        let newest = self.acts.iter().max_by_key(|act| (act.counts(), act.position));
        newest.map_or(0, |act| act.position)
    }

    /// Returns whether it has an act, also one that was undone.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.acts.iter().any(|act| act.id == id)
    }

    /// Records an act. A new one gets the position `next`. Returns its position; `None` if nothing changes:
    /// the change was applied before.
    pub(crate) fn begin(
        &mut self,
        id: u64,
        actor: UserId,
        version: Stamp,
        next: u64,
    ) -> Option<u64> {
        let known = self.acts.iter().position(|act| act.id == id);
        let position = match known.map(|at| self.acts[at]) {
            Some(act) if version < act.version => return None,
            Some(act) if version == act.version && act.counts() => return None,
            Some(act) if act.keeps_position(version) => act.position,
            _ => next,
        };
        if let Some(at) = known {
            self.acts.swap_remove(at);
        }
        self.put(Act { id, actor, version, position, state: ActState::Counts });
        Some(position)
    }

    /// Records that an act was undone, of which those up to a position are marked as seen. It may not be there:
    /// it was removed, or there was none. Returns whether something changes.
    pub(crate) fn undo(&mut self, id: u64, version: Stamp, seen: u64) -> bool {
        let is_known = |act: &Act| act.id == id && act.counts() && version >= act.version;
        let Some(at) = self.acts.iter().position(is_known) else { return false };
        let act = self.acts.swap_remove(at);
        let state = match act.position > seen {
            true => ActState::UndoneUnseen,
            false => ActState::UndoneSeen,
        };
        self.put(Act { version, state, ..act });
        true
    }

    // Adds an act. Removes the oldest one beyond the newest, of those that count or of the others.
    fn put(&mut self, act: Act) {
        self.acts.push(act);
        let is_alike = |(_, other): &(usize, &Act)| other.counts() == act.counts();
        let alike = self.acts.iter().enumerate().filter(is_alike);
        if alike.clone().count() > ACTS_MAX
            && let Some((oldest, _)) = alike.min_by_key(|(_, act)| act.position)
        {
            self.acts.swap_remove(oldest);
            self.earlier += u64::from(act.counts());
        }
    }
}

/// A notice of an account, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// The position of its newest act.
    pub(crate) position: u64,
    pub(crate) subject: Subject,
    /// Its acts that count, newest first.
    pub(crate) acts: Vec<Act>,
    /// How many earlier acts it has.
    pub(crate) earlier: u64,
}

impl Notice {
    /// Returns a notice; `None` if no act counts.
    pub(crate) fn new(
        subject: Subject,
        NoticeRow { earlier, mut acts }: NoticeRow,
    ) -> Option<Self> {
        acts.retain(Act::counts);
        acts.sort_unstable_by_key(|act| Reverse(act.position));
        let position = acts.first()?.position;
        Some(Self { position, subject, acts, earlier })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTOR: UserId = UserId::new(8).unwrap();

    /// A version at a time of a day, in milliseconds.
    fn version(day: u64, ms: u64) -> Stamp {
        Stamp::new((day * DAY_MS + ms) << 12).unwrap()
    }

    #[test]
    fn subjects_are_read_as_they_are_written() {
        let (post, comment) = (PostId::new(40).unwrap(), CommentId::new(44).unwrap());
        for (subject, numbers) in [
            (Subject::Follows { day: 900, is_mutual: false }, [1, 900, 0]),
            (Subject::Follows { day: 0, is_mutual: true }, [2, 0, 0]),
            (Subject::Mention(post), [3, 40, 0]),
            (Subject::Comment(NoticeKind::Mention, post, comment), [3, 40, 44]),
            (Subject::Comment(NoticeKind::Comment, post, comment), [4, 40, 44]),
            (Subject::Comment(NoticeKind::Reply, post, comment), [5, 40, 44]),
            (Subject::Reposts(post), [6, 40, 0]),
            (Subject::Likes(post), [7, 40, 0]),
        ] {
            assert_eq!(subject.numbers(), numbers);
            assert_eq!(Subject::read(numbers), Some(subject));
        }
        for numbers in [[0, 40, 0], [8, 40, 0], [7, 0, 0], [7, 40, 44], [1, 1, 1], [4, 40, 0]] {
            assert_eq!(Subject::read(numbers), None, "{numbers:?}");
        }
    }

    #[test]
    fn days_begin_at_midnight() {
        let day = |stamp| match Subject::follow(stamp, false) {
            Subject::Follows { day, .. } => day,
            _ => unreachable!("a follow"),
        };
        let versions = [version(7, 0), version(7, 86_399_999), version(8, 0)];
        assert_eq!(versions.map(day), [7, 7, 8]);
    }

    #[test]
    fn an_act_that_was_seen_keeps_its_position_on_its_day() {
        for (seen, again, expected) in [
            (5, version(7, 3), 5),
            (5, version(8, 3), 9),
            // It was not marked as seen before it was undone.
            (4, version(7, 3), 9),
        ] {
            let mut notice = NoticeRow::default();
            assert_eq!(notice.begin(1, ACTOR, version(7, 1), 5), Some(5));
            assert!(notice.undo(1, version(7, 2), seen));
            assert_eq!((notice.counting(), notice.position()), (0, 5));
            assert_eq!(notice.begin(1, ACTOR, again, 9), Some(expected), "{seen}");
            assert_eq!((notice.counting(), notice.position()), (1, expected));
        }
    }

    #[test]
    fn a_change_that_was_applied_before_has_no_effect() {
        let mut notice = NoticeRow::default();
        let [first, second, third] = [1, 2, 3].map(|ms| version(7, ms));
        notice.begin(1, ACTOR, first, 5);
        assert_eq!(notice.begin(1, ACTOR, first, 6), None);
        assert!(notice.undo(1, second, 0) && !notice.undo(1, second, 0));
        assert_eq!(notice.begin(1, ACTOR, first, 6), None);
        assert_eq!(notice.begin(1, ACTOR, third, 6), Some(6));
        let before = notice.clone();
        assert_eq!(notice.begin(1, ACTOR, first, 7), None);
        assert!(!notice.undo(1, second, 0) && !notice.undo(2, third, 0));
        assert_eq!(notice.begin(1, ACTOR, third, 7), None);
        assert_eq!(notice, before);
    }

    #[test]
    fn a_notice_has_its_newest_acts_and_counts_the_others() {
        let mut notice = NoticeRow::default();
        for n in 1..=25 {
            notice.begin(n, ACTOR, version(7, n), n);
        }
        assert_eq!((notice.counting(), notice.earlier, notice.position()), (20, 5, 25));
        assert!(!notice.has(5) && notice.has(6));
        // Those are counted, not known.
        assert!(!notice.undo(5, version(7, 40), 0));
        for n in 6..=25 {
            assert!(notice.undo(n, version(7, 40), 0));
        }
        assert_eq!((notice.counting(), notice.earlier, notice.acts.len()), (0, 5, 20));
        assert_eq!(Notice::new(Subject::Mention(PostId::new(4).unwrap()), notice), None);
    }

    #[test]
    fn fuzz_acts() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|packed| {
            if let Some(acts) = Act::unpack(packed) {
                assert_eq!(Act::pack(&acts), *packed);
            }
        });
    }
}
