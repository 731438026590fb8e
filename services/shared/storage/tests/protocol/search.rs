//! Breadth-first search over all states of a model, with the shortest trace to a violation.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A system with a finite number of states.
pub(crate) trait Model {
    /// What the system is at one moment.
    type State: Copy + Eq + Hash;
    /// What leads from one state to the next.
    type Step: Copy;
    /// What is wrong with a state.
    type Violation;

    /// Returns the state in which each run begins.
    fn initial(&self) -> Self::State;
    /// Adds each step that is possible in `state`, with the state that it leads to.
    fn successors(&self, state: &Self::State, found: &mut Vec<(Self::Step, Self::State)>);
    /// Returns the invariant that `state` violates.
    fn violation(&self, state: &Self::State) -> Option<Self::Violation>;
    /// Returns whether `state` is one that the search has to reach, else it shows nothing.
    fn goal(&self, state: &Self::State) -> bool;
}

/// What a search found.
pub(crate) struct Report<M: Model> {
    /// The number of different states.
    pub(crate) states: usize,
    /// The number of states that are a goal.
    pub(crate) goals: usize,
    /// Whether each reachable state was looked at.
    pub(crate) complete: bool,
    /// The shortest run to a violation.
    pub(crate) counterexample: Option<(M::Violation, Vec<M::Step>)>,
}

/// Searches up to `states_max` states; ends at the first violation.
pub(crate) fn search<M: Model>(model: &M, states_max: usize) -> Report<M> {
    let mut visited = Visited::new(model.initial());
    let mut report = Report { states: 0, goals: 0, complete: true, counterexample: None };
    let mut found = Vec::new();
    let mut next = 0;
    while next < visited.states.len() {
        let state = visited.states[next];
        report.goals += usize::from(model.goal(&state));
        if let Some(violation) = model.violation(&state) {
            report.counterexample = Some((violation, visited.trace(model, next)));
            break;
        }
        if visited.states.len() >= states_max {
            report.complete = false;
            break;
        }
        found.clear();
        model.successors(&state, &mut found);
        for (_, successor) in &found {
            visited.add(*successor, next);
        }
        next += 1;
    }
    report.states = visited.states.len();
    report
}

/// The states that were found, each with the one that it was found from.
struct Visited<S> {
    states: Vec<S>,
    parents: Vec<u32>,
    indices: HashMap<u64, u32, BuildHasherDefault<Unchanged>>,
}

impl<S: Copy + Eq + Hash> Visited<S> {
    fn new(initial: S) -> Self {
        let mut visited =
            Self { states: Vec::new(), parents: Vec::new(), indices: HashMap::default() };
        visited.add(initial, 0);
        visited
    }

    /// Adds `state` unless it is there. States with equal hashes take the next free number.
    fn add(&mut self, state: S, parent: usize) {
        let mut hasher = Mixer::default();
        state.hash(&mut hasher);
        let mut hash = hasher.finish();
        loop {
            match self.indices.entry(hash) {
                Entry::Occupied(found) if self.states[*found.get() as usize] == state => return,
                Entry::Occupied(_) => hash = hash.wrapping_add(1),
                Entry::Vacant(free) => {
                    free.insert(u32::try_from(self.states.len()).unwrap());
                    break;
                }
            }
        }
        self.states.push(state);
        self.parents.push(u32::try_from(parent).unwrap());
    }

    /// Returns the steps from the initial state to the one at `index`.
    fn trace<M: Model<State = S>>(&self, model: &M, mut index: usize) -> Vec<M::Step> {
        let mut steps = Vec::new();
        let mut found = Vec::new();
        while index != 0 {
            let parent = self.parents[index] as usize;
            found.clear();
            model.successors(&self.states[parent], &mut found);
            let step = found.iter().find(|step| step.1 == self.states[index]);
            steps.push(step.unwrap().0);
            index = parent;
        }
        steps.reverse();
        steps
    }
}

/// A hash of 64 bits that is fast without optimisation, too.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ (mixed >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x517C_C1B7_2722_0A95);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

/// The hash of a number that is a hash already.
#[derive(Default)]
struct Unchanged(u64);

impl Hasher for Unchanged {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers of 64 bits are hashed");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}
