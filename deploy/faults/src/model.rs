//! What must be stored, according to the calls of the clients. Shares no code with the services.
//!
//! A client makes the changes of a subject one after the other. A change that is done sets the state
//! of the subject. One whose outcome is unknown makes both states possible. A rejected one is
//! forgotten.

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::Millis;

/// What a change is about. Accounts and posts by their ids.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// An account, by its name.
    Account(String),
    Profile(u64),
    Follow(u64, u64),
    Block(u64, u64),
    Mute(u64, u64),
    /// A post, by its author and its unique text.
    Post(u64, String),
    /// A like of a post by an account.
    Like(u64, u64),
    /// A comment on a post, by its unique text.
    Comment(u64, String),
}

/// The state of a subject: `None` if it is absent. Edges and likes have no text.
pub(crate) type State = Option<String>;

/// The state of an edge or a like that exists.
pub(crate) fn present() -> State {
    Some(String::new())
}

/// A change of some subjects by one call, which may have been repeated.
struct Change {
    began: Millis,
    /// When it was acknowledged.
    done: Option<Millis>,
    state: State,
}

/// A loss of acknowledged changes: the databases have gone back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    /// Changes that were acknowledged earlier are not lost.
    pub(crate) since: Millis,
    /// Changes that began later are not lost.
    pub(crate) until: Millis,
}

/// The identifier of a change until its outcome is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending(usize);

/// What is known of a post.
#[derive(Clone, Debug)]
pub(crate) struct Post {
    pub(crate) id: u64,
    pub(crate) author: u64,
    /// The post that it repeats.
    pub(crate) root: Option<u64>,
}

/// The expected state of everything.
#[derive(Default)]
pub(crate) struct Model {
    changes: Vec<Option<Change>>,
    subjects: BTreeMap<Subject, Vec<usize>>,
    /// The ids that acknowledged calls returned: of accounts by name, of posts and comments by text.
    ids: BTreeMap<String, u64>,
    pub(crate) posts: BTreeMap<String, Post>,
    /// The authors of comments, by text.
    pub(crate) commenters: BTreeMap<String, u64>,
    /// Ids that differ between answers.
    differing_ids: Vec<String>,
    /// What calls did in spite of what is there, each with the number of changes at that moment.
    contradicted: Vec<(String, Subject, usize)>,
    /// Accounts whose session was refused, each with the time.
    refused: Vec<(u64, Millis)>,
    /// What no call may do.
    errors: Vec<String>,
    acknowledged: u64,
}

impl Model {
    /// Begins a change. Until its outcome is known, both states are possible.
    pub(crate) fn begin(&mut self, now: Millis, effects: &[(Subject, State)]) -> Vec<Pending> {
        let begin = |(subject, state): &(Subject, State)| {
            let index = self.changes.len();
            self.changes.push(Some(Change { began: now, done: None, state: state.clone() }));
            self.subjects.entry(subject.clone()).or_default().push(index);
            Pending(index)
        };
        effects.iter().map(begin).collect()
    }

    /// Ends a change that was acknowledged.
    pub(crate) fn acknowledge(&mut self, now: Millis, pending: &[Pending]) {
        self.acknowledged += 1;
        for Pending(index) in pending {
            if let Some(change) = &mut self.changes[*index] {
                change.done = Some(now);
            }
        }
    }

    /// Forgets a change that was rejected.
    pub(crate) fn reject(&mut self, pending: &[Pending]) {
        for Pending(index) in pending {
            self.changes[*index] = None;
        }
    }

    /// Remembers the id that a call returned for an account, a post or a comment.
    pub(crate) fn issue(&mut self, what: &str, id: u64) {
        match self.ids.insert(what.to_owned(), id) {
            Some(before) if before != id => {
                self.differing_ids.push(format!("`{what}` has two ids: {before} and {id}"));
            }
            _ => {}
        }
    }

    /// Returns the number of acknowledged calls.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Returns the id of an account, a post or a comment, if a call returned it.
    pub(crate) fn id(&self, what: &str) -> Option<u64> {
        self.ids.get(what).copied()
    }

    /// Returns all ids that calls returned, each with what it is of.
    pub(crate) fn issued(&self) -> impl Iterator<Item = (u64, &str)> {
        self.ids.iter().map(|(what, id)| (*id, &**what))
    }

    /// Returns the names and ids of the accounts that exist for certain.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = (String, u64)> {
        self.subjects().filter_map(|subject| match subject {
            Subject::Account(name) if self.certain(subject) == Some(present()) => {
                Some((name.clone(), self.id(name)?))
            }
            _ => None,
        })
    }

    /// Notes what a call did that this forbids, if it is there.
    pub(crate) fn contradict(&mut self, what: String, subject: Subject) {
        if self.certain(&subject) == Some(present()) {
            self.contradicted.push((what, subject, self.changes.len()));
        }
    }

    /// Notes that a session was refused, although nobody has ended it.
    pub(crate) fn refuse_session(&mut self, now: Millis, user: u64) {
        self.refused.push((user, now));
    }

    /// Notes what no call may do.
    pub(crate) fn error(&mut self, what: String) {
        self.errors.push(what);
    }

    /// Returns what no client may see.
    pub(crate) fn anomalies(&self, losses: &[Loss]) -> Vec<String> {
        let is_there = |(_, subject, changes): &&(String, Subject, usize)| {
            self.possible_after(subject, losses, *changes) == BTreeSet::from([present()])
        };
        let contradicted = self.contradicted.iter().filter(is_there);
        let contradicted =
            contradicted.map(|(what, subject, _)| format!("{what} in spite of {subject:?}"));
        // A database that has lost an account, or its newest log-in, refuses the session.
        let is_lost = |now: Millis| losses.iter().any(|loss| loss.since <= now);
        let refused = self.refused.iter().filter(|(_, now)| !is_lost(*now));
        let refused = refused.map(|(user, _)| format!("the session of {user} was refused"));
        let (errors, differing_ids) = (self.errors.clone(), self.differing_ids.clone());
        [differing_ids, errors, contradicted.collect(), refused.collect()].concat()
    }

    /// Returns the ids that were issued twice.
    pub(crate) fn repeated_ids(&self) -> Vec<u64> {
        let mut seen = BTreeSet::new();
        self.ids.values().copied().filter(|id| !seen.insert(*id)).collect()
    }

    /// Returns all subjects.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = &Subject> {
        self.subjects.keys()
    }

    /// Returns the only possible state, or `None` if there are several.
    pub(crate) fn certain(&self, subject: &Subject) -> Option<State> {
        let mut states = self.possible(subject, &[]);
        if states.len() == 1 { states.pop_first() } else { None }
    }

    /// Returns whether a subject may exist.
    pub(crate) fn may_exist(&self, subject: &Subject) -> bool {
        self.possible(subject, &[]).iter().any(Option::is_some)
    }

    /// Returns the possible states of a subject after these losses.
    pub(crate) fn possible(&self, subject: &Subject, losses: &[Loss]) -> BTreeSet<State> {
        self.possible_after(subject, losses, self.changes.len())
    }

    /// Returns the possible states after the first changes.
    fn possible_after(
        &self,
        subject: &Subject,
        losses: &[Loss],
        changes: usize,
    ) -> BTreeSet<State> {
        let mut possible = BTreeSet::from([None]);
        let indices = self.subjects.get(subject).map(Vec::as_slice).unwrap_or_default();
        let indices = indices.iter().filter(|index| **index < changes);
        for change in indices.filter_map(|index| self.changes[*index].as_ref()) {
            let survives = change.done.is_some_and(|done| {
                !losses.iter().any(|loss| change.began < loss.until && done >= loss.since)
            });
            if survives {
                possible.clear();
            }
            possible.insert(change.state.clone());
        }
        possible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGE: Subject = Subject::Follow(4, 8);

    fn follow(model: &mut Model, began: Millis, done: Option<Millis>, state: State) {
        let pending = model.begin(began, &[(EDGE, state)]);
        if let Some(done) = done {
            model.acknowledge(done, &pending);
        }
    }

    #[test]
    fn an_unknown_outcome_leaves_both_states() {
        let mut model = Model::default();
        follow(&mut model, 1, Some(2), present());
        assert_eq!(model.certain(&EDGE), Some(present()));
        follow(&mut model, 3, None, None);
        assert_eq!(model.possible(&EDGE, &[]), [None, present()].into());
        follow(&mut model, 5, Some(6), None);
        assert_eq!(model.certain(&EDGE), Some(None));
    }

    #[test]
    fn a_rejected_change_has_no_effect() {
        let mut model = Model::default();
        let pending = model.begin(1, &[(EDGE, present())]);
        model.reject(&pending);
        assert_eq!(model.certain(&EDGE), Some(None));
    }

    #[test]
    fn no_session_is_refused_unless_accounts_are_lost() {
        let mut model = Model::default();
        model.refuse_session(5, 4);
        let anomalies = |since| model.anomalies(&[Loss { since, until: 20 }]);
        assert_eq!(anomalies(5), [""; 0]);
        assert_eq!(anomalies(6), ["the session of 4 was refused"]);
    }

    #[test]
    fn a_loss_concerns_changes_of_its_time() {
        let mut model = Model::default();
        follow(&mut model, 1, Some(2), present());
        follow(&mut model, 8, Some(9), None);
        let possible = |since, until| model.possible(&EDGE, &[Loss { since, until }]);
        assert_eq!(possible(5, 20), [None, present()].into());
        assert_eq!(possible(10, 20), [None].into());
        assert_eq!(possible(5, 8), [None].into());
    }
}
