//! A child process that dies with the test, however the test ends.

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

/// A running child with its output in a file. Dropping it kills it.
pub(crate) struct Running {
    child: Mutex<Child>,
    log: PathBuf,
}

impl Running {
    /// Starts a program with its output appended to a file. It is killed where the test ends
    /// before it.
    pub(crate) fn start(program: &str, args: &[String], log: &Path) -> Self {
        Self::start_with(program, args, log, "KILL", |_| {})
    }

    /// Starts a program like [`Self::start`], with a last word on its command. It gets a signal of
    /// one's choice, such as `QUIT`, where the test ends before it.
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
            watch(child.id(), death_signal);
        }
        Self { child: Mutex::new(child), log: log.to_owned() }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.id() as i32);
        kill(pid, signal).expect("signal the child");
    }

    /// Kills it and waits for its end.
    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().expect("no panic with a child in hand");
        // It may have ended by itself.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Returns how it ended, if it has.
    pub(crate) fn ended(&self) -> Option<ExitStatus> {
        let mut child = self.child.lock().expect("no panic with a child in hand");
        child.try_wait().expect("wait for the child")
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.lock().expect("no panic with a child in hand").id()
    }

    /// Returns all that it has written.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Says that a program is missing, before anything is started.
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

type Order = (Command, mpsc::Sender<std::io::Result<Child>>);

// The death signal comes when the *thread* that started the child ends, and tests' threads come and
// go: one thread that lives as long as the process starts all children.
fn spawn(command: Command) -> std::io::Result<Child> {
    static SPAWNER: LazyLock<Mutex<mpsc::Sender<Order>>> = LazyLock::new(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in orders {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (sender, answer) = mpsc::channel();
    let spawner = SPAWNER.lock().expect("the spawner does not panic");
    spawner.send((command, sender)).expect("the spawner lives");
    drop(spawner);
    answer.recv().expect("the spawner answers")
}

// Where the kernel has no death signal: a shell that outlives the test and then sends the signal.
fn watch(child: u32, death_signal: &str) {
    // If the child is gone, its number may be somebody else's by now.
    const SCRIPT: &str =
        "while kill -0 $0 && kill -0 $1; do sleep 1; done; kill -0 $0 || kill -s $2 $1";
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT, &std::process::id().to_string(), &child.to_string()]);
    command.arg(death_signal);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    drop(command.spawn().expect("start a shell"));
}
