//! A process that was started here: it ends with the value, or with this process, whichever is first.

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

/// From the end of a log: what a server says of why it cannot start, and a little before.
const LOG_LINES: usize = 12;
/// Longer than calls under way are given.
const STOP: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// A running process with its output in a file.
pub(crate) struct Child {
    name: &'static str,
    process: Mutex<process::Child>,
    log: PathBuf,
}

impl Child {
    /// Starts it; the log is written anew.
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
            // Ctrl-C in a terminal goes to the whole process group: what is measured must not end
            // before what measures it.
            .process_group(0);
        let process = Mutex::new(spawn(command).with_context(named)?);
        Ok(Self { name, process, log })
    }

    /// Returns the name of its program.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns its process id, which is its own as long as the value lives.
    pub(crate) fn id(&self) -> u32 {
        self.process().id()
    }

    /// Fails if it has ended.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        match self.process().try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => bail!("{} ended ({status}):\n{}", self.name, self.end_of_log()),
            Err(error) => Err(error).with_context(|| format!("cannot ask after {}", self.name)),
        }
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        let mut process = self.process();
        // Once it has been waited for, its id may be somebody else's.
        if let (Ok(None), Ok(id)) = (process.try_wait(), i32::try_from(process.id())) {
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        }
    }

    /// Ends it at once, whatever is under way.
    pub(crate) fn kill(&self) {
        // Fails for one that has ended, of which nothing is left to be done.
        let _ = self.process().kill();
    }

    /// Returns the last lines that it wrote, each with its name.
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
        let begun = Instant::now();
        while let Ok(None) = process.try_wait() {
            if begun.elapsed() > STOP {
                eprintln!("{} does not end within {STOP:?}: killing it", self.name);
                let _ = process.kill();
                let _ = process.wait();
                return;
            }
            thread::sleep(POLL);
        }
    }
}

type Order = (Command, Sender<io::Result<process::Child>>);

/// Starts a program in a thread that lives as long as this process: children are told to end when
/// the *thread* that started them does, and those of a runtime come and go.
fn spawn(command: Command) -> io::Result<process::Child> {
    static SPAWNER: LazyLock<Sender<Order>> = LazyLock::new(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        // If there can be no thread, orders find nobody.
        let _ = thread::Builder::new().name("spawner".to_owned()).spawn(move || {
            for (mut command, answer) in orders {
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let (sender, answer) = mpsc::channel();
    SPAWNER.send((command, sender)).map_err(|_| io::Error::other("no thread can be started"))?;
    answer.recv().map_err(|_| io::Error::other("the thread that starts programs ended"))?
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
    fn one_that_ended_is_told_with_its_last_words() {
        let directory = tempfile::tempdir().unwrap();
        let child = shell("echo first; echo no port >&2; exit 3", &directory);
        let begun = Instant::now();
        let error = loop {
            match child.check() {
                Err(error) => break error.to_string(),
                Ok(()) => assert!(begun.elapsed() < STOP, "it does not end"),
            }
            thread::sleep(POLL);
        };
        assert!(error.contains("exit status: 3"), "{error}");
        assert!(error.ends_with("sh: first\nsh: no port\n"), "{error}");
    }

    #[test]
    fn it_ends_with_the_value() {
        let directory = tempfile::tempdir().unwrap();
        let child = shell("exec sleep 600", &directory);
        let id = Pid::from_raw(i32::try_from(child.id()).unwrap());
        assert!(kill(id, None).is_ok());
        drop(child);
        assert!(kill(id, None).is_err());
    }
}
