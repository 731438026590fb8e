//! The steps of a loader.

use crate::cache::{self, Entry};
use crate::rules::Rule;
use crate::system::{Loader, Place, Presence, State, Steps, System};

/// The token of a lease whose load has ended.
const ENDED: u8 = 0;

impl System {
    /// Adds what loader `number` may do.
    pub(crate) fn loader_steps(&self, number: usize, steps: &mut Steps<'_>) {
        match steps.state.loaders[number] {
            Loader::Idle if self.rules.has(Rule::LeaseBeforeRead) => {
                self.lease_any(number, steps);
            }
            Loader::Idle => {
                for item in 0..self.scenario.items {
                    for history in steps.state.histories() {
                        self.read(number, Place { server: 0, item, history }, false, steps);
                    }
                }
                return;
            }
            Loader::Leased { item, history } => {
                self.read(number, Place { server: 0, item, history }, true, steps);
            }
            Loader::Loaded { leased: false, item, history, .. } => {
                for server in steps.state.reachable() {
                    self.lease(number, Place { server, item, history }, steps);
                }
            }
            Loader::Loaded { leased: true, item, history, found, revision } => {
                for server in steps.state.reachable() {
                    let value = steps.state.database.value_at(found, item, revision).unwrap();
                    let place = Place { server, item, history };
                    self.install(number, place, Entry { revision, value }, steps);
                }
            }
        }
        if steps.state.loaders[number] != Loader::Idle {
            let mut after = *steps.state;
            self.end_load(number, &mut after);
            steps.add("gives up", None, after);
        }
    }

    fn lease_any(&self, number: usize, steps: &mut Steps<'_>) {
        for server in steps.state.reachable() {
            for item in 0..self.scenario.items {
                for history in steps.state.histories() {
                    self.lease(number, Place { server, item, history }, steps);
                }
            }
        }
    }

    /// Asks for the lease, if a read of the entry would be trusted. Without the lease, the loader
    /// leaves it at that.
    fn lease(&self, number: usize, place: Place, steps: &mut Steps<'_>) {
        let mut after = *steps.state;
        if !self.trusted(&after, place) {
            return;
        }
        let slot = self.slot(&mut after, place);
        let before = *slot;
        *slot = cache::lease(before, token(number));
        if *slot == before && (before.entry.is_some() || self.rules.has(Rule::OwnLeaseOnly)) {
            return;
        }
        let Place { item, history, .. } = place;
        match &mut after.loaders[number] {
            Loader::Loaded { leased, .. } => *leased = true,
            loader => *loader = Loader::Leased { item, history },
        }
        steps.add("asks for the lease", Some(place), after);
    }

    fn read(&self, number: usize, place: Place, leased: bool, steps: &mut Steps<'_>) {
        if steps.state.presence == Presence::Away {
            return;
        }
        let database = &steps.state.database;
        let found = database.history;
        let Place { item, history, .. } = place;
        let newest = database.revision(found, item);
        let oldest = match self.rules.has(Rule::LoadFromPrimary) {
            true => newest,
            false => newest.saturating_sub(2),
        };
        for revision in oldest..=newest {
            let mut after = *steps.state;
            after.loaders[number] = Loader::Loaded { item, history, found, revision, leased };
            if found != history && self.rules.has(Rule::InstallInOwnHistory) {
                self.end_load(number, &mut after);
            }
            steps.add("reads the database", None, after);
        }
    }

    fn install(&self, number: usize, place: Place, loaded: Entry, steps: &mut Steps<'_>) {
        let mut after = *steps.state;
        let slot = self.slot(&mut after, place);
        let (installed, accepted) = cache::install(*slot, token(number), loaded, self.rules);
        *slot = installed;
        self.end_load(number, &mut after);
        let action = if accepted { "installs" } else { "installs nothing" };
        steps.add(action, Some(place), after);
    }

    fn end_load(&self, number: usize, state: &mut State) {
        state.loaders[number] = Loader::Idle;
        self.release(token(number), state);
    }

    /// Ends a load or a call. Its leases stay, with a token that no other one has.
    pub(crate) fn release(&self, token: u8, state: &mut State) {
        for slot in state.servers.iter_mut().flat_map(|server| server.slots.as_flattened_mut()) {
            if let Some(lease) = &mut slot.lease
                && lease.token == token
            {
                lease.token = ENDED;
            }
        }
    }
}

fn token(number: usize) -> u8 {
    number as u8 + 1
}
