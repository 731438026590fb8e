//! The steps of a verifier.

use crate::cache::{self, Change, ITEMS, Mark, Server};
use crate::rules::Rule;
use crate::system::{Place, Presence, Round, Scenario, Steps, System, Verified, Verifier};

impl System {
    /// Adds what verifier `number` may do.
    pub(crate) fn verifier_steps(&self, number: usize, steps: &mut Steps<'_>) {
        let verifier = steps.state.verifiers[number];
        let is_away = steps.state.presence == Presence::Away;
        if is_away || !self.rules.has(Rule::KeepWhileAway) {
            self.keep_marks(steps);
        }
        if verifier.round == Round::Begun && !is_away {
            self.read_feed(number, steps);
        }
        for server in steps.state.reachable() {
            let item = verifier.left.trailing_zeros() as u8;
            match verifier.round {
                Round::Idle if is_away => {}
                Round::Idle => {
                    let present = steps.state.database.history;
                    let is_present = self.rules.has(Rule::HistoryAfterMark);
                    for history in if is_present { present } else { 0 }..=present {
                        self.begin_round(number, Place { server, item: 0, history }, steps);
                    }
                }
                Round::Begun => {}
                Round::Applying if usize::from(item) < ITEMS => {
                    let place = Place { server, item, history: verifier.history };
                    self.verify(number, place, steps);
                }
                Round::Applying => self.mark(number, server, steps),
            }
        }
        if verifier.round != Round::Idle {
            let mut after = *steps.state;
            after.verifiers[number] = verifier.idle(verifier.verified);
            steps.add("gives up", None, after);
        }
        if self.scenario.restarts && verifier.verified.is_some() {
            let mut after = *steps.state;
            after.verifiers[number] = Verifier::default();
            steps.add("restarts", None, after);
        }
    }

    /// Renews the time of a mark that counts.
    fn keep_marks(&self, steps: &mut Steps<'_>) {
        for server in steps.state.reachable() {
            let mut after = *steps.state;
            let (now, Server { id, mark, .. }) = (after.now, &mut after.servers[server]);
            if let Some(mark) = mark.as_mut().filter(|mark| (mark.id, mark.time) == (*id, now))
                && now == 1
            {
                mark.time = 2;
                let place = Place { server, item: 0, history: mark.history };
                steps.add("keeps the mark", Some(place), after);
            }
        }
    }

    /// Reads the time, the replication id and the mark, and then the history, which is that of `place`.
    /// It is one step: had the first three been read earlier, the mark would only be an older one.
    fn begin_round(&self, number: usize, place: Place, steps: &mut Steps<'_>) {
        let mut after = *steps.state;
        let Place { server, history, .. } = place;
        let database = after.database;
        let verifier = &mut after.verifiers[number];
        *verifier = Verifier {
            round: Round::Begun,
            id: after.servers[server].id,
            read: after.servers[server].mark,
            history,
            from: self.start(*verifier, after.servers[server], history, database.end()),
            time: if self.rules.has(Rule::MarkTimeBeforeFeed) { after.now } else { 0 },
            deleted: if self.rules.has(Rule::ReachAfterRows) { 0 } else { database.deleted },
            ..verifier.idle(verifier.verified)
        };
        if !self.rules.has(Rule::EndInHistory) {
            verifier.ended = verifier.ended.max(database.end());
        }
        steps.add("begins a round", Some(place), after);
    }

    /// Returns whether it matters in the scenario where a round ended; else the search is shorter
    /// without it.
    fn keeps_last_round(&self) -> bool {
        let Scenario { flushes, feed_deleted, .. } = self.scenario;
        flushes || feed_deleted || !self.rules.has(Rule::BeginFromMark)
    }

    /// Returns the position from which `server` may lack changes; `None` is the beginning.
    fn start(&self, verifier: Verifier, server: Server, history: u8, end: u8) -> Option<u8> {
        let own =
            |mark: &Mark| mark.history == history || !self.rules.has(Rule::OtherHistoryFromStart);
        let last = verifier.verified.filter(|last| last.history == history);
        if !self.rules.has(Rule::BeginFromMark) {
            return last.map(|last| last.position);
        }
        if let Some(mark) = server.mark.filter(own) {
            return Some(mark.position);
        }
        if !self.rules.has(Rule::NoMarkFromLastRound) {
            return Some(end);
        }
        let same = |id| id == server.id || !self.rules.has(Rule::LastRoundOfServer);
        last.filter(|last| same(last.id)).map(|last| last.position)
    }

    fn read_feed(&self, number: usize, steps: &mut Steps<'_>) {
        let mut after = *steps.state;
        let database = after.database;
        let verifier = &mut after.verifiers[number];
        let deleted = match self.rules.has(Rule::ReachAfterRows) {
            true => database.deleted,
            false => verifier.deleted,
        };
        let is_deleted = verifier.from.is_some_and(|from| from < deleted);
        if is_deleted && self.rules.has(Rule::RenewIfDeleted) {
            self.renew(number, steps);
            return;
        }
        verifier.target = database.end().max(verifier.ended);
        verifier.round = Round::Applying;
        verifier.left = database.changed_since(verifier.from.unwrap_or(0).max(database.deleted));
        (verifier.from, verifier.deleted) = (None, 0);
        steps.add("reads the feed", None, after);
    }

    /// Renews the history, once in a run.
    fn renew(&self, number: usize, steps: &mut Steps<'_>) {
        let mut after = *steps.state;
        if after.database.history == 0 {
            after.database.renew();
            let verifier = after.verifiers[number];
            after.verifiers[number] = verifier.idle(verifier.verified);
            steps.add("renews the history", None, after);
        }
    }

    fn verify(&self, number: usize, place: Place, steps: &mut Steps<'_>) {
        let mut after = *steps.state;
        let Place { server, item, .. } = place;
        let Verifier { id, target, .. } = after.verifiers[number];
        if after.servers[server].id != id && self.rules.has(Rule::VerifyOneServer) {
            return;
        }
        // The feed may be that of a later history than the one that the verifier read.
        let revision = after.database.revision_at(after.database.history, item, target);
        self.apply(&mut after, place, Change::none(revision));
        after.verifiers[number].left &= !(1 << item);
        steps.add("applies", Some(place), after);
    }

    fn mark(&self, number: usize, server: usize, steps: &mut Steps<'_>) {
        let mut after = *steps.state;
        let now = after.now;
        let verifier = after.verifiers[number];
        let Verifier { id, history, target, time, verified, .. } = verifier;
        let Server { id: server_id, mark, .. } = &mut after.servers[server];
        let new = Mark {
            id: if self.rules.has(Rule::IdBeforeFeed) { id } else { *server_id },
            history,
            position: target,
            time: if self.rules.has(Rule::MarkTimeBeforeFeed) { time } else { now },
        };
        let is_read = *mark == verifier.read || !self.rules.has(Rule::ReplaceReadMark);
        let written = is_read && cache::set_mark(mark, *server_id, new);
        let last = Verified { id: new.id, history, position: target };
        let is_kept = written && self.keeps_last_round();
        after.verifiers[number] = verifier.idle(if is_kept { Some(last) } else { verified });
        let action = if written { "writes the mark" } else { "writes no mark" };
        steps.add(action, Some(Place { server, item: 0, history }), after);
    }
}

impl Verifier {
    /// Returns the verifier between rounds.
    fn idle(self, verified: Option<Verified>) -> Self {
        Self { verified, ended: self.ended, ..Self::default() }
    }
}
