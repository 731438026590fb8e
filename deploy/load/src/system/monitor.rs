//! Estimates which commands clients sent and which functions called. INFO counts both together, and
//! the time of a function includes its commands. MONITOR marks commands inside functions.

use std::collections::BTreeMap;

use crate::redis_info::CommandStats;

/// Commands of this program, which are excluded.
const EXCLUDED: [&str; 2] = ["info", "monitor"];

/// A MONITOR sample: counts per command.
#[derive(Clone, Debug, Default)]
pub(super) struct MonitorSample(BTreeMap<String, Origin>);

#[derive(Clone, Copy, Debug, Default)]
struct Origin {
    by_clients: u64,
    by_functions: u64,
}

impl MonitorSample {
    /// Counts lines of MONITOR.
    #[cfg(test)]
    pub(super) fn from_lines<'a>(lines: impl Iterator<Item = &'a str>) -> Self {
        let mut sample = Self::default();
        lines.for_each(|line| sample.record(line));
        sample
    }

    /// Counts a line of MONITOR: `1700000000.000001 [0 127.0.0.1:5001] "GET" "key"`. A command
    /// inside a function has `lua` in place of the address.
    pub(super) fn record(&mut self, line: &str) {
        let Some((_, line)) = line.split_once('[') else { return };
        let Some((source, line)) = line.split_once("] \"") else { return };
        let Some((name, _)) = line.split_once('"') else { return };
        let origin = self.0.entry(name.to_lowercase()).or_default();
        if source.ends_with(" lua") { origin.by_functions += 1 } else { origin.by_clients += 1 }
    }

    /// Returns the part of the INFO statistics that clients sent: of each command, the share in the
    /// sample. A command that is not in the sample counts in full.
    pub(super) fn sent(&self, by_name: &BTreeMap<String, CommandStats>) -> CommandStats {
        let of_system = by_name.iter().filter(|(name, _)| !EXCLUDED.contains(&name.as_str()));
        of_system.fold(CommandStats::default(), |sum, (name, executed)| {
            let (sent, all) = self.share(name);
            let part = |of: u64| u64::try_from(u128::from(of) * sent / all).unwrap_or(of);
            CommandStats { calls: sum.calls + part(executed.calls), us: sum.us + part(executed.us) }
        })
    }

    /// Returns the share of a command as a fraction. INFO has a line per subcommand, such as
    /// `xgroup|create`, but the sample has only the first word.
    fn share(&self, name: &str) -> (u128, u128) {
        let first = name.split('|').next().unwrap_or(name);
        let Origin { by_clients, by_functions } = self.0.get(first).copied().unwrap_or_default();
        if by_clients + by_functions == 0 {
            (1, 1)
        } else {
            (by_clients.into(), (by_clients + by_functions).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_inside_functions_are_excluded_in_proportion() {
        let sent = "1700000000.000001 [0 127.0.0.1:5001] ";
        let by_functions = "1700000000.000002 [0 lua] ";
        let sample = MonitorSample::from_lines(
            [
                format!("{sent}\"FCALL\" \"follow_1a\" \"1\" \"rel:[0 lua] \\\"x\\\"\""),
                format!("{by_functions}\"ZADD\" \"key\" \"1\" \"2\""),
                format!("{by_functions}\"get\" \"key\""),
                format!("{by_functions}\"GET\" \"key\""),
                format!("{by_functions}\"GET\" \"key\""),
                format!("{sent}\"GET\" \"key\""),
                "OK".to_owned(),
            ]
            .iter()
            .map(String::as_str),
        );
        let by_name = [
            ("fcall", 10, 1000),
            ("zadd", 10, 100),
            ("get", 40, 80),
            ("function|list", 2, 6),
            ("info", 3, 900),
        ];
        let by_name =
            by_name.map(|(name, calls, us)| (name.to_owned(), CommandStats { calls, us }));
        let sent = sample.sent(&BTreeMap::from(by_name));
        assert_eq!(sent, CommandStats { calls: 10 + 10 + 2, us: 1000 + 20 + 6 });
    }
}
