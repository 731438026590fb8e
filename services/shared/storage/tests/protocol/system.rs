//! The processes, their steps, and what may happen to the database and the cache.

use std::fmt;

use crate::cache::{self, Change, HISTORIES, ITEMS, Mark, Server, Slot};
use crate::database::Database;
use crate::rules::{Rule, Rules};
use crate::search::Model;

/// The most processes of a kind.
pub(crate) const PROCESSES: usize = 2;

/// A call of a writer: one operation on some items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    /// The items, one bit each.
    pub(crate) items: u8,
    /// The operation.
    pub(crate) operation: u8,
}

/// What takes part in a search. What is left out does not happen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scenario {
    /// The number of items.
    pub(crate) items: u8,
    /// The calls of each writer, in order.
    pub(crate) writers: [&'static [Call]; PROCESSES],
    /// Writers may install what they have changed, under a lease that they took before the commit.
    pub(crate) creates: bool,
    /// The number of loaders.
    pub(crate) loaders: usize,
    /// The number of verifiers.
    pub(crate) verifiers: usize,
    /// Writers crash.
    pub(crate) crashes: bool,
    /// Answers to writers are lost.
    pub(crate) lost_answers: bool,
    /// A command or a commit without an answer is executed later.
    pub(crate) late: bool,
    /// Entries and leases disappear.
    pub(crate) evictions: bool,
    /// A server loses all it has.
    pub(crate) flushes: bool,
    /// A replica of the cache is promoted.
    pub(crate) cache_failover: bool,
    /// The old primary of the cache stays reachable.
    pub(crate) old_primary: bool,
    /// A standby of the database is promoted that lacks at most so many commits.
    pub(crate) database_failover: Option<u8>,
    /// The history of the database is renewed, also without a reason.
    pub(crate) renewal: bool,
    /// All marks expire once.
    pub(crate) expiry: bool,
    /// The database is away once.
    pub(crate) away: bool,
    /// Verifiers forget where their last rounds ended.
    pub(crate) restarts: bool,
    /// The feed is deleted up to its end: later rows are of items that are left out.
    pub(crate) feed_deleted: bool,
}

/// Whether the database answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Presence {
    /// It does.
    #[default]
    Present,
    /// It does not: nothing is read or committed.
    Away,
    /// It does again.
    Back,
}

/// How far the failover of the cache is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Replication {
    /// The replica is empty.
    #[default]
    Empty,
    /// The replica has what the primary had once.
    Copied,
    /// The replica is a primary, and the old primary stays reachable.
    Promoted,
    /// The replica is the only server.
    Replaced,
}

/// Where a writer is in a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// Before the call.
    #[default]
    Start,
    /// The rows are locked; applies before the commit.
    Early,
    /// The rows are locked.
    Locked,
    /// The position of the feed is given.
    Positioned,
    /// Applies.
    Applying,
    /// An apply has no answer.
    Unconfirmed,
    /// After the last call, or crashed.
    Done,
}

/// A writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Writer {
    /// Where it is.
    pub(crate) stage: Stage,
    /// The number of the call.
    pub(crate) call: u8,
    /// The history of its transaction.
    pub(crate) history: u8,
    /// The revision of each item before its transaction.
    pub(crate) before: [u8; ITEMS],
    /// Whether the transaction changes them.
    pub(crate) changed: bool,
    /// Its position of the feed, without [`Rule::FeedInOrder`].
    pub(crate) position: u8,
    /// The items whose leases it took, one bit each.
    pub(crate) leased: u8,
    /// The items that are not yet confirmed, one bit each.
    pub(crate) left: u8,
    /// The servers that confirmed all items so far, one bit each.
    pub(crate) confirmed: u8,
}

/// A loader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Loader {
    /// Does nothing.
    #[default]
    Idle,
    /// Asked for the lease.
    Leased {
        /// What it loads.
        item: u8,
        /// The history of the key.
        history: u8,
    },
    /// Read the database.
    Loaded {
        /// What it loads.
        item: u8,
        /// The history of the key.
        history: u8,
        /// The history that it read.
        found: u8,
        /// The revision that it read.
        revision: u8,
        /// Whether it asked for the lease.
        leased: bool,
    },
}

/// Where a verifier is in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Round {
    /// Does nothing.
    #[default]
    Idle,
    /// Read the history, and the time, the replication id and the mark of a server.
    Begun,
    /// Applies, then writes the mark.
    Applying,
}

/// Where the last round of a verifier ended. The server was the only one of the cache for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Verified {
    /// The replication id of the server that was marked.
    pub(crate) id: u8,
    /// The history.
    pub(crate) history: u8,
    /// The position of the feed.
    pub(crate) position: u8,
}

/// A verifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Verifier {
    /// Where it is.
    pub(crate) round: Round,
    /// Where its last round ended; `None` before the first one.
    pub(crate) verified: Option<Verified>,
    /// The replication id that it read.
    pub(crate) id: u8,
    /// The mark that it read.
    pub(crate) read: Option<Mark>,
    /// The history that it knows.
    pub(crate) history: u8,
    /// The position from which it reads the feed; `None` is the beginning of the feed.
    pub(crate) from: Option<u8>,
    /// How far the feed was deleted when the round began, without [`Rule::ReachAfterRows`].
    pub(crate) deleted: u8,
    /// The highest end of the feed that it has read in any round, without [`Rule::EndInHistory`].
    pub(crate) ended: u8,
    /// The end of the feed that it read.
    pub(crate) target: u8,
    /// The items that it has to apply, one bit each.
    pub(crate) left: u8,
    /// The time before it read the feed.
    pub(crate) time: u8,
}

/// A command that a server executes later than another connection's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Late {
    /// Where it is executed.
    pub(crate) place: Place,
    /// What it applies.
    pub(crate) change: Change,
}

/// The operations that were acknowledged and are part of the present history, one bit each. Those of
/// a history are the ones that were acknowledged to a writer of this history or an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Acknowledged {
    /// By anyone, by history.
    pub(crate) all: [u8; HISTORIES],
    /// Confirmed by a server or acknowledged before it was promoted, by server and history.
    pub(crate) by_server: [[u8; HISTORIES]; 2],
    /// Before the last moment at which all marks expired.
    pub(crate) before_expiry: u8,
}

impl Acknowledged {
    /// Adds an operation of a history that the servers in `confirmed`, one bit each, have.
    pub(crate) fn add(&mut self, operation: u8, history: u8, confirmed: u8) {
        for history in usize::from(history)..HISTORIES {
            self.all[history] |= 1 << operation;
            for (server, operations) in self.by_server.iter_mut().enumerate() {
                operations[history] |= (confirmed >> server & 1) << operation;
            }
        }
    }

    /// Takes away what a failover of the database lost.
    fn retain(&mut self, kept: u8) {
        self.all = self.all.map(|operations| operations & kept);
        self.by_server = self.by_server.map(|server| server.map(|operations| operations & kept));
        self.before_expiry &= kept;
    }
}

/// All of the system at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The database.
    pub(crate) database: Database,
    /// The primary of the cache, and its replica.
    pub(crate) servers: [Server; 2],
    /// How far the failover of the cache is.
    pub(crate) replication: Replication,
    /// What was acknowledged.
    pub(crate) acknowledged: Acknowledged,
    /// Whether a reader trusts a server, by server and history. It may have learned of the mark
    /// earlier; without it, the trust ends when the mark expires.
    pub(crate) trusted: [[bool; HISTORIES]; 2],
    /// Whether the database is away.
    pub(crate) presence: Presence,
    /// The time: 1, and 2 when all marks of 1 have expired.
    pub(crate) now: u8,
    /// The writers.
    pub(crate) writers: [Writer; PROCESSES],
    /// The loaders.
    pub(crate) loaders: [Loader; PROCESSES],
    /// The verifiers.
    pub(crate) verifiers: [Verifier; PROCESSES],
    /// A command without an answer.
    pub(crate) late: Option<Late>,
    /// A commit without an answer.
    pub(crate) pending: Option<Call>,
}

impl State {
    /// Returns the servers that answer, by number.
    pub(crate) fn reachable(&self) -> std::ops::Range<usize> {
        match self.replication {
            Replication::Promoted => 0..2,
            Replication::Replaced => 1..2,
            Replication::Empty | Replication::Copied => 0..1,
        }
    }

    /// Ends the absence of the database. Marks that were kept expire as others do.
    fn comes_back(&mut self) {
        if self.presence == Presence::Away {
            self.presence = Presence::Back;
        }
        for mark in self.servers.iter_mut().filter_map(|server| server.mark.as_mut()) {
            mark.time = mark.time.min(self.now);
        }
    }

    /// Returns the histories that a process may know.
    pub(crate) fn histories(&self) -> std::ops::RangeInclusive<u8> {
        0..=self.database.history
    }
}

/// A step of a trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    actor: &'static str,
    number: usize,
    action: &'static str,
    place: Option<Place>,
}

/// Where a step happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The server of the cache.
    pub(crate) server: usize,
    /// The item.
    pub(crate) item: u8,
    /// The history of the key.
    pub(crate) history: u8,
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}: {}", self.actor, self.number, self.action)?;
        if let Some(Place { server, item, history }) = self.place {
            write!(formatter, " (server {server}, item {item}, history {history})")?;
        }
        Ok(())
    }
}

/// The steps that are possible in a state.
pub(crate) struct Steps<'a> {
    /// The state in which they are possible.
    pub(crate) state: &'a State,
    found: &'a mut Vec<(Step, State)>,
    rules: Rules,
    actor: &'static str,
    number: usize,
}

impl Steps<'_> {
    /// Adds a step of the present actor, and the state after it.
    pub(crate) fn add(&mut self, action: &'static str, place: Option<Place>, mut after: State) {
        trust(&mut after, self.rules);
        let step = Step { actor: self.actor, number: self.number, action, place };
        self.found.push((step, after));
    }
}

/// Lets readers learn of the mark of each server.
fn trust(state: &mut State, rules: Rules) {
    for server in state.reachable() {
        let Server { id, mark, .. } = state.servers[server];
        if let Some(mark) = mark
            && (mark.id == id || !rules.has(Rule::TrustOwnId))
            && (mark.time >= state.now || !rules.has(Rule::TrustExpires))
        {
            state.trusted[server][usize::from(mark.history)] = true;
        }
    }
}

/// The protocol in a scenario.
#[derive(Clone, Copy, Debug)]
pub(crate) struct System {
    /// What takes part.
    pub(crate) scenario: Scenario,
    /// The rules that are kept.
    pub(crate) rules: Rules,
}

impl System {
    /// Returns which key has the entries of `history`.
    pub(crate) fn key(&self, history: u8) -> usize {
        if self.rules.has(Rule::HistoryInKey) { usize::from(history) } else { 0 }
    }

    /// Returns the keys of an item.
    pub(crate) fn slot<'a>(&self, state: &'a mut State, place: Place) -> &'a mut Slot {
        let Place { server, item, history } = place;
        &mut state.servers[server].slots[usize::from(item)][self.key(history)]
    }

    /// Applies a change.
    pub(crate) fn apply(&self, state: &mut State, place: Place, change: Change) {
        let slot = self.slot(state, place);
        *slot = cache::apply(*slot, change, self.rules);
    }

    /// Unlinks an item.
    pub(crate) fn unlink(&self, state: &mut State, place: Place) {
        let slot = self.slot(state, place);
        *slot = cache::unlink(*slot, self.rules);
    }

    /// Returns the place of each key, also before the replica is promoted.
    fn places(&self, state: &State) -> Vec<Place> {
        let mut places = Vec::new();
        for server in state.reachable() {
            for item in 0..self.scenario.items {
                for history in state.histories() {
                    places.push(Place { server, item, history });
                }
            }
        }
        places
    }

    fn cache_steps(&self, steps: &mut Steps<'_>) {
        if self.scenario.evictions {
            self.evictions(steps);
        }
        for server in steps.state.reachable() {
            if self.scenario.flushes {
                let mut after = *steps.state;
                after.servers[server].slots = Default::default();
                after.servers[server].mark = None;
                let place = Place { server, item: 0, history: 0 };
                steps.add("loses all keys", Some(place), after);
            }
        }
        if self.scenario.cache_failover {
            self.cache_failover(steps);
        }
        if let Some(late) = steps.state.late {
            let mut after = *steps.state;
            after.late = None;
            if steps.state.reachable().contains(&late.place.server) {
                self.apply(&mut after, late.place, late.change);
            }
            steps.add("executes a late apply", Some(late.place), after);
        }
        if self.scenario.expiry && steps.state.now == 1 {
            let mut after = *steps.state;
            after.now = 2;
            after.acknowledged.before_expiry = after.acknowledged.all[1];
            if self.rules.has(Rule::TrustExpires) {
                after.trusted = Default::default();
            }
            steps.add("lets all marks expire", None, after);
        }
    }

    fn evictions(&self, steps: &mut Steps<'_>) {
        for place in self.places(steps.state) {
            let mut after = *steps.state;
            let slot = self.slot(&mut after, place);
            if slot.entry.take().is_some() {
                steps.add("evicts an entry", Some(place), after);
            } else if slot.lease.take().is_some() {
                steps.add("lets a lease expire", Some(place), after);
            }
        }
    }

    fn cache_failover(&self, steps: &mut Steps<'_>) {
        let mut after = *steps.state;
        match after.replication {
            Replication::Empty => {
                after.replication = Replication::Copied;
                after.servers[1] = after.servers[0];
                steps.add("replicates for the last time", None, after);
            }
            Replication::Copied => {
                after.replication = Replication::Promoted;
                if !self.scenario.old_primary {
                    after.replication = Replication::Replaced;
                    after.servers[0] = Server::default();
                    after.trusted[0] = Default::default();
                }
                after.servers[1].id = 1;
                after.acknowledged.by_server[1] = after.acknowledged.all;
                steps.add("promotes the replica to server 1", None, after);
            }
            Replication::Promoted | Replication::Replaced => {}
        }
    }

    fn database_steps(&self, steps: &mut Steps<'_>) {
        let state = *steps.state;
        match state.presence {
            Presence::Present if self.scenario.away => {
                let mut after = state;
                after.presence = Presence::Away;
                after.writers.iter_mut().for_each(Writer::database_failed);
                steps.add("goes away", None, after);
            }
            Presence::Away => {
                let mut after = state;
                after.comes_back();
                steps.add("comes back", None, after);
            }
            Presence::Present | Presence::Back => {}
        }
        if let Some(call) = state.pending {
            let mut after = state;
            after.pending = None;
            let position = after.database.give_position();
            after.database.commit(call.items, call.operation, position);
            steps.add("commits what had no answer", None, after);
        }
        let end = (state.database.history, state.database.end());
        let verified = state.verifiers.iter().filter_map(|verifier| verifier.verified);
        let is_verified = verified.map(|v| (v.history, v.position)).any(|position| position == end);
        if self.scenario.feed_deleted
            && state.database.deleted < end.1
            && (is_verified || !self.rules.has(Rule::DeleteVerifiedOnly))
        {
            let mut after = state;
            after.database.deleted = end.1;
            steps.add("deletes the feed up to its end", None, after);
        }
        if self.scenario.renewal && state.database.history == 0 {
            let mut after = state;
            after.database.renew();
            steps.add("renews the history", None, after);
        }
        if let Some(lost_max) = self.scenario.database_failover
            && state.database.history == 0
        {
            let length = state.database.commits(0).len() as u8;
            for lost in 0..=lost_max.min(length) {
                steps.add(FAILOVERS[usize::from(lost)], None, self.database_failover(lost, state));
            }
        }
    }

    fn database_failover(&self, lost: u8, mut state: State) -> State {
        state.database.fail_over(lost);
        state.comes_back();
        state.pending = None;
        let kept = state.database.commits(1).iter();
        state.acknowledged.retain(kept.fold(0, |kept, commit| kept | 1 << commit.operation));
        for writer in &mut state.writers {
            writer.database_failed();
        }
        state
    }
}

const FAILOVERS: [&str; 3] = [
    "promotes a standby that lacks nothing",
    "promotes a standby that lacks the last commit",
    "promotes a standby that lacks the last two commits",
];

impl Model for System {
    type State = State;
    type Step = Step;
    type Violation = String;

    fn initial(&self) -> State {
        let mark = Some(Mark { id: 0, history: 0, position: 0, time: 1 });
        let mut state = State { now: 1, ..State::default() };
        state.servers[0].mark = mark;
        for (writer, calls) in state.writers.iter_mut().zip(self.scenario.writers) {
            *writer = Writer::before(calls.len());
        }
        trust(&mut state, self.rules);
        state
    }

    fn successors(&self, state: &State, found: &mut Vec<(Step, State)>) {
        let mut steps = Steps { state, found, rules: self.rules, actor: "writer", number: 0 };
        for writer in 0..PROCESSES {
            steps.number = writer;
            self.writer_steps(writer, &mut steps);
        }
        steps.actor = "loader";
        for loader in 0..self.scenario.loaders {
            steps.number = loader;
            self.loader_steps(loader, &mut steps);
        }
        steps.actor = "verifier";
        for verifier in 0..self.scenario.verifiers {
            steps.number = verifier;
            self.verifier_steps(verifier, &mut steps);
        }
        (steps.actor, steps.number) = ("cache", 0);
        self.cache_steps(&mut steps);
        steps.actor = "database";
        self.database_steps(&mut steps);
    }

    fn violation(&self, state: &State) -> Option<String> {
        self.violated(state)
    }

    fn goal(&self, state: &State) -> bool {
        let server = state.reachable().end - 1;
        self.quiet(state, server)
            && self.scenario.writers.iter().copied().flatten().all(|call| {
                state.database.history == 1
                    || state.acknowledged.by_server[server][0] >> call.operation & 1 == 1
            })
    }
}
