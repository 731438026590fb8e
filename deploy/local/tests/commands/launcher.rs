//! Test harness of `microblog up`, and of the other commands on it, as real processes.

use std::{
    fs::{self, File},
    io::Write as _,
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
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, SqliteConnection};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_microblog");

const POLL: Duration = Duration::from_millis(20);
// A full check takes ten seconds and more on a busy machine.
const VERIFIED: Duration = PATIENCE.saturating_mul(3);

/// A running launcher. Dropping it kills it, and its redis-server where the system supports it.
pub(crate) struct Launcher {
    child: Child,
    data: PathBuf,
    output: PathBuf,
    pub(crate) port_base: u16,
}

/// Exit code and output of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Launcher {
    /// Starts a launcher on a data directory and waits until it is ready.
    pub(crate) fn start(data: &Path, flags: &[&str]) -> Self {
        Self::start_by(Command::new(PROGRAM), data, flags)
    }

    /// Starts a launcher with a command without arguments.
    pub(crate) fn start_by(command: Command, data: &Path, flags: &[&str]) -> Self {
        Self::start_at(free_ports(), command, data, flags)
    }

    /// Starts a launcher with a command without arguments, on these ports.
    pub(crate) fn start_at(
        port_base: u16,
        mut command: Command,
        data: &Path,
        flags: &[&str],
    ) -> Self {
        let output = Self::output_file(data, port_base);
        let written = File::create(&output).unwrap();
        command.args(["up", "--threads", "2", "--port-base", &port_base.to_string()]);
        command.arg("--data-dir").arg(data).args(flags).stdin(Stdio::null());
        command.stdout(written.try_clone().unwrap()).stderr(written);
        let child = command.spawn().unwrap();
        let mut launcher = Self { child, data: data.to_owned(), output, port_base };
        launcher.wait_for_output("\nready\n");
        launcher
    }

    /// Returns the URL of a server: 0 gateway, 1 user, 2 relation, 3 post, 4 timeline.
    pub(crate) fn url(&self, server: u16) -> String {
        format!("http://127.0.0.1:{}", self.port_base + server)
    }

    /// Returns the file of the launcher's output.
    pub(crate) fn output_file(data: &Path, port_base: u16) -> PathBuf {
        data.with_extension(format!("{port_base}.out"))
    }

    /// Returns the output so far.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    /// Waits until the output contains a text.
    pub(crate) fn wait_for_output(&mut self, text: &str) {
        eventually(text, PATIENCE, || {
            let output = self.output();
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() || output.contains(text),
                "{ended:?} without `{text}`: {output}"
            );
            output.contains(text)
        });
    }

    /// Returns the PID of its redis-server.
    pub(crate) fn redis(&self) -> Pid {
        let pid = fs::read_to_string(self.data.join("redis/redis.pid")).unwrap();
        Pid::from_raw(pid.trim().parse().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for its exit and returns the status.
    pub(crate) fn ended(&mut self, within: Duration) -> ExitStatus {
        let mut status = None;
        eventually("the launcher exits", within, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        // A late redis-server is killed, and the launcher exits with success.
        let late = "redis-server does not exit within";
        assert!(!self.output().contains(late), "{}", self.output());
        status.unwrap()
    }

    /// Imports an edge list from text, and returns the result of the command.
    pub(crate) fn import(&self, edges: &str) -> String {
        let urls = ["--user-url", &self.url(1), "--relation-url", &self.url(2)];
        let ended = run(&[&["import", "-"], &urls[..]].concat(), edges);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stdout
    }

    /// Runs `microblog verify`.
    pub(crate) fn verify(&self) -> Ended {
        self.verify_of("all")
    }

    /// Waits until a full check finds no violations and no pending work, and returns its result.
    pub(crate) fn verified(&self) -> Ended {
        let begun = Instant::now();
        loop {
            let ended = self.verify();
            if ended.code == Some(0)
                && ended.stdout.contains("timelines  0 fan-out jobs in flight\n")
            {
                return ended;
            }
            assert!(begun.elapsed() < VERIFIED, "{:?} after {:?}", ended, begun.elapsed());
            thread::sleep(POLL);
        }
    }

    /// Verifies an account, or `all`.
    pub(crate) fn verify_of(&self, user: &str) -> Ended {
        self.verify_with(&["--user", user])
    }

    /// Returns the flags with the URLs of the services.
    pub(crate) fn service_urls(&self) -> Vec<String> {
        let names = ["user", "relation", "post", "timeline", "notice"];
        let url = |(name, server)| format!("--{name}-url={}", self.url(server));
        names.iter().zip(1..).map(url).collect()
    }

    pub(crate) fn verify_with(&self, flags: &[&str]) -> Ended {
        let urls = self.service_urls();
        let urls: Vec<_> = urls.iter().map(String::as_str).collect();
        run(&[&["verify"], flags, &urls[..]].concat(), "")
    }

    /// Executes a statement in the database of a service.
    pub(crate) fn execute(&self, service: &str, sql: &str) {
        let url = format!("sqlite://{}", self.data.join(format!("{service}.sqlite")).display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut connection = SqliteConnection::connect(&url).await.unwrap();
            connection.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
            connection.close().await.unwrap();
        });
    }

    /// Returns an administrator's connection to its redis-server.
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
            eprintln!("output of the launcher:\n{}", self.output());
        }
    }
}

/// Runs another command of the program until it exits.
pub(crate) fn run(args: &[&str], input: &str) -> Ended {
    let mut child = Command::new(PROGRAM)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The command may exit before it has read all input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Polls until a condition holds, with a timeout.
pub(crate) fn eventually(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < within, "not within {within:?}: {what}");
        thread::sleep(POLL);
    }
}

/// Waits until a process exits that is not a child.
pub(crate) fn wait_until_exited(pid: Pid) {
    eventually("the process has exited", PATIENCE, || {
        // Without an init process that reaps orphans, they stay as zombies.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        kill(pid, None) == Err(Errno::ESRCH) || stat.contains(") Z ")
    });
}

/// Returns the first of the ports of a launcher: ten that are free, and that no other test gets.
pub(crate) fn free_ports() -> u16 {
    microblog_testkit::free_ports(10)
}
