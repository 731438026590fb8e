//! Child processes that end when the value is dropped, or when this process ends.

use std::{
    fs::{self, File},
    io,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{self, Command, Stdio},
    sync::{
        LazyLock, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Lines from the end of a log that contain a startup error with some context.
const LOG_LINES: usize = 12;
/// Longer than the drain timeout of the servers.
const STOP: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A running process that logs to a file.
pub(crate) struct Child {
    name: &'static str,
    process: Mutex<process::Child>,
    log: PathBuf,
}

impl Child {
    /// Starts a process and truncates its log.
    pub(crate) fn start(
        name: &'static str,
        mut command: Command,
        log: PathBuf,
    ) -> anyhow::Result<Self> {
        let named = || format!("cannot start {name} with its log in {}", log.display());
        let output = File::create(&log).with_context(named)?;
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone().with_context(named)?)
            .stderr(output)
            // Ctrl-C in a terminal signals the whole process group. The measured processes must not
            // exit before this one.
            .process_group(0);
        let process = Mutex::new(spawn(command).with_context(named)?);
        Ok(Self { name, process, log })
    }

    /// Returns the program's name.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the PID, which is valid while the value lives.
    pub(crate) fn id(&self) -> u32 {
        self.process().id()
    }

    /// Fails if the process has exited.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        match self.process().try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => bail!("{} exited ({status}):\n{}", self.name, self.end_of_log()),
            Err(error) => {
                Err(error).with_context(|| format!("cannot read the status of {}", self.name))
            }
        }
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        let mut process = self.process();
        // After a wait, the PID may be reused by another process.
        if let (Ok(None), Ok(id)) = (process.try_wait(), i32::try_from(process.id())) {
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        }
    }

    /// Returns the last lines of the log, prefixed with the program's name.
    pub(crate) fn end_of_log(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        let end = &lines[lines.len().saturating_sub(LOG_LINES)..];
        end.iter().map(|line| format!("{}: {line}\n", self.name)).collect()
    }

    fn process(&self) -> MutexGuard<'_, process::Child> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.terminate();
        let mut process = self.process();
        let started = Instant::now();
        while let Ok(None) = process.try_wait() {
            if started.elapsed() > STOP {
                eprintln!("{} does not exit within {STOP:?}: sending SIGKILL", self.name);
                let _ = process.kill();
                let _ = process.wait();
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

type SpawnRequest = (Command, Sender<io::Result<process::Child>>);

/// Spawns from a thread that lives as long as this process. `PR_SET_PDEATHSIG` fires when the
/// parent *thread* exits, and runtime threads exit early.
fn spawn(command: Command) -> io::Result<process::Child> {
    static SPAWNER: LazyLock<Sender<SpawnRequest>> = LazyLock::new(|| {
        let (sender, requests) = mpsc::channel::<SpawnRequest>();
        // Without this thread, the channel is closed and `spawn` returns an error.
        let _ = thread::Builder::new().name("spawner".to_owned()).spawn(move || {
            for (mut command, answer) in requests {
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let (sender, answer) = mpsc::channel();
    SPAWNER
        .send((command, sender))
        .map_err(|_| io::Error::other("cannot start the spawner thread"))?;
    answer.recv().map_err(|_| io::Error::other("the spawner thread ended"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, directory: &tempfile::TempDir) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Child::start("sh", command, directory.path().join("log")).unwrap()
    }

    #[test]
    fn the_error_for_an_exited_process_contains_the_end_of_its_log() {
        let directory = tempfile::tempdir().unwrap();
        let child = shell("echo first; echo no port >&2; exit 3", &directory);
        let started = Instant::now();
        let error = loop {
            match child.check() {
                Err(error) => break error.to_string(),
                Ok(()) => assert!(started.elapsed() < STOP, "the process does not exit"),
            }
            thread::sleep(POLL_INTERVAL);
        };
        assert!(error.contains("exit status: 3"), "{error}");
        assert!(error.ends_with("sh: first\nsh: no port\n"), "{error}");
    }

    #[test]
    fn drop_terminates_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let child = shell("exec sleep 600", &directory);
        let id = Pid::from_raw(i32::try_from(child.id()).unwrap());
        assert!(kill(id, None).is_ok());
        drop(child);
        assert!(kill(id, None).is_err());
    }
}
