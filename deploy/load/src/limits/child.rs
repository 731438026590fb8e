//! A server of this program in a process of its own.

use std::{
    env,
    io::{BufRead as _, BufReader},
    process::{Child, ChildStderr, Command, Stdio},
    sync::mpsc::{self, Sender},
    thread,
    time::Duration,
};

use anyhow::Context as _;

/// For a process to start and listen.
const START_MAX: Duration = Duration::from_secs(10);

/// A process that serves, ended when the value is dropped, and by the kernel when the thread ends
/// that started it.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    url: String,
}

impl Server {
    /// Starts `microblog-load serve` with these arguments, and waits until it listens.
    pub(super) fn start(arguments: &[String]) -> anyhow::Result<Self> {
        let program = env::current_exe().context("cannot tell which program this is")?;
        let mut command = Command::new(program);
        command.arg("serve").args(arguments).args(["--log-format", "json"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start a server")?;
        let log = child.stderr.take().context("a server has no log")?;
        // Made now, so that the child is ended if anything below fails.
        let mut server = Self { child, url: String::new() };
        let (tell, told) = mpsc::channel();
        thread::Builder::new().name("server-log".to_owned()).spawn(|| read(log, tell))?;
        server.url = told.recv_timeout(START_MAX).context("a server does not listen")?;
        Ok(server)
    }

    /// Returns where it listens.
    pub(super) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Neither fails but for a process that is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a server's log to its end: tells where it listens, and repeats all else.
fn read(log: ChildStderr, tell: Sender<String>) {
    for line in BufReader::new(log).lines().map_while(Result::ok) {
        match address(&line) {
            // Nobody waits any more if it took too long.
            Some(address) => drop(tell.send(format!("http://{address}"))),
            None => eprintln!("{line}"),
        }
    }
}

/// Returns the address in the line that says where a server listens.
fn address(line: &str) -> Option<String> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let is_it = line.get("message")?.as_str()? == "listening";
    is_it.then(|| line.get("address")?.as_str().map(str::to_owned)).flatten()
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
