//! A server of this project in its own process.

use std::{process::ExitStatus, time::Duration};

use nix::sys::signal::Signal;
use tempfile::TempDir;
use tonic::transport::Endpoint;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{PATIENCE, child_process::ChildProcess, eventually, free_port};

// Timeout of one health check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// A running server on a free port of 127.0.0.1. Dropping it kills it.
pub struct Process {
    running: ChildProcess,
    port: u16,
    _directory: TempDir,
}

impl Process {
    /// Starts a program (`env!("CARGO_BIN_EXE_…")`) with `--listen 127.0.0.1:<free port>` and these
    /// arguments, and waits until its health is SERVING.
    pub async fn start(program: &str, args: &[&str]) -> Self {
        Self::start_on(free_port(), program, args).await
    }

    /// Starts a program like [`Self::start`] on a given port, for example the port of a killed
    /// server.
    pub async fn start_on(port: u16, program: &str, args: &[&str]) -> Self {
        let process = Self::spawn_on("--listen", port, program, args);
        process.wait_until_serving().await;
        process
    }

    /// Starts a program with `--health-listen` on a free port, in place of `--listen`, and waits until
    /// all its services are SERVING there. Its arguments have the ports of the services.
    pub async fn start_services(program: &str, args: &[&str]) -> Self {
        let process = Self::spawn_services(program, args);
        process.wait_until_serving().await;
        process
    }

    /// Starts a program like [`Self::start_services`] without waiting.
    pub fn spawn_services(program: &str, args: &[&str]) -> Self {
        Self::spawn_on("--health-listen", free_port(), program, args)
    }

    /// Waits until its health is SERVING.
    ///
    /// # Panics
    /// If it exits.
    pub async fn wait_until_serving(&self) {
        eventually("the server is SERVING", PATIENCE, async || {
            let status = self.running.exit_status();
            assert!(status.is_none(), "the server exited: {status:?}\n{}", self.log());
            self.is_serving().await
        })
        .await;
    }

    /// Starts a program like [`Self::start`] without waiting.
    pub fn spawn(program: &str, args: &[&str]) -> Self {
        Self::spawn_on("--listen", free_port(), program, args)
    }

    fn spawn_on(flag: &str, port: u16, program: &str, args: &[&str]) -> Self {
        let listen = format!("127.0.0.1:{port}");
        Self::spawn_command(port, program, &[args, &[flag, &listen]].concat(), &[])
    }

    /// Starts a program with these arguments and environment variables, without waiting. The
    /// arguments make it listen on the port.
    pub fn spawn_command(
        port: u16,
        program: &str,
        args: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let directory = TempDir::with_prefix("microblog-process-").expect("make a directory");
        let args: Vec<String> = args.iter().map(|&arg| arg.into()).collect();
        let log = directory.path().join("log");
        let running = ChildProcess::start_with(program, &args, &log, "KILL", |command| {
            command.envs(environment.iter().copied());
        });
        Self { running, port, _directory: directory }
    }

    /// Returns its URL, or that of its health checks: `http://127.0.0.1:port`.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns whether its health is SERVING.
    pub async fn is_serving(&self) -> bool {
        self.is_service_serving("").await
    }

    /// Returns whether the health of a service is SERVING, by its full name.
    pub async fn is_service_serving(&self, service: &str) -> bool {
        let request = HealthCheckRequest { service: service.to_owned() };
        let endpoint = Endpoint::from_shared(self.address()).expect("an address");
        let channel = endpoint.connect_timeout(CHECK_TIMEOUT).timeout(CHECK_TIMEOUT).connect_lazy();
        let answer = HealthClient::new(channel).check(request).await;
        answer.is_ok_and(|answer| answer.get_ref().status() == ServingStatus::Serving)
    }

    /// Kills the process (SIGKILL), as a crash would, and waits for its exit.
    pub fn kill9(&self) {
        self.running.kill();
    }

    /// Stops the process (SIGSTOP): connections stay open, and it does not answer.
    pub fn pause(&self) {
        self.running.signal(Signal::SIGSTOP);
    }

    /// Continues the process (SIGCONT).
    pub fn resume(&self) {
        self.running.signal(Signal::SIGCONT);
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.running.signal(Signal::SIGTERM);
    }

    /// Waits for the process to exit.
    ///
    /// # Panics
    /// If it does not exit within the timeout.
    pub async fn ended(&self, within: Duration) -> ExitStatus {
        let mut status = None;
        eventually("the server exits", within, async || {
            status = self.running.exit_status();
            status.is_some()
        })
        .await;
        status.expect("it has exited")
    }

    /// Returns the PID.
    pub fn id(&self) -> u32 {
        self.running.id()
    }

    /// Returns its standard output and error so far.
    pub fn log(&self) -> String {
        self.running.log()
    }
}
