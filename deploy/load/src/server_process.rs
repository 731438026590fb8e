//! A server of this program in its own process.

use std::{
    env, fs,
    path::Path,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use futures::{FutureExt as _, future};
use microblog_chassis as chassis;
use tempfile::TempDir;
use tonic::service::Routes;

use crate::child_process::Child;

/// Timeout for a server to start and listen on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Log options of the server: JSON, with the line that contains the address.
const LOG: [&str; 2] = ["--log=warn,microblog_chassis::server::process=info", "--log-format=json"];

/// A server process. Dropping the value kills it.
pub(crate) struct ServerProcess {
    url: String,
    // Fields drop in order: the process exits before its log is deleted.
    child: Child,
    _directory: TempDir,
}

impl ServerProcess {
    /// Starts a server subcommand of this program and waits until it listens.
    pub(crate) fn start(
        subcommand: &'static str,
        arguments: &[String],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let directory = TempDir::with_prefix("microblog-load-")
            .context("cannot make a temporary directory: choose another place with TMPDIR")?;
        let log = directory.path().join("log");
        let program = env::current_exe().context("cannot determine the path of this program")?;
        let mut command = Command::new(program);
        command.arg(subcommand).args(arguments).args(LOG).envs(environment.iter().copied());
        let child = Child::start(subcommand, command, log.clone())?;
        let url = wait_for_address(&child, &log)?;
        Ok(Self { url, child, _directory: directory })
    }

    /// Returns the server's URL.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // SIGKILL, since a drain would wait for connections that clients close later.
        self.child.kill();
    }
}

/// Returns a chassis service that is always ready.
pub(crate) fn always_ready_service(name: &'static str, routes: Routes) -> chassis::Service {
    let ready = Arc::new(|| future::ready(true).boxed());
    chassis::Service { name, routes, handler: None, ready, background: Vec::new() }
}

/// Waits until the server logs its address.
fn wait_for_address(child: &Child, log: &Path) -> anyhow::Result<String> {
    let started = Instant::now();
    loop {
        let lines = fs::read_to_string(log).context("cannot read the server's log")?;
        if let Some(address) = lines.lines().find_map(address) {
            return Ok(format!("http://{address}"));
        }
        child.check()?;
        if started.elapsed() > START_TIMEOUT {
            bail!("a server does not listen within {START_TIMEOUT:?}:\n{}", child.end_of_log());
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the address from the log line `listening`.
fn address(line: &str) -> Option<String> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let is_it = line.get("message")?.as_str()? == "listening";
    is_it.then(|| line.get("address")?.as_str().map(str::to_owned)).flatten()
}

/// Makes the kernel kill this process when the thread that started it ends (`PR_SET_PDEATHSIG`).
#[cfg(target_os = "linux")]
pub(crate) fn end_with_parent() -> anyhow::Result<()> {
    Ok(nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?)
}

/// Does nothing: other kernels have no `PR_SET_PDEATHSIG`.
#[cfg(not(target_os = "linux"))]
pub(crate) fn end_with_parent() -> anyhow::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_parsed_from_the_log() {
        let line = r#"{"level":"INFO","message":"listening","address":"127.0.0.1:5","workers":1}"#;
        assert_eq!(address(line).as_deref(), Some("127.0.0.1:5"));
        for other in ["", "{}", r#"{"message":"listening"}"#, r#"{"message":"stopping"}"#] {
            assert_eq!(address(other), None, "{other}");
        }
    }
}
