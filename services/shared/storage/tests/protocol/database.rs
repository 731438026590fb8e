//! The database: the commits of each history, the feed, the failover, and the renewal of the history.

use crate::cache::{HISTORIES, Value};

/// The most commits of a history.
pub(crate) const COMMITS_MAX: usize = 4;

/// A transaction that changed items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Commit {
    /// The items, one bit each.
    pub(crate) items: u8,
    /// The operation on each of them.
    pub(crate) operation: u8,
    /// The position of the feed rows, from 1.
    pub(crate) position: u8,
}

/// What was committed, in the order of commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Log {
    commits: [Commit; COMMITS_MAX],
    length: u8,
}

/// The database. The log of a history that ended stays, for the invariants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Database {
    logs: [Log; HISTORIES],
    /// The present history.
    pub(crate) history: u8,
    /// The highest position that was given.
    given: u8,
    /// The position up to which feed rows were deleted.
    pub(crate) deleted: u8,
}

impl Database {
    /// Returns the commits of `history`.
    pub(crate) fn commits(&self, history: u8) -> &[Commit] {
        let log = &self.logs[usize::from(history)];
        &log.commits[..usize::from(log.length)]
    }

    /// Gives the next position of the feed.
    pub(crate) fn give_position(&mut self) -> u8 {
        self.given += 1;
        self.given
    }

    /// Commits `operation` on `items`.
    pub(crate) fn commit(&mut self, items: u8, operation: u8, position: u8) {
        let log = &mut self.logs[usize::from(self.history)];
        log.commits[usize::from(log.length)] = Commit { items, operation, position };
        log.length += 1;
    }

    /// Promotes a standby that lacks the last `lost` commits.
    pub(crate) fn fail_over(&mut self, lost: u8) {
        let mut log = self.logs[0];
        log.length -= lost;
        log.commits[usize::from(log.length)..].fill(Commit::default());
        self.given = log.length;
        self.deleted = self.deleted.min(log.length);
        self.logs[1] = log;
        self.history = 1;
    }

    /// Begins another history with all that is committed.
    pub(crate) fn renew(&mut self) {
        self.logs[1] = self.logs[0];
        self.history = 1;
    }

    /// Returns whether `operation` is part of the present history.
    pub(crate) fn keeps(&self, operation: u8) -> bool {
        self.commits(self.history).iter().any(|commit| commit.operation == operation)
    }

    /// Returns the revision of `item` after the commits with a position up to `position`.
    pub(crate) fn revision_at(&self, history: u8, item: u8, position: u8) -> u8 {
        let commits = self.commits(history).iter();
        let changes = commits.filter(|c| c.position <= position && c.items >> item & 1 == 1);
        changes.count() as u8
    }

    /// Returns the revision of `item`.
    pub(crate) fn revision(&self, history: u8, item: u8) -> u8 {
        self.revision_at(history, item, u8::MAX)
    }

    /// Returns what `item` is at `revision`, if there is such a revision.
    pub(crate) fn value_at(&self, history: u8, item: u8, revision: u8) -> Option<Value> {
        let mut value = Value::default();
        let mut reached = 0;
        for commit in self.commits(history) {
            if reached < revision && commit.items >> item & 1 == 1 {
                value = value.with(commit.operation);
                reached += 1;
            }
        }
        (reached == revision).then_some(value)
    }

    /// Returns the last position of the feed.
    pub(crate) fn end(&self) -> u8 {
        let positions = self.commits(self.history).iter().map(|c| c.position);
        positions.max().unwrap_or(0)
    }

    /// Returns the items that have a feed row after `from`, one bit each.
    pub(crate) fn changed_since(&self, from: u8) -> u8 {
        let commits = self.commits(self.history).iter();
        let later = commits.filter(|commit| commit.position > from);
        later.fold(0, |items, commit| items | commit.items)
    }
}
