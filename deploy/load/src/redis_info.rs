//! Statistics from Redis INFO.

use std::{collections::BTreeMap, ops::Sub, str::FromStr};

use anyhow::Context as _;
use microblog_keyspace::redis::{aio::MultiplexedConnection, cmd};

/// The text of some INFO sections.
#[derive(Debug)]
pub(crate) struct Info(String);

/// Calls and execution time of a command, by clients and inside functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandStats {
    pub(crate) calls: u64,
    pub(crate) us: u64,
}

impl Info {
    /// Reads these sections from Redis.
    pub(crate) async fn fetch(
        admin: &mut MultiplexedConnection,
        sections: &[&str],
    ) -> anyhow::Result<Self> {
        let text = cmd("INFO").arg(sections).query_async(admin).await;
        text.map(Self).context("INFO failed on redis-server")
    }

    /// Returns a field.
    pub(crate) fn field<T: FromStr>(&self, name: &str) -> anyhow::Result<T> {
        let mut lines = self.0.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = value.and_then(|value| value.trim().parse().ok());
        value.with_context(|| format!("INFO has no field `{name}`"))
    }

    /// Returns the statistics of each command since the server's start, by lower-case name. A
    /// command inside a function counts both as itself and as part of the function.
    pub(crate) fn commands(&self) -> BTreeMap<String, CommandStats> {
        self.0.lines().filter_map(command).collect()
    }

    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// Parses `cmdstat_get:calls=2,usec=17,usec_per_call=8.50,rejected_calls=0,failed_calls=0`.
fn command(line: &str) -> Option<(String, CommandStats)> {
    let (name, statistics) = line.trim().strip_prefix("cmdstat_")?.split_once(':')?;
    let number = |wanted: &str| {
        let mut fields = statistics.split(',').filter_map(|field| field.split_once('='));
        fields.find(|(name, _)| *name == wanted)?.1.parse().ok()
    };
    Some((name.to_owned(), CommandStats { calls: number("calls")?, us: number("usec")? }))
}

impl Sub for CommandStats {
    type Output = Self;

    // A restart of redis-server resets the counters.
    fn sub(self, earlier: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(earlier.calls),
            us: self.us.saturating_sub(earlier.us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_commands_are_read() {
        let info = Info::of(
            "# CPU\r\nused_cpu_sys:1.25\r\nused_cpu_sys_children:9\r\n\r\n# Commandstats\r\n\
             cmdstat_function|load:calls=4,usec=812,usec_per_call=203.00,rejected_calls=0\r\n",
        );
        assert_eq!(info.field::<f64>("used_cpu_sys").unwrap(), 1.25);
        let error = info.field::<u64>("used_cpu_user").unwrap_err().to_string();
        assert!(error.contains("used_cpu_user"), "{error}");
        let stats = CommandStats { calls: 4, us: 812 };
        assert_eq!(info.commands(), BTreeMap::from([("function|load".to_owned(), stats)]));
    }
}
