//! A server of ours as its own process.

use std::{process::ExitStatus, time::Duration};

use nix::sys::signal::Signal;
use tempfile::TempDir;
use tonic::transport::Endpoint;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{PATIENCE, child::Running, eventually, free_port};

// Asked again after that.
const ANSWER: Duration = Duration::from_secs(5);

/// A running server, on a free port of 127.0.0.1. Dropping it kills it.
pub struct Process {
    running: Running,
    port: u16,
    _directory: TempDir,
}

impl Process {
    /// Starts a program (`env!("CARGO_BIN_EXE_…")`) with `--listen 127.0.0.1:<free port>` and
    /// further arguments, and waits until its health is SERVING.
    pub async fn start(program: &str, args: &[&str]) -> Self {
        Self::start_on(free_port(), program, args).await
    }

    /// Starts a program like [`Self::start`], on a port of one's choice: again on the same one,
    /// after it was killed.
    pub async fn start_on(port: u16, program: &str, args: &[&str]) -> Self {
        let process = Self::spawn_on(port, program, args);
        eventually("the server is SERVING", PATIENCE, async || {
            let ended = process.running.ended();
            assert!(ended.is_none(), "{program} ended: {ended:?}\n{}", process.log());
            process.is_serving().await
        })
        .await;
        process
    }

    /// Starts a program like [`Self::start`], without waiting.
    pub fn spawn(program: &str, args: &[&str]) -> Self {
        Self::spawn_on(free_port(), program, args)
    }

    fn spawn_on(port: u16, program: &str, args: &[&str]) -> Self {
        let directory = TempDir::with_prefix("microblog-process-").expect("make a directory");
        let listen = ["--listen".to_owned(), format!("127.0.0.1:{port}")];
        let args: Vec<String> =
            listen.into_iter().chain(args.iter().map(|&arg| arg.into())).collect();
        let running = Running::start(program, &args, &directory.path().join("log"));
        Self { running, port, _directory: directory }
    }

    /// Returns its address: `http://127.0.0.1:port`.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns whether its health is SERVING now.
    pub async fn is_serving(&self) -> bool {
        let endpoint = Endpoint::from_shared(self.address()).expect("an address");
        let channel = endpoint.connect_timeout(ANSWER).timeout(ANSWER).connect_lazy();
        let answer = HealthClient::new(channel).check(HealthCheckRequest::default()).await;
        answer.is_ok_and(|answer| answer.get_ref().status() == ServingStatus::Serving)
    }

    /// Kills it (SIGKILL), as a crash would, and waits for its end.
    pub fn kill9(&self) {
        self.running.kill();
    }

    /// Asks it to stop (SIGTERM).
    pub fn terminate(&self) {
        self.running.signal(Signal::SIGTERM);
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end within the time.
    pub async fn ended(&self, within: Duration) -> ExitStatus {
        let mut status = None;
        eventually("the server ends", within, async || {
            status = self.running.ended();
            status.is_some()
        })
        .await;
        status.expect("it has ended")
    }

    /// Returns the number of the process.
    pub fn id(&self) -> u32 {
        self.running.id()
    }

    /// Returns what it has written to its standard output and error.
    pub fn log(&self) -> String {
        self.running.log()
    }
}
