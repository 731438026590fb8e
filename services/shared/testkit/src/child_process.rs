//! Child processes that the kernel kills when the test process ends.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{LazyLock, Mutex, mpsc},
    thread,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A child process that logs to a file. Dropping it kills it.
pub(crate) struct ChildProcess {
    child: Mutex<Child>,
    log: PathBuf,
}

impl ChildProcess {
    /// Starts a program and appends its output to a file. It receives SIGKILL if the test process
    /// ends first.
    pub(crate) fn start(program: &str, args: &[String], log: &Path) -> Self {
        Self::start_with(program, args, log, "KILL", |_| {})
    }

    /// Starts a program like [`Self::start`]. `prepare` changes the command. The child receives
    /// `death_signal`, such as `QUIT`, if the test process ends first.
    pub(crate) fn start_with(
        program: &str,
        args: &[String],
        log: &Path,
        death_signal: &str,
        prepare: impl FnOnce(&mut Command),
    ) -> Self {
        let output = File::options().create(true).append(true).open(log).expect("open the log");
        let mut command = Command::new("setpriv");
        if has_setpriv() {
            command.args(["--pdeathsig", death_signal, "--", program]);
        } else {
            command = Command::new(program);
        }
        command.args(args).stdin(Stdio::null());
        command.stdout(output.try_clone().expect("clone the log")).stderr(output);
        prepare(&mut command);
        let child = match spawn(command) {
            Ok(child) => child,
            Err(error) => panic!("cannot start {program}: {error}"),
        };
        if !has_setpriv() {
            start_watchdog(child.id(), death_signal);
        }
        Self { child: Mutex::new(child), log: log.to_owned() }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.id() as i32);
        kill(pid, signal).expect("signal the child");
    }

    /// Kills it and waits for its end.
    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().expect("no panic with the lock held");
        // The process may have exited already.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Returns the exit status, if the process has exited.
    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        let mut child = self.child.lock().expect("no panic with the lock held");
        child.try_wait().expect("wait for the child")
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.lock().expect("no panic with the lock held").id()
    }

    /// Has the process killed after the test process in another way: the kernel forgets the signal of
    /// one that changes its user.
    pub(crate) fn watch(&self) {
        start_watchdog(self.id(), "KILL");
    }

    /// Returns the output so far.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Panics if a program is missing.
pub(crate) fn require(program: &str) {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).status();
    assert!(
        found.is_ok_and(|status| status.success()),
        "these tests need `{program}` in PATH (see deploy/install-redis)"
    );
}

fn has_setpriv() -> bool {
    static HAS: LazyLock<bool> = LazyLock::new(|| {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "true"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    });
    *HAS
}

type SpawnRequest = (Command, mpsc::Sender<std::io::Result<Child>>);

// `PR_SET_PDEATHSIG` fires when the parent *thread* exits, and test threads exit early. One thread
// that lives as long as the process therefore spawns all children.
fn spawn(command: Command) -> std::io::Result<Child> {
    static SPAWNER: LazyLock<Mutex<mpsc::Sender<SpawnRequest>>> = LazyLock::new(|| {
        let (sender, requests) = mpsc::channel::<SpawnRequest>();
        thread::spawn(move || {
            for (mut command, result) in requests {
                let _ = result.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (sender, result) = mpsc::channel();
    let spawner = SPAWNER.lock().expect("the spawner does not panic");
    spawner.send((command, sender)).expect("the spawner runs");
    drop(spawner);
    result.recv().expect("the spawner replies")
}

// Without `PR_SET_PDEATHSIG`: a shell outlives the test process and then sends the
// signal.
fn start_watchdog(child: u32, death_signal: &str) {
    // The PID of an exited child may be reused, so the shell checks it in each iteration.
    const SCRIPT: &str =
        "while kill -0 $0 && kill -0 $1; do sleep 1; done; kill -0 $0 || kill -s $2 $1";
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT, &std::process::id().to_string(), &child.to_string()]);
    command.arg(death_signal);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    drop(command.spawn().expect("start a shell"));
}
