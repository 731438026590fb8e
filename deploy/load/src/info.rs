//! What Redis says of itself by INFO.

use std::{collections::BTreeMap, ops::Sub, str::FromStr};

use anyhow::Context as _;
use microblog_keyspace::redis::{aio::MultiplexedConnection, cmd};

/// Some sections of it.
#[derive(Debug)]
pub(crate) struct Info(String);

/// How often a command was carried out, by whomever it was called, and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Executed {
    pub(crate) calls: u64,
    pub(crate) us: u64,
}

impl Info {
    /// Asks for these sections.
    pub(crate) async fn ask(
        admin: &mut MultiplexedConnection,
        sections: &[&str],
    ) -> anyhow::Result<Self> {
        let text = cmd("INFO").arg(sections).query_async(admin).await;
        text.map(Self).context("the redis-server does not say what it has done")
    }

    /// Reads a field.
    pub(crate) fn field<T: FromStr>(&self, name: &str) -> anyhow::Result<T> {
        let mut lines = self.0.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = value.and_then(|value| value.trim().parse().ok());
        value.with_context(|| format!("INFO of the redis-server has no `{name}`"))
    }

    /// Reads what each command took since the server was started, by its name in small letters.
    /// Commands inside functions count there and in their function.
    pub(crate) fn commands(&self) -> BTreeMap<String, Executed> {
        self.0.lines().filter_map(command).collect()
    }

    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// Reads `cmdstat_get:calls=2,usec=17,usec_per_call=8.50,rejected_calls=0,failed_calls=0`.
fn command(line: &str) -> Option<(String, Executed)> {
    let (name, statistics) = line.trim().strip_prefix("cmdstat_")?.split_once(':')?;
    let number = |wanted: &str| {
        let mut fields = statistics.split(',').filter_map(|field| field.split_once('='));
        fields.find(|(name, _)| *name == wanted)?.1.parse().ok()
    };
    Some((name.to_owned(), Executed { calls: number("calls")?, us: number("usec")? }))
}

impl Sub for Executed {
    type Output = Self;

    // A redis-server that was started again counts from 0.
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
        let executed = Executed { calls: 4, us: 812 };
        assert_eq!(info.commands(), BTreeMap::from([("function|load".to_owned(), executed)]));
    }
}
