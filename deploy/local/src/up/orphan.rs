//! What to do about a redis-server that outlived its launcher, which was killed. Touches no
//! process but one that was started on this very data directory.

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

use super::data::DataDir;

const GRACE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);

/// Stops the redis-server that a dead launcher left on this data directory, if there is one.
pub(super) fn stop(data: &DataDir) -> anyhow::Result<()> {
    let pid_file = data.redis_pid_file();
    let Ok(text) = fs::read_to_string(&pid_file) else { return Ok(()) };
    let Ok(pid) = text.trim().parse::<i32>() else { return Ok(()) };
    if !is_ours(pid, &data.redis_conf()) {
        return Ok(());
    }
    println!("stopping the redis-server (process {pid}) that an earlier run left behind");
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        kill(Pid::from_raw(pid), signal).or_else(ignore_gone).context("cannot stop it")?;
        let begun = Instant::now();
        while begun.elapsed() < GRACE {
            if !is_ours(pid, &data.redis_conf()) {
                return Ok(());
            }
            thread::sleep(POLL);
        }
    }
    bail!("redis-server (process {pid}) of an earlier run does not end: stop it by hand")
}

fn ignore_gone(error: nix::Error) -> nix::Result<()> {
    if error == nix::Error::ESRCH { Ok(()) } else { Err(error) }
}

/// Returns whether this process was started with our configuration file: process ids are used
/// again, so that the number alone tells nothing. One that is ending has no command line any more,
/// and counts as none: its port is waited for.
fn is_ours(pid: i32, conf: &Path) -> bool {
    let Some(conf) = conf.to_str() else { return false };
    let arguments = match fs::read(format!("/proc/{pid}/cmdline")) {
        Ok(arguments) => arguments,
        // Where there is no /proc. A process that is gone gives no output.
        Err(_) => Command::new("ps")
            .args(["-o", "command=", "-p", &pid.to_string()])
            .output()
            .map(|output| output.stdout)
            .unwrap_or_default(),
    };
    String::from_utf8_lossy(&arguments).contains(conf)
}
