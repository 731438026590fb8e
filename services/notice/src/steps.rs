//! The rules of notices: what each call of a group changes. Does no I/O.
//!
//! The rows of the positions and of all accounts of the group are locked, and the notices and mentions that its
//! calls name were read later: the calls see all that was committed before.

use std::collections::{BTreeMap, BTreeSet};

use microblog_domain::{PostId, UserId};
use microblog_proto::notice::NoticeKind;
use microblog_storage::Rows;

use crate::{
    acts::{AccountChange, Change, What},
    items::NoticeItem,
    notice::{DAY_MS, NoticeRow, Seen, Subject},
    source::{Progress, Source},
};

/// The most notices of an account.
pub(crate) const NOTICES_MAX: u64 = 800;

/// The most posts that mention an account.
pub(crate) const MENTIONS_MAX: u64 = 800;

/// How many days after an account's last act its notices and mentions expire.
pub(crate) const KEPT_DAYS: u64 = 90;

/// A call that writes.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    /// Applies a part of a change feed, which is applied up to `from`, and then up to `to`.
    Apply { source: Source, from: Progress, to: Progress, changes: Vec<AccountChange> },
    /// Marks notices of some kinds as seen, up to a position.
    MarkSeen { user: UserId, kinds: Vec<NoticeKind>, position: u64 },
    /// Removes the notices and mentions of an account that had no act for long.
    Expire(UserId),
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was done, or there was nothing to do.
    Done,
    /// The feed is applied up to another position: another process follows it.
    Moved,
}

impl Call {
    /// Returns the accounts whose rows it locks.
    pub(crate) fn accounts(&self) -> Box<dyn Iterator<Item = UserId> + Send + '_> {
        match self {
            Self::Apply { changes, .. } => Box::new(changes.iter().map(|(user, _)| *user)),
            Self::MarkSeen { user, .. } | Self::Expire(user) => Box::new([*user].into_iter()),
        }
    }

    fn changes(&self) -> &[AccountChange] {
        match self {
            Self::Apply { changes, .. } => changes,
            Self::MarkSeen { .. } | Self::Expire(_) => &[],
        }
    }

    /// Returns how much work it is.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Apply { changes, .. } => changes.iter().map(|(_, it)| it.weight()).sum(),
            Self::MarkSeen { .. } => 1,
            Self::Expire(_) => EMPTIED,
        }
    }

    /// Returns the feed whose position it changes.
    pub(crate) fn source(&self) -> Option<Source> {
        match self {
            Self::Apply { source, .. } => Some(*source),
            Self::MarkSeen { .. } | Self::Expire(_) => None,
        }
    }

    /// Returns the accounts that get a row if they have none.
    pub(crate) fn new_accounts(&self) -> impl Iterator<Item = UserId> {
        let begins = |(user, change): &AccountChange| match change.what {
            What::Undo(_) | What::Unfollow(_) => None,
            What::Begin(_) | What::Follow(_) | What::Mention(..) | What::Delete => Some(*user),
        };
        self.changes().iter().filter_map(begins)
    }

    /// Returns the notices that it reads.
    pub(crate) fn notices(&self) -> impl Iterator<Item = NoticeKey> {
        let subjects = |change: &Change| match change.what {
            What::Begin(subject) | What::Undo(subject) | What::Mention(subject, _) => {
                vec![subject]
            }
            What::Follow(subject) | What::Unfollow(subject) => either_follow(subject).into(),
            What::Delete => Vec::new(),
        };
        let keys = move |(user, change): &AccountChange| {
            let user = *user;
            subjects(change).into_iter().map(move |subject| (user, subject))
        };
        self.changes().iter().flat_map(keys)
    }

    /// Returns the mentions that it reads.
    pub(crate) fn mentions(&self) -> impl Iterator<Item = (UserId, PostId)> {
        let mention = |(user, change): &AccountChange| match change.what {
            What::Mention(_, post) => Some((*user, post)),
            _ => None,
        };
        self.changes().iter().filter_map(mention)
    }
}

/// Returns the two notices of follows of a day.
fn either_follow(subject: Subject) -> [Subject; 2] {
    let with = |is_mutual| match subject {
        Subject::Follows { day, .. } => Subject::Follows { day, is_mutual },
        other => other,
    };
    [with(false), with(true)]
}

/// The work of removing all notices and mentions of an account.
const EMPTIED: usize = 64;

impl Change {
    /// Returns how much work it is: 1 for the least.
    pub(crate) fn weight(&self) -> usize {
        if self.what == What::Delete { EMPTIED } else { 1 }
    }
}

/// The key of a notice.
pub(crate) type NoticeKey = (UserId, Subject);

/// The row of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccountRow {
    pub(crate) revision: u64,
    pub(crate) mentions_revision: u64,
    /// The position of the newest act.
    pub(crate) top: u64,
    /// How many rows it has.
    pub(crate) notices: u64,
    pub(crate) mentions: u64,
    /// The day of the last act, in days since 1970; 0 if nothing expires.
    pub(crate) changed_day: u64,
    /// In Unix ms; 0 if it is not deleted.
    pub(crate) deleted_ms: u64,
    pub(crate) seen: Seen,
}

/// An item.
pub(crate) type Item = (NoticeItem, UserId);

/// The rows that the calls of a group need.
#[derive(Debug, Default)]
pub(crate) struct Locked {
    pub(crate) positions: BTreeMap<Source, Progress>,
    pub(crate) accounts: BTreeMap<UserId, AccountRow>,
    pub(crate) notices: BTreeMap<NoticeKey, NoticeRow>,
    pub(crate) mentions: BTreeMap<(UserId, PostId), ()>,
}

/// The rows that a group reads and changes.
#[derive(Debug)]
pub(crate) struct State {
    now_ms: u64,
    pub(crate) positions: Rows<Source, Progress>,
    pub(crate) accounts: Rows<UserId, AccountRow>,
    notices: Rows<NoticeKey, NoticeRow>,
    mentions: Rows<(UserId, PostId), ()>,
    /// The accounts all of whose notices and mentions are removed, before others are added.
    pub(crate) emptied: BTreeSet<UserId>,
    /// The items that have changed: all of them, and those of each call that changed some.
    pub(crate) items: BTreeSet<Item>,
    pub(crate) events: Vec<BTreeSet<Item>>,
    of_call: BTreeSet<Item>,
}

impl State {
    pub(crate) fn new(now_ms: u64, locked: Locked) -> Self {
        Self {
            now_ms,
            positions: Rows::new(locked.positions),
            accounts: Rows::new(locked.accounts),
            notices: Rows::new(locked.notices),
            mentions: Rows::new(locked.mentions),
            emptied: BTreeSet::new(),
            items: BTreeSet::new(),
            events: Vec::new(),
            of_call: BTreeSet::new(),
        }
    }

    /// Takes a call.
    pub(crate) fn take(&mut self, call: &Call) -> Outcome {
        let outcome = match call {
            Call::Apply { source, from, to, changes } => {
                if self.positions.now.get(source) != Some(from) {
                    return Outcome::Moved;
                }
                for (user, change) in changes {
                    self.apply(*user, change);
                }
                self.positions.now.insert(*source, *to);
                Outcome::Done
            }
            Call::MarkSeen { user, kinds, position } => {
                self.mark_seen(*user, kinds, *position);
                Outcome::Done
            }
            Call::Expire(user) => {
                self.expire(*user);
                Outcome::Done
            }
        };
        if !self.of_call.is_empty() {
            self.events.push(std::mem::take(&mut self.of_call));
        }
        outcome
    }

    /// Returns the notices that are new or have changed.
    pub(crate) fn written_notices(&self) -> impl Iterator<Item = (&NoticeKey, &NoticeRow)> {
        let before = self.notices.as_read();
        let is_written = |(key, row): &(&NoticeKey, &NoticeRow)| {
            self.emptied.contains(&key.0) || before.get(key) != Some(row)
        };
        self.notices.now.iter().filter(is_written)
    }

    /// Returns the mentions that are new.
    pub(crate) fn written_mentions(&self) -> impl Iterator<Item = &(UserId, PostId)> {
        let before = self.mentions.as_read();
        let is_written =
            |key: &&(UserId, PostId)| self.emptied.contains(&key.0) || !before.contains_key(key);
        self.mentions.now.keys().filter(is_written)
    }

    /// Forgets what an account has too many of. Returns these items: their oldest rows are to be removed.
    pub(crate) fn cut(&mut self) -> Vec<Item> {
        let mut cut = Vec::new();
        for (user, row) in &mut self.accounts.now {
            for (item, count, max) in [
                (NoticeItem::Notices, &mut row.notices, NOTICES_MAX),
                (NoticeItem::Mentions, &mut row.mentions, MENTIONS_MAX),
            ] {
                if *count > max {
                    *count = max;
                    cut.push((item, *user));
                }
            }
        }
        cut
    }

    /// Returns the revisions of an item, before and after.
    pub(crate) fn revisions(&self, (item, user): Item) -> (u64, u64) {
        let revision = |rows: &BTreeMap<UserId, AccountRow>| {
            rows.get(&user).map_or(0, |row| match item {
                NoticeItem::Notices => row.revision,
                NoticeItem::Mentions => row.mentions_revision,
            })
        };
        (revision(self.accounts.as_read()), revision(&self.accounts.now))
    }

    // Changes the row of an account with an item, whose revision grows once.
    fn change(&mut self, item: NoticeItem, user: UserId, change: impl FnOnce(&mut AccountRow)) {
        let Some(row) = self.accounts.now.get_mut(&user) else { return };
        change(row);
        self.of_call.insert((item, user));
        if self.items.insert((item, user)) {
            match item {
                NoticeItem::Notices => row.revision += 1,
                NoticeItem::Mentions => row.mentions_revision += 1,
            }
        }
    }

    // Returns the row of an account that is not deleted.
    fn account(&self, user: UserId) -> Option<AccountRow> {
        self.accounts.now.get(&user).copied().filter(|row| row.deleted_ms == 0)
    }

    fn apply(&mut self, user: UserId, change: &Change) {
        let Some(row) = self.account(user) else { return };
        match change.what {
            What::Begin(subject) => self.begin(user, &row, subject, change),
            What::Mention(subject, post) => {
                self.begin(user, &row, subject, change);
                if self.mentions.now.insert((user, post), ()).is_none() {
                    self.change(NoticeItem::Mentions, user, |row| row.mentions += 1);
                }
            }
            What::Follow(subject) => {
                let known = self.known_follow(user, subject, change.id);
                self.begin(user, &row, known.unwrap_or(subject), change);
            }
            What::Undo(subject) => self.undo(user, &row, subject, change),
            What::Unfollow(subject) => {
                if let Some(subject) = self.known_follow(user, subject, change.id) {
                    self.undo(user, &row, subject, change);
                }
            }
            What::Delete => {
                let now_ms = self.now_ms;
                self.empty(user, |row| row.deleted_ms = now_ms);
            }
        }
    }

    // Returns the notice of follows of a day that has an account's follow.
    fn known_follow(&self, user: UserId, subject: Subject, id: u64) -> Option<Subject> {
        let has = |subject: &Subject| {
            self.notices.now.get(&(user, *subject)).is_some_and(|notice| notice.has(id))
        };
        either_follow(subject).into_iter().find(has)
    }

    fn begin(&mut self, user: UserId, row: &AccountRow, subject: Subject, change: &Change) {
        let Some(actor) = UserId::new(change.actor) else { return };
        let known = self.notices.now.get(&(user, subject)).cloned();
        let is_new = known.is_none();
        let mut notice = known.unwrap_or_default();
        // The time, so that it is later than what a restored database has lost.
        let next = (row.top + 1).max(self.now_ms * 1000);
        let Some(position) = notice.begin(change.id, actor, change.version, next) else { return };
        self.notices.now.insert((user, subject), notice);
        let today = self.now_ms / DAY_MS;
        self.change(NoticeItem::Notices, user, |row| {
            row.notices += u64::from(is_new);
            row.top = row.top.max(position);
            row.changed_day = today;
        });
    }

    fn undo(&mut self, user: UserId, row: &AccountRow, subject: Subject, change: &Change) {
        let Some(notice) = self.notices.now.get_mut(&(user, subject)) else { return };
        if notice.undo(change.id, change.version, row.seen.of(subject.kind())) {
            self.change(NoticeItem::Notices, user, |_| {});
        }
    }

    fn mark_seen(&mut self, user: UserId, kinds: &[NoticeKind], position: u64) {
        let Some(row) = self.account(user) else { return };
        // No token is ahead of it, unless the database was set back.
        let (mut seen, position) = (row.seen, position.min(row.top));
        for kind in kinds {
            seen.mark(*kind, position);
        }
        if seen != row.seen {
            self.change(NoticeItem::Notices, user, |row| row.seen = seen);
        }
    }

    fn expire(&mut self, user: UserId) {
        let Some(row) = self.account(user) else { return };
        // It may have had an act meanwhile.
        if row.changed_day > 0 && row.changed_day + KEPT_DAYS < self.now_ms / DAY_MS {
            self.empty(user, |_| {});
        }
    }

    // Removes the notices and mentions of an account.
    fn empty(&mut self, user: UserId, change: impl FnOnce(&mut AccountRow)) {
        self.notices.now.retain(|(of, _), _| *of != user);
        self.mentions.now.retain(|(of, _), ()| *of != user);
        self.emptied.insert(user);
        self.change(NoticeItem::Mentions, user, |row| row.mentions = 0);
        self.change(NoticeItem::Notices, user, |row| {
            (row.notices, row.changed_day) = (0, 0);
            change(row);
        });
    }
}

#[cfg(test)]
mod tests {
    use microblog_domain::Stamp;

    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;
    const POST: PostId = PostId::new(40 << 12).unwrap();

    fn user(n: u64) -> UserId {
        UserId::new(n << 12).unwrap()
    }

    /// A change with its number, which is also its version's time of the day.
    fn change(to: u64, what: What, actor: u64, number: u64) -> AccountChange {
        let version = Stamp::new(number << 12).unwrap();
        let (id, actor) = (actor << 12, actor << 12);
        (user(to), Change { number, what, id, actor, version })
    }

    fn state(users: impl IntoIterator<Item = u64>) -> State {
        let accounts = users.into_iter().map(|n| (user(n), AccountRow::default())).collect();
        let positions = Source::ALL.map(|source| (source, Progress::default())).into();
        State::new(NOW_MS, Locked { positions, accounts, ..Locked::default() })
    }

    fn apply(from: u64, to: u64, changes: Vec<AccountChange>) -> Call {
        let [from, to] = [from, to].map(|applied| Progress { applied, ..Progress::default() });
        Call::Apply { source: Source::Post, from, to, changes }
    }

    #[test]
    fn a_part_of_a_feed_is_applied_once() {
        let mut state = state([1]);
        let likes = Subject::Likes(POST);
        let first = apply(0, 4, vec![change(1, What::Begin(likes), 2, 4)]);
        assert_eq!(state.take(&first), Outcome::Done);
        // By another process, which has read the same.
        assert_eq!(state.take(&first), Outcome::Moved);
        let second = apply(4, 5, vec![change(1, What::Begin(likes), 3, 5)]);
        assert_eq!(state.take(&second), Outcome::Done);
        let notice = &state.notices.now[&(user(1), likes)];
        let positions: Vec<_> = notice.acts.iter().map(|act| act.position).collect();
        assert_eq!(positions, [NOW_MS * 1000, NOW_MS * 1000 + 1]);
        assert_eq!(state.revisions((NoticeItem::Notices, user(1))), (0, 1));
        assert_eq!(state.events.len(), 2);
    }

    #[test]
    fn a_follow_has_one_notice_of_its_day() {
        let mut state = state([1]);
        let [follow, mutual] =
            [false, true].map(|is_mutual| Subject::Follows { day: 0, is_mutual });
        let changes = vec![
            change(1, What::Follow(follow), 2, 4),
            change(1, What::Unfollow(follow), 2, 5),
            change(1, What::Follow(mutual), 2, 6),
        ];
        state.take(&apply(0, 6, changes));
        assert_eq!(state.notices.now[&(user(1), follow)].counting(), 1);
        assert!(!state.notices.now.contains_key(&(user(1), mutual)));
        state.take(&apply(6, 7, vec![change(1, What::Unfollow(mutual), 2, 7)]));
        assert_eq!(state.notices.now[&(user(1), follow)].counting(), 0);
    }

    #[test]
    fn a_deleted_account_has_nothing() {
        let mut state = state([1]);
        let changes = vec![
            change(1, What::Mention(Subject::Mention(POST), POST), 2, 4),
            change(1, What::Delete, 1, 5),
            change(1, What::Begin(Subject::Likes(POST)), 2, 6),
        ];
        state.take(&apply(0, 6, changes));
        let row = state.accounts.now[&user(1)];
        assert_eq!((row.notices, row.mentions, row.deleted_ms), (0, 0, NOW_MS));
        assert!(state.emptied.contains(&user(1)));
        assert_eq!((state.written_notices().count(), state.written_mentions().count()), (0, 0));
    }

    #[test]
    fn what_expires_is_removed_before_what_comes() {
        let mut state = state([1]);
        let mention =
            |number| vec![change(1, What::Mention(Subject::Mention(POST), POST), 2, number)];
        state.take(&apply(0, 4, mention(4)));
        state.take(&Call::Expire(user(1)));
        assert!(!state.emptied.contains(&user(1)), "it is not old");
        state.now_ms += (KEPT_DAYS + 1) * DAY_MS;
        state.take(&Call::Expire(user(1)));
        let row = state.accounts.now[&user(1)];
        assert_eq!((row.notices, row.mentions, row.changed_day), (0, 0, 0));
        state.take(&apply(4, 5, mention(5)));
        let row = state.accounts.now[&user(1)];
        assert_eq!((row.notices, row.mentions), (1, 1));
        assert_eq!((state.written_notices().count(), state.written_mentions().count()), (1, 1));
    }

    #[test]
    fn seen_positions_only_grow_and_are_not_ahead() {
        let mut state = state([1]);
        let likes = Subject::Likes(POST);
        state.take(&apply(0, 4, vec![change(1, What::Begin(likes), 2, 4)]));
        let mut mark = |position| {
            let kinds = vec![NoticeKind::Like];
            state.take(&Call::MarkSeen { user: user(1), kinds, position });
            state.accounts.now[&user(1)].seen.of(NoticeKind::Like)
        };
        let top = NOW_MS * 1000;
        assert_eq!([mark(7), mark(5), mark(u64::MAX), mark(7)], [7, 7, top, top]);
        assert_eq!(state.accounts.now[&user(1)].seen.of(NoticeKind::Repost), 0);
    }
}
