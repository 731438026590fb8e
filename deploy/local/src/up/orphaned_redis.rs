//! Stops an orphaned redis-server, whose launcher was killed. It signals only a process that was
//! started on this data directory.

use std::{
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::data_dir::DataDir;

const STOP_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Stops the orphaned redis-server of this data directory, if there is one.
pub(super) fn stop(data: &DataDir) -> anyhow::Result<()> {
    let pid_file = data.redis_pid_file();
    let Ok(text) = fs::read_to_string(&pid_file) else { return Ok(()) };
    let Ok(pid) = text.trim().parse::<i32>() else { return Ok(()) };
    if !is_our_redis(pid, &data.redis_conf()) {
        return Ok(());
    }
    println!("stopping orphaned redis-server (process {pid}) of an earlier run");
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        kill(Pid::from_raw(pid), signal)
            .or_else(ignore_exited)
            .context("cannot stop the orphaned redis-server")?;
        let begun = Instant::now();
        while begun.elapsed() < STOP_TIMEOUT {
            if !is_our_redis(pid, &data.redis_conf()) {
                return Ok(());
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
    bail!("redis-server (process {pid}) of an earlier run does not exit: stop it manually")
}

fn ignore_exited(error: nix::Error) -> nix::Result<()> {
    if error == nix::Error::ESRCH { Ok(()) } else { Err(error) }
}

/// Returns whether a process was started with our configuration file. PIDs are reused, so the PID
/// alone does not identify it. An exiting process has no command line and counts as no match; the
/// launcher waits for its port instead.
fn is_our_redis(pid: i32, conf: &Path) -> bool {
    let Some(conf) = conf.to_str() else { return false };
    let arguments = match fs::read(format!("/proc/{pid}/cmdline")) {
        Ok(arguments) => arguments,
        // Without /proc. An exited process has no output.
        Err(_) => Command::new("ps")
            .args(["-o", "command=", "-p", &pid.to_string()])
            .output()
            .map(|output| output.stdout)
            .unwrap_or_default(),
    };
    String::from_utf8_lossy(&arguments).contains(conf)
}
