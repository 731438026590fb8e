//! Reconnector: a task per endpoint that opens its connections, and reopens them with exponential
//! backoff and jitter. Calls therefore never wait for an unreachable endpoint.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{
    connection::{ConnectError, Connection},
    endpoint::{Endpoint, Phase},
    failure::describe,
};

// Cooldown between two attempts on demand: all waiting calls see the failure of one attempt, and
// the delay is unnoticeable after recovery.
const COOLDOWN: Duration = Duration::from_millis(100);
// A connection that closes earlier counts as a failure.
const LIFETIME_MIN: Duration = Duration::from_millis(500);

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
    pub(super) fn request_connect(&self, since: Instant) -> ConnectState {
        let mut state = self.state();
        match state.backoff.phase {
            Phase::Inactive => ConnectState::Connecting,
            Phase::Retrying(failed_at) if failed_at < since => ConnectState::Connecting,
            Phase::Waiting { failed_at, .. }
                if failed_at < since && failed_at.elapsed() >= COOLDOWN =>
            {
                state.backoff.phase = Phase::Retrying(failed_at);
                self.connect_now.notify_one();
                ConnectState::Connecting
            }
            Phase::Retrying(_) | Phase::Waiting { .. } => ConnectState::Failed,
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
                    let closed = self.closed.clone();
                    let opened =
                        Connection::open_for_calls(self.address, &self.origin, closed).await;
                    notify(self.record(opened).err().map(|error| describe(&error)));
                }
                Action::BackOff(retry_at) => self.back_off(retry_at).await,
                Action::Wait => self.closed.notified().await,
            }
        }
    }

    fn next_action(&self) -> Action {
        let state = self.state();
        match state.backoff.phase {
            _ if state.calls.len() >= self.connections => Action::Wait,
            Phase::Waiting { retry_at, .. } => Action::BackOff(retry_at),
            Phase::Inactive | Phase::Retrying(_) => Action::Connect,
        }
    }

    fn record(&self, opened: Result<Connection, ConnectError>) -> Result<(), ConnectError> {
        let mut state = self.state();
        match opened {
            Ok(connection) => {
                state.calls.push(Arc::new(connection));
                state.backoff.phase = Phase::Inactive;
                Ok(())
            }
            Err(error) => {
                state.backoff.start();
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
            state.backoff.start();
        } else if !closed.is_empty() {
            state.backoff.reset();
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
        if let Phase::Waiting { failed_at, .. } = state.backoff.phase {
            state.backoff.phase = Phase::Retrying(failed_at);
        }
    }
}
