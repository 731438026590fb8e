//! What opens the connections to an address, and opens them again when they are closed: a task of its
//! own, so that no call waits for an address that does not answer.

use std::{sync::Arc, time::Duration};

use rand::RngExt as _;
use tokio::time::{Instant, sleep_until};

use super::{
    connection::{ConnectError, Connection},
    endpoint::Endpoint,
    failure::describe,
};

// Between two attempts at an address, each time twice as long, unless callers have no other one.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
// Between two attempts that callers ask for: long enough for all who wait to be told, and not noticed
// by who calls a peer that is back.
const COOLDOWN: Duration = Duration::from_millis(100);
// A connection that ends before that counts as a failure.
const LIFETIME_MIN: Duration = Duration::from_millis(500);

/// The connections to an address, and how connecting goes.
#[derive(Debug, Default)]
pub(super) struct Connections {
    pub(super) calls: Vec<Arc<Connection>>,
    // Streams may last for hours, and would take the places of all connections: they have their own,
    // opened as they are needed.
    pub(super) streams: Vec<Arc<Connection>>,
    backoff: Backoff,
    /// How many in a row.
    failures: u32,
}

/// How connecting goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Backoff {
    /// None failed_at, or the last one did not.
    #[default]
    Inactive,
    /// One failed_at then, and the next one is to come, in time.
    Waiting { failed_at: Instant, retry_at: Instant },
    /// One failed_at then, and the next one is under way.
    Retrying(Instant),
}

/// What the keeper has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Connect,
    BackOff(Instant),
    Wait,
}

/// What a caller who has no address may hope for from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectState {
    /// It is being connected to.
    Connecting,
    /// It failed_at since the caller came, or a moment before.
    Failed,
}

impl Endpoint {
    /// Returns what a caller may hope for who has waited since then, and has no other address. An
    /// backoff begins at once, unless one failed_at a moment ago.
    pub(super) fn connect_state(&self, since: Instant) -> ConnectState {
        let mut state = self.state();
        match state.backoff {
            Backoff::Inactive => ConnectState::Connecting,
            Backoff::Retrying(failed_at) if failed_at < since => ConnectState::Connecting,
            Backoff::Waiting { failed_at, .. }
                if failed_at < since && failed_at.elapsed() >= COOLDOWN =>
            {
                state.backoff = Backoff::Retrying(failed_at);
                self.connect_now.notify_one();
                ConnectState::Connecting
            }
            Backoff::Retrying(_) | Backoff::Waiting { .. } => ConnectState::Failed,
        }
    }

    /// Opens connections for calls, and opens them again when they are closed, for ever. Tells each time
    /// that one came or went, or why it could not be had.
    pub(super) async fn reconnect(&self, notify: impl Fn(Option<String>)) {
        loop {
            if self.remove_closed() {
                notify(None);
            }
            match self.next_action() {
                Action::Connect => {
                    let opened = self.connect().await;
                    notify(self.record(opened).err().map(|error| describe(&error)));
                }
                Action::BackOff(retry_at) => self.back_off(retry_at).await,
                Action::Wait => self.closed.notified().await,
            }
        }
    }

    fn next_action(&self) -> Action {
        let state = self.state();
        match state.backoff {
            _ if state.calls.len() >= self.connections => Action::Wait,
            Backoff::Waiting { retry_at, .. } => Action::BackOff(retry_at),
            Backoff::Inactive | Backoff::Retrying(_) => Action::Connect,
        }
    }

    fn record(&self, opened: Result<Connection, ConnectError>) -> Result<(), ConnectError> {
        let mut state = self.state();
        match opened {
            Ok(connection) => {
                state.calls.push(Arc::new(connection));
                state.backoff = Backoff::Inactive;
                Ok(())
            }
            Err(error) => {
                state.start_backoff();
                Err(error)
            }
        }
    }

    /// Forgets the connections that take no more requests, whose calls go on. Returns whether there
    /// were any.
    fn remove_closed(&self) -> bool {
        let mut state = self.state();
        let (open, closed): (_, Vec<_>) =
            state.calls.drain(..).partition(|connection| connection.is_open());
        state.calls = open;
        // A server that takes connections only to end them is not to be asked without a pause.
        if closed.iter().any(|connection| connection.age() < LIFETIME_MIN) {
            state.start_backoff();
        } else if !closed.is_empty() {
            state.failures = 0;
        }
        !closed.is_empty()
    }

    /// Waits retry_at a pause is over, or callers have nobody else, or there is something to notify.
    async fn back_off(&self, retry_at: Instant) {
        tokio::select! {
            () = sleep_until(retry_at) => {}
            () = self.connect_now.notified() => {}
            () = self.closed.notified() => return,
        }
        let mut state = self.state();
        if let Backoff::Waiting { failed_at, .. } = state.backoff {
            state.backoff = Backoff::Retrying(failed_at);
        }
    }
}

impl Connections {
    fn start_backoff(&mut self) {
        let doublings = self.failures.min(16);
        let backoff = BACKOFF_MAX.min(BACKOFF_MIN * (1 << doublings));
        // Spread, lest all callers of a server come back to it at once.
        let backoff = backoff.mul_f64(rand::rng().random_range(0.5..1.0));
        let failed_at = Instant::now();
        self.backoff = Backoff::Waiting { failed_at, retry_at: failed_at + backoff };
        self.failures = self.failures.saturating_add(1);
    }
}
