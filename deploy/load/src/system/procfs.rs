//! CPU time and memory of processes from `/proc` (Linux only).

use std::{fs, io};

use anyhow::Context as _;
use nix::unistd::{SysconfVar, sysconf};

use super::usage::ProcessUsage;

// The index of utime among the fields of /proc/PID/stat after the program name, followed by stime,
// cutime and cstime (proc_pid_stat(5), where the name is field 2 and utime field 14).
const UTIME: usize = 11;
const TIMES: usize = 4;

/// Returns the usage of processes so far; nothing on systems other than Linux.
pub(super) fn usage<'a>(
    processes: impl Iterator<Item = (&'a str, u32)>,
) -> anyhow::Result<Vec<ProcessUsage>> {
    if !cfg!(target_os = "linux") {
        return Ok(Vec::new());
    }
    let ticks = ticks_per_second()?;
    processes.map(|(name, id)| of_process(name, id, ticks)).collect()
}

/// Returns the CPU time of processes so far. Skips those that have exited: their parent has their
/// time.
pub(super) fn cpu_us(processes: &[u32]) -> anyhow::Result<u64> {
    let stats =
        processes.iter().filter_map(|id| fs::read_to_string(format!("/proc/{id}/stat")).ok());
    let ticks: u64 = stats.filter_map(|stat| cpu_ticks(&stat)).sum();
    Ok(ticks * 1_000_000 / ticks_per_second()?)
}

fn of_process(name: &str, id: u32, ticks_per_second: u64) -> anyhow::Result<ProcessUsage> {
    let read =
        |file: &str| -> io::Result<String> { fs::read_to_string(format!("/proc/{id}/{file}")) };
    let named = || format!("cannot read the usage of {name} (process {id}) from /proc");
    let stat = read("stat").with_context(named)?;
    let status = read("status").with_context(named)?;
    let ticks = cpu_ticks(&stat).context("cannot parse `stat`").with_context(named)?;
    let bytes = |field: &str| {
        let bytes = size(&status, field).with_context(|| format!("no {field} in `status`"));
        bytes.with_context(named)
    };
    Ok(ProcessUsage {
        name: name.to_owned(),
        cpu_us: ticks * 1_000_000 / ticks_per_second,
        resident_bytes: bytes("VmRSS")?,
        anonymous_bytes: bytes("RssAnon")?,
    })
}

fn ticks_per_second() -> anyhow::Result<u64> {
    let ticks = sysconf(SysconfVar::CLK_TCK).context("cannot read CLK_TCK")?;
    let ticks = ticks.and_then(|ticks| u64::try_from(ticks).ok()).filter(|&ticks| ticks > 0);
    ticks.context("CLK_TCK is not positive")
}

/// Reads user and system time from `stat`, including that of exited children, such as the process
/// that rewrites the append-only file.
fn cpu_ticks(stat: &str) -> Option<u64> {
    // The name, in parentheses, may contain spaces and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    let times: Vec<&str> = fields.split_whitespace().skip(UTIME).take(TIMES).collect();
    if times.len() < TIMES {
        return None;
    }
    times.into_iter().map(|time| time.parse::<u64>().ok()).sum()
}

/// Reads a size from `status`, in bytes.
fn size(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_parsed_for_any_program_name() {
        let rest = "S 1 2 3 0 -1 4194560 5 6 7 8 120 30 4 1 20 0 3 0 99 1000 50 1844";
        for name in ["redis-server", "a b", "a) S 1 (b"] {
            assert_eq!(cpu_ticks(&format!("17 ({name}) {rest}")), Some(155), "{name}");
        }
        assert_eq!(cpu_ticks("17 (short) S 1 2 3"), None);
        assert_eq!(cpu_ticks(""), None);
    }

    #[test]
    fn sizes_are_parsed() {
        let status = "Name:\tmicroblog\nVmHWM:\t   9000 kB\nVmRSS:\t   8612 kB\nRssAnon:\t 1 kB\n";
        assert_eq!(size(status, "VmRSS"), Some(8612 * 1024));
        assert_eq!(size(status, "RssAnon"), Some(1024));
        assert_eq!(size("Name:\tkthreadd\n", "VmRSS"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_usage_of_this_process_is_read() {
        let usage = usage([("this one", std::process::id())].into_iter()).unwrap();
        assert_eq!(usage[0].name, "this one");
        assert!(usage[0].resident_bytes > 100_000);
    }
}
