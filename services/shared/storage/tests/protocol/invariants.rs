//! What has to be true in each state.
//!
//! A process reads entries of the history that it knows, while it trusts the server: it learned of a
//! mark of this server and this history whose time is at most so long ago that it has not expired.
//! Acknowledged is a change once its call was answered with success. A failover of the database may
//! lose a change; it is not required from then on.
//!
//! I1: what a trusted read contains.
//!
//! - Without a failover: each change that was acknowledged before the read.
//! - After a failover of the cache: on the new primary, each change that was acknowledged before the
//!   promotion, and each one that a writer has applied there since. On the old primary, as long as a
//!   process reaches it, the changes that were applied there. On either, each change that was
//!   acknowledged before the last expiry: a process on the wrong side misses the changes of the time
//!   of a mark at most.
//! - After a failover of the database, or a renewal of its history: in the new history, the same as
//!   without. A process that still knows an old history reads what was acknowledged to writers of
//!   that history; it may miss changes of the new history until the marks of the old one have
//!   expired, and never one that was acknowledged before the last expiry.
//!
//! I2: an entry is what the database was at the entry's revision, in the entry's history. It holds at
//! all times, also for reads that are not trusted.
//!
//! I3: on a server whose mark is its own and of the present history, no entry of this history is
//! older than the position of the mark. This includes changes that nobody acknowledged, as those of
//! writers that crashed: a verifier brings them to the cache. A mark of an old history says no more
//! than I1.
//!
//! I4: when no process does anything, no command is on its way, and the mark is of the end of the
//! feed, an entry of the present history equals the database. What nobody loads may be absent.

use crate::cache::{Entry, Server};
use crate::rules::Rule;
use crate::system::{Loader, Place, Presence, Replication, Round, Stage, State, System};

impl System {
    /// Returns the first invariant that `state` violates.
    pub(crate) fn violated(&self, state: &State) -> Option<String> {
        for server in state.reachable() {
            let quiet = self.quiet(state, server);
            for item in 0..self.scenario.items {
                for history in state.histories() {
                    let slot = state.servers[server].slots[usize::from(item)][self.key(history)];
                    let place = Place { server, item, history };
                    let Some(entry) = slot.entry else { continue };
                    let violated = self
                        .unreal(state, place, entry)
                        .or_else(|| self.behind_mark(state, place, entry))
                        .or_else(|| self.misses(state, place, entry))
                        .or_else(|| quiet.then(|| self.stale(state, place, entry))?);
                    if let Some(violated) = violated {
                        return Some(format!("{violated} ({place:?}, {entry:?})"));
                    }
                }
            }
        }
        None
    }

    /// I2.
    fn unreal(&self, state: &State, place: Place, entry: Entry) -> Option<&'static str> {
        let real = |history| {
            state.database.value_at(history, place.item, entry.revision) == Some(entry.value)
        };
        let real = match self.rules.has(Rule::HistoryInKey) {
            true => real(place.history),
            false => state.histories().any(real),
        };
        (!real).then_some("I2: an entry is not the database at its revision")
    }

    /// I3.
    fn behind_mark(&self, state: &State, place: Place, entry: Entry) -> Option<&'static str> {
        let Server { id, mark, .. } = state.servers[place.server];
        let mark = mark.filter(|mark| mark.id == id && mark.history == place.history)?;
        if place.history != state.database.history {
            return None;
        }
        let covered = state.database.revision_at(place.history, place.item, mark.position);
        (entry.revision < covered).then_some("I3: an entry is older than the mark covers")
    }

    /// I1.
    fn misses(&self, state: &State, place: Place, entry: Entry) -> Option<&'static str> {
        if !self.trusted(state, place) {
            return None;
        }
        let acknowledged = state.acknowledged;
        let history = usize::from(place.history);
        let required = acknowledged.by_server[place.server][history] | acknowledged.before_expiry;
        let database = &state.database;
        let missed = database.commits(database.history).iter().any(|commit| {
            commit.items >> place.item & 1 == 1
                && required >> commit.operation & 1 == 1
                && !entry.value.contains(commit.operation)
        });
        missed.then_some("I1: a trusted read misses an acknowledged change")
    }

    /// Returns whether a reader that knows a history may trust a server.
    pub(crate) fn trusted(&self, state: &State, place: Place) -> bool {
        let history = usize::from(place.history);
        match self.rules.has(Rule::TrustOneServer) {
            true => state.trusted[place.server][history],
            false => state.trusted.iter().any(|server| server[history]),
        }
    }

    /// I4.
    fn stale(&self, state: &State, place: Place, entry: Entry) -> Option<&'static str> {
        let database = &state.database;
        let newest = database.revision(database.history, place.item);
        (place.history == database.history && entry.revision != newest)
            .then_some("I4: an entry stays stale when all is quiet")
    }

    /// Returns whether no process does anything and `server` is verified to the end of the feed.
    pub(crate) fn quiet(&self, state: &State, server: usize) -> bool {
        let Server { id, mark, .. } = state.servers[server];
        state.writers.iter().all(|writer| writer.stage == Stage::Done)
            && state.loaders.iter().all(|loader| *loader == Loader::Idle)
            && state.verifiers.iter().all(|verifier| verifier.round == Round::Idle)
            && state.late.is_none()
            && state.presence != Presence::Away
            && state.pending.is_none()
            && (!self.scenario.cache_failover
                || matches!(state.replication, Replication::Promoted | Replication::Replaced))
            && mark.is_some_and(|mark| {
                let end = (id, state.database.history, state.database.end(), state.now);
                (mark.id, mark.history, mark.position, mark.time) == end
            })
    }
}
