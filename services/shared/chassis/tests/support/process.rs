//! A whole process: the test binary itself, run again with a test that calls [`run_if_started`].

use std::{
    convert::Infallible,
    env,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use microblog_chassis::{Config, Peer, ServiceListener, Worker, mutate};
use microblog_testkit::PATIENCE;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::{Stub, get};

const FLAGS: &str = "CHASSIS_TEST_FLAGS";

#[derive(Parser)]
struct Flags {
    #[arg(long)]
    listen: SocketAddr,
    #[command(flatten)]
    config: Config,
}

/// Runs the server and exits, if a test has started this process.
pub(crate) fn run_if_started() {
    let Ok(flags) = env::var(FLAGS) else { return };
    let Flags { listen: address, config } = Flags::parse_from(flags.split(' '));
    let code = microblog_chassis::run(&config, move |worker: Worker| async move {
        let meter = opentelemetry::global::meter("microblog-test");
        let calls = meter.u64_counter("test.calls").build();
        let stub = Stub::new().get(move |request| {
            calls.add(1, &[]);
            mutate(async move {
                let name = request.into_inner().name;
                let mut terminate = signal(SignalKind::terminate()).unwrap();
                let mut interrupt = signal(SignalKind::interrupt()).unwrap();
                eprintln!(r#"{{"started":"{name}"}}"#);
                match name.as_str() {
                    "slow" => {
                        // Until the shutdown signal, plus a delay.
                        tokio::select! {
                            _ = terminate.recv() => {}
                            _ = interrupt.recv() => {}
                        }
                        tokio::time::sleep(Duration::from_millis(500)).await;
                        eprintln!(r#"{{"written":true}}"#);
                    }
                    "private" => panic!("what {name} wrote"),
                    "stuck" => futures::future::pending().await,
                    _ => {}
                }
                Ok(worker.index.to_string())
            })
        });
        Ok::<_, Infallible>(vec![ServiceListener { address, service: stub.service() }])
    });
    std::process::exit(i32::from(code != ExitCode::SUCCESS));
}

/// The process and its log.
pub(crate) struct Process {
    child: Child,
    log: mpsc::Receiver<Value>,
}

impl Process {
    pub(crate) fn start(listen: &str, flags: &str) -> Self {
        Self::start_in(&[], listen, flags)
    }

    /// Starts it with additional environment variables.
    pub(crate) fn start_in(environment: &[(&str, &str)], listen: &str, flags: &str) -> Self {
        let test = "child_process";
        let flags = format!("test --listen {listen} --threads 2 --log-format json {flags}");
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(FLAGS, flags.trim())
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, log) = mpsc::channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        Self { child, log }
    }

    /// Waits for a log line.
    pub(crate) fn wait(&self, mut found: impl FnMut(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.log.recv_timeout(left) {
                Ok(line) if found(&line) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("no such line ({error}): {seen:#?}"),
            }
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        let line = self.wait(|line| line["message"] == "listening");
        line["address"].as_str().unwrap().parse().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    pub(crate) fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the process does not end");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn peer(address: SocketAddr) -> Peer {
    Peer::remote(&format!("http://{address}"), &super::config()).unwrap()
}

pub(crate) async fn get_answered(address: SocketAddr) {
    get(peer(address), "").await.unwrap();
}
