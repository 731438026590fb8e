//! The signals that end a process.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT, which mean the same: stop taking work, finish what is under way, end.
#[derive(Debug)]
pub(crate) struct Signals {
    // What Kubernetes, systemd and docker send first, before they kill.
    terminate: Signal,
    // What Ctrl-C in a terminal sends.
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals over from now on.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
