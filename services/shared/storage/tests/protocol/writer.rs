//! The steps of a writer.

use crate::cache::{self, Change, Entry, ITEMS};
use crate::rules::Rule;
use crate::system::{Call, Late, PROCESSES, Place, Presence, Stage, State, Steps, System, Writer};

/// All servers, one bit each.
const ALL_SERVERS: u8 = 0b11;

impl System {
    /// Adds what writer `number` may do.
    pub(crate) fn writer_steps(&self, number: usize, steps: &mut Steps<'_>) {
        let writer = steps.state.writers[number];
        match writer.stage {
            Stage::Start if steps.state.presence == Presence::Away => {}
            Stage::Start => self.begin(number, steps),
            Stage::Early => self.apply_early(number, steps),
            Stage::Locked if self.rules.has(Rule::LeaseBeforeCommit) => {
                self.lease_next(number, steps);
                self.position_or_commit(number, steps);
            }
            Stage::Locked | Stage::Positioned => self.position_or_commit(number, steps),
            Stage::Applying => {
                if !self.rules.has(Rule::LeaseBeforeCommit) {
                    self.lease_next(number, steps);
                }
                self.apply_next(number, steps);
            }
            Stage::Unconfirmed => self.unlink_next(number, steps),
            Stage::Done => return,
        }
        if self.scenario.crashes && writer.stage != Stage::Start {
            let mut after = *steps.state;
            self.release(writer_token(number), &mut after);
            after.writers[number] = Writer::before(0);
            steps.add("crashes", None, after);
        }
    }

    /// Gives the position of the feed apart, without [`Rule::FeedInOrder`], or commits.
    fn position_or_commit(&self, number: usize, steps: &mut Steps<'_>) {
        let is_locked = steps.state.writers[number].stage == Stage::Locked;
        if self.rules.has(Rule::FeedInOrder) || !is_locked {
            return self.commit(number, steps);
        }
        let mut after = *steps.state;
        after.writers[number].position = after.database.give_position();
        after.writers[number].stage = Stage::Positioned;
        steps.add("gets a position of the feed", None, after);
    }

    /// Takes the lease on an item that it changes, if a read of it would be trusted.
    fn lease_next(&self, number: usize, steps: &mut Steps<'_>) {
        let writer = steps.state.writers[number];
        if !self.scenario.creates || !writer.changed {
            return;
        }
        let items = (0..ITEMS).filter(|item| (writer.left & !writer.leased) >> item & 1 == 1);
        for item in items {
            for server in steps.state.reachable() {
                let place = Place { server, item: item as u8, history: writer.history };
                let mut after = *steps.state;
                if !self.trusted(&after, place) {
                    continue;
                }
                let slot = self.slot(&mut after, place);
                let before = *slot;
                *slot = cache::lease(before, writer_token(number));
                if *slot != before {
                    after.writers[number].leased |= 1 << item;
                    steps.add("takes the lease", Some(place), after);
                }
            }
        }
    }

    /// Installs the next item, under the lease that was taken. Returns whether it is there.
    fn install_change(
        &self,
        number: usize,
        place: Place,
        change: Change,
        state: &mut State,
    ) -> bool {
        let Some(operation) = change.operation else { return false };
        let before = state.database.value_at(place.history, place.item, change.before);
        let Some(value) = before.map(|value| value.with(operation)) else { return false };
        let loaded = Entry { revision: change.after, value };
        let slot = self.slot(state, place);
        let (installed, is_there) = cache::install(*slot, writer_token(number), loaded, self.rules);
        *slot = installed;
        is_there
    }

    fn call(&self, number: usize, state: &State) -> Call {
        self.scenario.writers[number][usize::from(state.writers[number].call)]
    }

    fn begin(&self, number: usize, steps: &mut Steps<'_>) {
        let state = *steps.state;
        let call = self.call(number, &state);
        let mut locked = state.pending.map_or(0, |call| call.items);
        for other in (0..PROCESSES).filter(|other| *other != number) {
            if state.writers[other].holds_locks() {
                locked |= self.call(other, &state).items;
            }
        }
        if call.items & locked != 0 {
            return;
        }
        let database = &state.database;
        let history = database.history;
        let before: [u8; ITEMS] = std::array::from_fn(|item| {
            let touched = call.items >> item & 1;
            touched * database.revision(history, item as u8)
        });
        let changed = !database.commits(history).iter().any(|c| c.operation == call.operation);
        let mut after = state;
        let writer = &mut after.writers[number];
        *writer = Writer { history, before, changed, left: call.items, ..*writer };
        writer.confirmed = ALL_SERVERS;
        writer.stage = match changed {
            true if self.rules.has(Rule::ApplyAfterCommit) => Stage::Locked,
            true => Stage::Early,
            false => Stage::Applying,
        };
        if !changed && !self.rules.has(Rule::UnchangedApplies) {
            self.finish(number, true, &mut after);
        }
        steps.add(if changed { "locks" } else { "finds its change" }, None, after);
    }

    /// Commits. The answer may be lost, and the commit with it. Then the call ends without an answer.
    /// The storage crate also deletes the entries, which no invariant needs.
    fn commit(&self, number: usize, steps: &mut Steps<'_>) {
        let call = self.call(number, steps.state);
        let mut committed = *steps.state;
        let writer = committed.writers[number];
        if writer.history != committed.database.history && self.rules.has(Rule::CommitInOwnHistory)
        {
            committed.writers[number].begin_again();
            steps.add("finds another history", None, committed);
            return;
        }
        let position = match writer.stage {
            Stage::Positioned => writer.position,
            _ => committed.database.give_position(),
        };
        committed.database.commit(call.items, call.operation, position);
        committed.writers[number].position = 0;
        let mut after = committed;
        after.writers[number].stage = Stage::Applying;
        if !self.rules.has(Rule::ApplyAfterCommit) {
            self.finish(number, true, &mut after);
        }
        steps.add("commits", None, after);
        if !self.scenario.lost_answers {
            return;
        }
        self.finish(number, false, &mut committed);
        steps.add("commits, the answer is lost", None, committed);
        let mut after = *steps.state;
        self.finish(number, false, &mut after);
        steps.add("sends a commit that is lost", None, after);
        if self.scenario.late && after.pending.is_none() {
            after.pending = Some(call);
            steps.add("sends a commit that is late", None, after);
        }
    }

    fn apply_early(&self, number: usize, steps: &mut Steps<'_>) {
        let mut after = *steps.state;
        let Some((place, change)) = self.next_change(number, 0, &after) else {
            after.writers[number].stage = Stage::Locked;
            steps.add("has applied before the commit", None, after);
            return;
        };
        self.apply(&mut after, place, change);
        after.writers[number].left &= !(1 << place.item);
        steps.add("applies before the commit", Some(place), after);
    }

    /// Returns what is to be applied next on `server`, and where.
    fn next_change(&self, number: usize, server: usize, state: &State) -> Option<(Place, Change)> {
        let writer = state.writers[number];
        let item = (0..ITEMS).find(|item| writer.left >> item & 1 == 1)?;
        let before = writer.before[item];
        let operation = self.call(number, state).operation;
        let change = Change {
            before,
            after: before + u8::from(writer.changed),
            operation: writer.changed.then_some(operation),
        };
        Some((Place { server, item: item as u8, history: writer.history }, change))
    }

    fn apply_next(&self, number: usize, steps: &mut Steps<'_>) {
        for server in steps.state.reachable() {
            let state = *steps.state;
            let Some((place, change)) = self.next_change(number, server, &state) else { return };
            let is_installed = state.writers[number].leased >> place.item & 1 == 1;
            let mut executed = state;
            let is_done = match is_installed {
                true => self.install_change(number, place, change, &mut executed),
                false => {
                    self.apply(&mut executed, place, change);
                    true
                }
            };
            let mut after = executed;
            match is_done || !self.rules.has(Rule::EndedLeaseApplies) {
                true => self.confirm(number, place, &mut after),
                false => after.writers[number].leased &= !(1 << place.item),
            }
            steps.add(if is_installed { "installs" } else { "applies" }, Some(place), after);
            if !self.scenario.lost_answers {
                continue;
            }
            let late = Late { place, change };
            let outcomes = [
                ("applies, the answer is lost", executed, true),
                ("sends an apply that is lost", state, true),
                (
                    "sends an apply that is late",
                    State { late: Some(late), ..state },
                    // An install that is late finds another lease, or none.
                    self.scenario.late && state.late.is_none() && !is_installed,
                ),
            ];
            for (action, mut after, possible) in outcomes {
                if self.rules.has(Rule::UnlinkUnconfirmed) {
                    after.writers[number].stage = Stage::Unconfirmed;
                } else {
                    self.confirm(number, place, &mut after);
                }
                if possible {
                    steps.add(action, Some(place), after);
                }
            }
        }
    }

    /// Unlinks, until a server confirms it; which one is the primary then is open.
    fn unlink_next(&self, number: usize, steps: &mut Steps<'_>) {
        for server in steps.state.reachable() {
            let mut after = *steps.state;
            let Some((place, _)) = self.next_change(number, server, &after) else { return };
            self.unlink(&mut after, place);
            self.confirm(number, place, &mut after);
            steps.add("unlinks", Some(place), after);
        }
    }

    /// Notes that a server confirmed an item; the last one leads to the acknowledgement.
    fn confirm(&self, number: usize, place: Place, state: &mut State) {
        let writer = &mut state.writers[number];
        writer.stage = Stage::Applying;
        writer.left &= !(1 << place.item);
        writer.confirmed &= 1 << place.server;
        let mark = &mut state.servers[place.server].mark;
        if mark.is_some_and(|mark| mark.history != place.history)
            && self.rules.has(Rule::AcknowledgeInMarked)
        {
            *mark = None;
        }
        let writer = &mut state.writers[number];
        if writer.left == 0 {
            self.finish(number, true, state);
        }
    }

    /// Ends a call. An acknowledgement counts unless the database lost the change.
    fn finish(&self, number: usize, acknowledged: bool, state: &mut State) {
        let writer = state.writers[number];
        let operation = self.call(number, state).operation;
        if acknowledged && state.database.keeps(operation) {
            state.acknowledged.add(operation, writer.history, writer.confirmed);
        }
        self.release(writer_token(number), state);
        let calls = self.scenario.writers[number].len();
        let call = writer.call + 1;
        state.writers[number] = Writer::before(calls - usize::from(call));
        if state.writers[number].stage == Stage::Start {
            state.writers[number].call = call;
        }
    }
}

/// The tokens of loaders are smaller.
fn writer_token(number: usize) -> u8 {
    (PROCESSES + number) as u8 + 1
}

impl Writer {
    /// Returns a writer that has so many calls to do.
    pub(crate) fn before(calls: usize) -> Self {
        let stage = if calls == 0 { Stage::Done } else { Stage::Start };
        Self { stage, ..Self::default() }
    }

    fn holds_locks(&self) -> bool {
        matches!(self.stage, Stage::Early | Stage::Locked | Stage::Positioned)
    }

    /// Begins the call again if its transaction was open.
    pub(crate) fn database_failed(&mut self) {
        if self.holds_locks() {
            self.begin_again();
        }
    }

    fn begin_again(&mut self) {
        *self = Self { call: self.call, ..Self::default() };
    }
}
