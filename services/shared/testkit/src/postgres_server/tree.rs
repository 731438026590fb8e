//! A process and its children, signalled together.

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

use crate::PATIENCE;

const POLL: Duration = Duration::from_millis(5);

/// Freezes a process and its children (SIGSTOP), and returns the children.
pub(super) fn freeze(parent: u32) -> Vec<i32> {
    // First the parent, which makes no more of them then; it may have made one just before.
    send(parent.cast_signed(), Signal::SIGSTOP);
    let mut frozen = Vec::new();
    loop {
        let children = children(parent);
        children.iter().for_each(|&child| send(child, Signal::SIGSTOP));
        if children == frozen {
            return frozen;
        }
        frozen = children;
    }
}

/// Wakes a process and its children (SIGCONT).
pub(super) fn thaw(parent: u32) {
    let children = children(parent);
    children.into_iter().for_each(|child| send(child, Signal::SIGCONT));
    send(parent.cast_signed(), Signal::SIGCONT);
}

/// Kills processes (SIGKILL).
pub(super) fn kill(processes: &[i32]) {
    processes.iter().for_each(|&process| send(process, Signal::SIGKILL));
}

/// Waits until processes are gone that were killed.
pub(super) fn wait_until_gone(processes: &[i32]) {
    let begun = Instant::now();
    while processes.iter().any(|&process| is_there(process)) {
        assert!(begun.elapsed() < PATIENCE, "not gone within {PATIENCE:?}: {processes:?}");
        thread::sleep(POLL);
    }
}

/// Returns the children of a process, in the order of their numbers.
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
    // It may have ended by itself.
    let _ = signal::kill(Pid::from_raw(process), signal);
}

fn is_there(process: i32) -> bool {
    // Where nobody waits for orphans, they stay in the table as zombies.
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    signal::kill(Pid::from_raw(process), None).is_ok() && !stat.contains(") Z ")
}

// Returns all processes of the machine, each with its parent.
fn processes() -> Vec<(i32, i32)> {
    let proc = Path::new("/proc/self/stat");
    if proc.exists() { listed_by_linux() } else { listed_by_ps() }
}

fn listed_by_linux() -> Vec<(i32, i32)> {
    let entries = fs::read_dir("/proc").expect("list the processes").flatten();
    let pair = |entry: fs::DirEntry| {
        let process = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The program's name in brackets may have spaces and brackets itself.
        let (_, rest) = stat.rsplit_once(") ")?;
        Some((process, rest.split(' ').nth(1)?.parse().ok()?))
    };
    entries.filter_map(pair).collect()
}

fn listed_by_ps() -> Vec<(i32, i32)> {
    let mut command = Command::new("ps");
    command.args(["-A", "-o", "pid=,ppid="]).stdin(Stdio::null());
    let output = command.output().expect("start ps");
    let pair = |line: &str| {
        let mut numbers = line.split_whitespace().map_while(|word| word.parse().ok());
        Some((numbers.next()?, numbers.next()?))
    };
    String::from_utf8_lossy(&output.stdout).lines().filter_map(pair).collect()
}
