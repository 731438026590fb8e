//! The log of all calls.

use std::{cell::RefCell, fmt, time::Duration};

use crate::clock::Millis;

/// The outcome of an attempt of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// Rejected without effect, with this code and reason.
    Rejected(String),
    /// With this code and reason.
    Unknown(String),
}

/// An attempt of a call.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) client: usize,
    pub(crate) actor: u64,
    pub(crate) call: String,
    pub(crate) began: Millis,
    pub(crate) ended: Millis,
    pub(crate) outcome: Outcome,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, actor, call, began, ended, outcome } = self;
        write!(f, "{began} {ended} client={client} actor={actor} {call} {outcome:?}")
    }
}

/// The calls of all clients, in the order of their ends.
#[derive(Default)]
pub(crate) struct Log(RefCell<Vec<Entry>>);

impl Log {
    pub(super) fn push(&self, entry: Entry) {
        self.0.borrow_mut().push(entry);
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Returns how many calls failed with a reason, from an entry on.
    pub(crate) fn count(&self, reason: &str, since: usize) -> usize {
        let has_reason = |entry: &&Entry| match &entry.outcome {
            Outcome::Done => false,
            Outcome::Rejected(text) | Outcome::Unknown(text) => text.contains(reason),
        };
        self.0.borrow()[since..].iter().filter(has_reason).count()
    }

    /// Returns how many calls had an unknown outcome, from an entry on.
    pub(crate) fn unknown(&self, since: usize) -> usize {
        let entries = self.0.borrow();
        entries[since..].iter().filter(|it| matches!(it.outcome, Outcome::Unknown(_))).count()
    }

    /// Returns how many calls that begin with a text were done, from an entry on.
    pub(crate) fn done(&self, call: &str, since: usize) -> usize {
        let is_done = |it: &&Entry| it.outcome == Outcome::Done && it.call.starts_with(call);
        self.0.borrow()[since..].iter().filter(is_done).count()
    }

    /// Returns how many calls took longer, from an entry on.
    pub(crate) fn longer_than(&self, time: Duration, since: usize) -> usize {
        let is_longer = |it: &&Entry| u128::from(it.ended - it.began) > time.as_millis();
        self.0.borrow()[since..].iter().filter(is_longer).count()
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.borrow().iter().try_for_each(|entry| writeln!(f, "{entry}"))
    }
}
