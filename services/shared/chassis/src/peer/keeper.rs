//! What opens the connections to an address, and opens them again when they are lost: a task of its
//! own, so that no call waits for an address that does not answer.

use std::{sync::Arc, time::Duration};

use rand::RngExt as _;
use tokio::time::{Instant, sleep_until};

use super::{
    connection::{Connection, OpenError},
    endpoint::Endpoint,
    failure::describe,
};

// Between two attempts at an address, each time twice as long, unless callers have no other one.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
// Between two attempts that callers ask for: long enough for all who wait to be told, and not noticed
// by who calls a peer that is back.
const CALM: Duration = Duration::from_millis(100);
// A connection that ends before that counts as a failure.
const SHORT_LIFE: Duration = Duration::from_millis(500);

/// The connections to an address, and how connecting goes.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) calls: Vec<Arc<Connection>>,
    // Streams may last for hours, and would take the places of all connections: they have their own,
    // opened as they are needed.
    pub(super) streams: Vec<Arc<Connection>>,
    attempt: Attempt,
    /// How many in a row.
    failures: u32,
}

/// How connecting goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Attempt {
    /// None failed, or the last one did not.
    #[default]
    Fresh,
    /// One failed then, and the next one is to come, in time.
    Pausing { failed: Instant, until: Instant },
    /// One failed then, and the next one is under way.
    Again(Instant),
}

/// What the keeper has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Open,
    Pause(Instant),
    Watch,
}

/// What a caller who has no address may hope for from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hope {
    /// It is being connected to.
    UnderWay,
    /// It failed since the caller came, or a moment before.
    None,
}

impl Endpoint {
    /// Returns what a caller may hope for who has waited since then, and has no other address. An
    /// attempt begins at once, unless one failed a moment ago.
    pub(super) fn hope(&self, since: Instant) -> Hope {
        let mut state = self.state();
        match state.attempt {
            Attempt::Fresh => Hope::UnderWay,
            Attempt::Again(failed) if failed < since => Hope::UnderWay,
            Attempt::Pausing { failed, .. } if failed < since && failed.elapsed() >= CALM => {
                state.attempt = Attempt::Again(failed);
                self.prompt.notify_one();
                Hope::UnderWay
            }
            Attempt::Again(_) | Attempt::Pausing { .. } => Hope::None,
        }
    }

    /// Opens connections for calls, and opens them again when they are lost, for ever. Tells each time
    /// that one came or went, or why it could not be had.
    pub(super) async fn keep(&self, tell: impl Fn(Option<String>)) {
        loop {
            if self.clear() {
                tell(None);
            }
            match self.task() {
                Task::Open => {
                    let opened = self.open().await;
                    tell(self.note(opened).err().map(|error| describe(&error)));
                }
                Task::Pause(until) => self.pause(until).await,
                Task::Watch => self.lost.notified().await,
            }
        }
    }

    fn task(&self) -> Task {
        let state = self.state();
        match state.attempt {
            _ if state.calls.len() >= self.connections => Task::Watch,
            Attempt::Pausing { until, .. } => Task::Pause(until),
            Attempt::Fresh | Attempt::Again(_) => Task::Open,
        }
    }

    fn note(&self, opened: Result<Connection, OpenError>) -> Result<(), OpenError> {
        let mut state = self.state();
        match opened {
            Ok(connection) => {
                state.calls.push(Arc::new(connection));
                state.attempt = Attempt::Fresh;
                Ok(())
            }
            Err(error) => {
                state.fail();
                Err(error)
            }
        }
    }

    /// Forgets the connections that take no more requests, whose calls go on. Returns whether there
    /// were any.
    fn clear(&self) -> bool {
        let mut state = self.state();
        let (open, lost): (_, Vec<_>) =
            state.calls.drain(..).partition(|connection| connection.is_open());
        state.calls = open;
        // A server that takes connections only to end them is not to be asked without a pause.
        if lost.iter().any(|connection| connection.age() < SHORT_LIFE) {
            state.fail();
        } else if !lost.is_empty() {
            state.failures = 0;
        }
        !lost.is_empty()
    }

    /// Waits until a pause is over, or callers have nobody else, or there is something to tell.
    async fn pause(&self, until: Instant) {
        tokio::select! {
            () = sleep_until(until) => {}
            () = self.prompt.notified() => {}
            () = self.lost.notified() => return,
        }
        let mut state = self.state();
        if let Attempt::Pausing { failed, .. } = state.attempt {
            state.attempt = Attempt::Again(failed);
        }
    }
}

impl State {
    fn fail(&mut self) {
        let doubled = self.failures.min(16);
        let pause = PAUSE_MAX.min(PAUSE_MIN * (1 << doubled));
        // Spread, lest all callers of a server come back to it at once.
        let pause = pause.mul_f64(rand::rng().random_range(0.5..1.0));
        let failed = Instant::now();
        self.attempt = Attempt::Pausing { failed, until: failed + pause };
        self.failures = self.failures.saturating_add(1);
    }
}
