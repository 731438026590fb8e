//! Shutdown signals.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT: both start a graceful shutdown.
#[derive(Debug)]
pub(crate) struct Signals {
    // Sent by Kubernetes, systemd and docker before they kill.
    terminate: Signal,
    // Sent by Ctrl-C.
    interrupt: Signal,
}

impl Signals {
    /// Installs the signal handlers.
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
