//! Reconnector: a task per endpoint that opens its connections, and reopens them with exponential
//! backoff and jitter. Calls therefore never wait for an unreachable endpoint.

use std::{sync::Arc, time::Duration};

use rand::RngExt as _;
use tokio::time::{Instant, sleep_until};

use super::{
    connection::{ConnectError, Connection},
    endpoint::Endpoint,
    failure::describe,
};

// Exponential backoff: doubles after each failure. Calls without another endpoint end it early.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
// Cooldown between two attempts on demand: all waiting calls see the failure of one attempt, and
// the delay is unnoticeable after recovery.
const COOLDOWN: Duration = Duration::from_millis(100);
// A connection that closes earlier counts as a failure.
const LIFETIME_MIN: Duration = Duration::from_millis(500);

/// The connections of an endpoint, and its backoff.
#[derive(Debug, Default)]
pub(super) struct Connections {
    pub(super) calls: Vec<Arc<Connection>>,
    // Separate connections for streams, opened on demand: streams may last for hours, and would
    // occupy all slots.
    pub(super) streams: Vec<Arc<Connection>>,
    backoff: Backoff,
    /// Consecutive failures.
    failures: u32,
}

/// State of the backoff.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Backoff {
    /// The last attempt succeeded, or there was none.
    #[default]
    Inactive,
    /// An attempt failed; the next one is scheduled.
    Waiting { failed_at: Instant, retry_at: Instant },
    /// An attempt failed at this time; the next one is running.
    Retrying(Instant),
}

/// The reconnector's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Connect,
    BackOff(Instant),
    Wait,
}

/// Connect state of an endpoint, for a call without another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectState {
    /// An attempt is running.
    Connecting,
    /// An attempt failed since the call began, or within the cooldown.
    Failed,
}

impl Endpoint {
    /// Returns the connect state for a call that has waited since then. Starts an attempt at once,
    /// unless one failed within the cooldown.
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

    /// Keeps the connections for calls open, forever. Notifies of each opened or closed connection,
    /// and of the error of each failed attempt.
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

    /// Removes closed and draining connections, whose calls complete. Returns whether there were
    /// any.
    fn remove_closed(&self) -> bool {
        let mut state = self.state();
        let (open, closed): (_, Vec<_>) =
            state.calls.drain(..).partition(|connection| connection.is_open());
        state.calls = open;
        // Backoff also for a server that accepts connections and closes them at once.
        if closed.iter().any(|connection| connection.age() < LIFETIME_MIN) {
            state.start_backoff();
        } else if !closed.is_empty() {
            state.failures = 0;
        }
        !closed.is_empty()
    }

    /// Waits until the retry is due, a call has no other endpoint, or a connection closes.
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
        // Jitter: the clients of a server must not reconnect all at once.
        let backoff = backoff.mul_f64(rand::rng().random_range(0.5..1.0));
        let failed_at = Instant::now();
        self.backoff = Backoff::Waiting { failed_at, retry_at: failed_at + backoff };
        self.failures = self.failures.saturating_add(1);
    }
}
