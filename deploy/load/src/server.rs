//! A server of this program in a process of its own, as what it is compared with has one.

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

use crate::child::Child;

/// For a process to start and listen, on a machine that is busy with what was measured before it.
const START_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

/// As `microblog up` logs, and where it listens.
const LOG: [&str; 2] = ["--log=warn,microblog_chassis::process=info", "--log-format=json"];

/// A process that serves, ended when the value is dropped.
pub(crate) struct Server {
    url: String,
    // Ends before its log goes.
    child: Child,
    _directory: TempDir,
}

impl Server {
    /// Starts a subcommand of this program that serves, and waits until it listens.
    pub(crate) fn start(
        subcommand: &'static str,
        arguments: &[String],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let directory = TempDir::with_prefix("microblog-load-")
            .context("cannot make a temporary directory: choose another place with TMPDIR")?;
        let log = directory.path().join("log");
        let program = env::current_exe().context("cannot tell which program this is")?;
        let mut command = Command::new(program);
        command.arg(subcommand).args(arguments).args(LOG).envs(environment.iter().copied());
        let child = Child::start(subcommand, command, log.clone())?;
        let url = listening(&child, &log)?;
        Ok(Self { url, child, _directory: directory })
    }

    /// Returns where it listens.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing that it does is of use to anybody, and it would wait for connections to close,
        // which those who made them do later.
        self.child.kill();
    }
}

/// Returns a service that is always ready, as the chassis serves it.
pub(crate) fn bare_service(name: &'static str, routes: Routes) -> chassis::Service {
    let ready = Arc::new(|| future::ready(true).boxed());
    chassis::Service { name, routes, handler: None, ready, background: Vec::new() }
}

/// Waits until a server says in its log where it listens.
fn listening(child: &Child, log: &Path) -> anyhow::Result<String> {
    let begun = Instant::now();
    loop {
        let lines = fs::read_to_string(log).context("a server has no log")?;
        if let Some(address) = lines.lines().find_map(address) {
            return Ok(format!("http://{address}"));
        }
        child.check()?;
        if begun.elapsed() > START_MAX {
            bail!("a server does not listen within {START_MAX:?}:\n{}", child.end_of_log());
        }
        thread::sleep(POLL);
    }
}

/// Returns the address in the line that says where a server listens.
fn address(line: &str) -> Option<String> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let is_it = line.get("message")?.as_str()? == "listening";
    is_it.then(|| line.get("address")?.as_str().map(str::to_owned)).flatten()
}

/// Has the kernel end this process, a server, when the thread ends that started it, however it does.
#[cfg(target_os = "linux")]
pub(crate) fn end_with_parent() -> anyhow::Result<()> {
    Ok(nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?)
}

/// Does nothing: other kernels have nothing of the kind.
#[cfg(not(target_os = "linux"))]
pub(crate) fn end_with_parent() -> anyhow::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_says_where_it_listens_is_found() {
        let line = r#"{"level":"INFO","message":"listening","address":"127.0.0.1:5","workers":1}"#;
        assert_eq!(address(line).as_deref(), Some("127.0.0.1:5"));
        for other in ["", "{}", r#"{"message":"listening"}"#, r#"{"message":"stopping"}"#] {
            assert_eq!(address(other), None, "{other}");
        }
    }
}
