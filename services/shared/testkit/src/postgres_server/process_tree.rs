//! Signals to a process and its children.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};

use crate::WAIT_TIMEOUT;

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Stops a process and its children (SIGSTOP), and returns the children.
pub(super) fn stop(parent: u32) -> Vec<i32> {
    // Stop the parent first: it forks no more children then. Repeat, since it may have forked just
    // before.
    send(parent.cast_signed(), Signal::SIGSTOP);
    let mut stopped = Vec::new();
    loop {
        let children = children(parent);
        children.iter().for_each(|&child| send(child, Signal::SIGSTOP));
        if children == stopped {
            return stopped;
        }
        stopped = children;
    }
}

/// Continues a process and its children (SIGCONT).
pub(super) fn resume(parent: u32) {
    let children = children(parent);
    children.into_iter().for_each(|child| send(child, Signal::SIGCONT));
    send(parent.cast_signed(), Signal::SIGCONT);
}

/// Kills processes (SIGKILL).
pub(super) fn kill(processes: &[i32]) {
    processes.iter().for_each(|&process| send(process, Signal::SIGKILL));
}

/// Waits until killed processes have exited.
pub(super) fn wait_until_exited(processes: &[i32]) {
    let started = Instant::now();
    while processes.iter().any(|&process| is_running(process)) {
        assert!(
            started.elapsed() < WAIT_TIMEOUT,
            "still running after {WAIT_TIMEOUT:?}: {processes:?}"
        );
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the children of a process, ordered by PID.
pub(super) fn children(parent: u32) -> Vec<i32> {
    let mut children: Vec<i32> = processes()
        .into_iter()
        .filter(|&(_, its_parent)| its_parent == parent.cast_signed())
        .map(|(process, _)| process)
        .collect();
    children.sort_unstable();
    children
}

fn send(process: i32, signal: Signal) {
    // The process may have exited already.
    let _ = signal::kill(Pid::from_raw(process), signal);
}

fn is_running(process: i32) -> bool {
    // Without an init process that reaps orphans, they stay as zombies.
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    signal::kill(Pid::from_raw(process), None).is_ok() && !stat.contains(") Z ")
}

// Returns the PID and parent PID of all processes.
fn processes() -> Vec<(i32, i32)> {
    let proc = Path::new("/proc/self/stat");
    if proc.exists() { list_procfs() } else { list_with_ps() }
}

fn list_procfs() -> Vec<(i32, i32)> {
    let entries = fs::read_dir("/proc").expect("list the processes").flatten();
    let pair = |entry: fs::DirEntry| {
        let process = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The program name, in parentheses, may contain spaces and parentheses.
        let (_, rest) = stat.rsplit_once(") ")?;
        Some((process, rest.split(' ').nth(1)?.parse().ok()?))
    };
    entries.filter_map(pair).collect()
}

fn list_with_ps() -> Vec<(i32, i32)> {
    let mut command = Command::new("ps");
    command.args(["-A", "-o", "pid=,ppid="]).stdin(Stdio::null());
    let output = command.output().expect("start ps");
    let pair = |line: &str| {
        let mut numbers = line.split_whitespace().map_while(|word| word.parse().ok());
        Some((numbers.next()?, numbers.next()?))
    };
    String::from_utf8_lossy(&output.stdout).lines().filter_map(pair).collect()
}
