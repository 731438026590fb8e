//! A `microblog up` of a test's own, and the other commands called on it: each as a real process.

use std::{
    fs::{self, File},
    io::Write as _,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use microblog_testkit::{PATIENCE, redis};
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_microblog");

const POLL: Duration = Duration::from_millis(20);

/// A running launcher. Dropping it kills it, and redis-server with it where the system can do that.
pub(crate) struct Launcher {
    child: Child,
    data: PathBuf,
    output: PathBuf,
    pub(crate) port_base: u16,
}

/// How a command ended, and what it said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Launcher {
    /// Starts one on a data directory and waits until it is ready.
    pub(crate) fn start(data: &Path, flags: &[&str]) -> Self {
        Self::start_by(Command::new(PROGRAM), data, flags)
    }

    /// Starts one by a command that still lacks its arguments.
    pub(crate) fn start_by(command: Command, data: &Path, flags: &[&str]) -> Self {
        Self::start_at(free_ports(), command, data, flags)
    }

    /// Starts one by such a command, on these ports.
    pub(crate) fn start_at(
        port_base: u16,
        mut command: Command,
        data: &Path,
        flags: &[&str],
    ) -> Self {
        let output = Self::output(data, port_base);
        let written = File::create(&output).unwrap();
        command.args(["up", "--threads", "2", "--port-base", &port_base.to_string()]);
        command.arg("--data-dir").arg(data).args(flags).stdin(Stdio::null());
        command.stdout(written.try_clone().unwrap()).stderr(written);
        let child = command.spawn().unwrap();
        let mut launcher = Self { child, data: data.to_owned(), output, port_base };
        launcher.wait_to_say("\nready\n");
        launcher
    }

    /// Returns the address of one of the servers: 0 gateway, 1 user, 2 relation, 3 post,
    /// 4 timeline.
    pub(crate) fn url(&self, server: u16) -> String {
        format!("http://127.0.0.1:{}", self.port_base + server)
    }

    /// Returns the file that has what a launcher says.
    pub(crate) fn output(data: &Path, port_base: u16) -> PathBuf {
        data.with_extension(format!("{port_base}.out"))
    }

    /// Returns all that it has said so far.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    /// Waits until it has said this.
    pub(crate) fn wait_to_say(&mut self, text: &str) {
        eventually(text, PATIENCE, || {
            let said = self.said();
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() || said.contains(text), "{ended:?} without `{text}`: {said}");
            said.contains(text)
        });
    }

    /// Returns the process id of its redis-server.
    pub(crate) fn redis(&self) -> Pid {
        let pid = fs::read_to_string(self.data.join("redis/redis.pid")).unwrap();
        Pid::from_raw(pid.trim().parse().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for its end and returns how that was.
    pub(crate) fn ended(&mut self, within: Duration) -> ExitStatus {
        let mut status = None;
        eventually("the launcher ends", within, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        // It is killed when it is late, so that the launcher ends all the same.
        let late = "redis-server does not end within";
        assert!(!self.said().contains(late), "{}", self.said());
        status.unwrap()
    }

    /// Imports an edge list, given as text, and returns what the command said.
    pub(crate) fn import(&self, edges: &str) -> String {
        let urls = ["--user-url", &self.url(1), "--relation-url", &self.url(2)];
        let ended = run(&[&["import", "-"], &urls[..]].concat(), edges);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stdout
    }

    /// Has everything verified.
    pub(crate) fn verify(&self) -> Ended {
        self.verify_of("all")
    }

    /// Waits until a check of everything finds nothing wrong, and nothing under way any more, and
    /// returns what it said.
    pub(crate) fn verified(&self) -> Ended {
        let mut verified = None;
        eventually("all is well", PATIENCE, || {
            let is_done = |ended: &Ended| {
                ended.code == Some(0)
                    && !ended.stdout.contains("wait to be")
                    && ended.stdout.contains("timelines  0 fan-out jobs in flight\n")
            };
            verified = Some(self.verify()).filter(is_done);
            verified.is_some()
        });
        verified.unwrap()
    }

    /// Has one account verified, or `all`.
    pub(crate) fn verify_of(&self, user: &str) -> Ended {
        self.verify_with(&["--user", user])
    }

    /// Has everything repaired.
    pub(crate) fn repair(&self) -> Ended {
        self.verify_with(&["--repair"])
    }

    fn verify_with(&self, flags: &[&str]) -> Ended {
        let urls = ["user", "relation", "post", "timeline"];
        let urls =
            urls.iter().zip(1..).map(|(name, server)| format!("--{name}-url={}", self.url(server)));
        let urls: Vec<_> = urls.collect();
        let urls: Vec<_> = urls.iter().map(String::as_str).collect();
        run(&[&["verify"], flags, &urls[..]].concat(), "")
    }

    /// Returns a connection to its redis-server that may do everything there.
    pub(crate) fn admin(&self) -> redis::Connection {
        let passwords = fs::read_to_string(self.data.join("redis/passwords")).unwrap();
        let password = passwords.lines().find_map(|line| line.strip_prefix("admin ")).unwrap();
        let url = format!("redis://admin:{password}@127.0.0.1:{}", self.port_base + 9);
        redis::Client::open(url).unwrap().get_connection().unwrap()
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the launcher said:\n{}", self.said());
        }
    }
}

/// Runs another command of the program to its end.
pub(crate) fn run(args: &[&str], input: &str) -> Ended {
    let mut child = Command::new(PROGRAM)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may refuse before it has read all.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Waits until a condition holds, with a bound.
pub(crate) fn eventually(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < within, "not within {within:?}: {what}");
        thread::sleep(POLL);
    }
}

/// Waits until a process that is not our child is gone.
pub(crate) fn gone(pid: Pid) {
    eventually("the process is gone", PATIENCE, || {
        // Where nobody waits for orphans, they stay in the table as zombies.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        kill(pid, None) == Err(Errno::ESRCH) || stat.contains(") Z ")
    });
}

/// Returns the first of ten ports of 127.0.0.1 that nobody listens on, below those that the kernel
/// gives to outgoing connections.
pub(crate) fn free_ports() -> u16 {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut bases = std::iter::repeat_with(|| rand::random_range(1_000..3_200) * 10);
    bases.find(|&base| (base..base + 10).all(free)).unwrap()
}
