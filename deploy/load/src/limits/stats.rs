//! Redis' own account of its work: how long commands took, and what its process used.

use std::collections::BTreeMap;

use anyhow::Context as _;
use microblog_keyspace::redis::{aio::MultiplexedConnection, cmd};

/// How often a command ran since the server was started, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) calls: u64,
    pub(super) microseconds: u64,
}

/// Returns the usage of each command by its name in small letters. Those inside functions count
/// there and in their function.
pub(super) async fn commands(
    admin: &mut MultiplexedConnection,
) -> anyhow::Result<BTreeMap<String, Usage>> {
    let info: String = cmd("INFO").arg("commandstats").query_async(admin).await?;
    Ok(info.lines().filter_map(command).collect())
}

fn command(line: &str) -> Option<(String, Usage)> {
    let (name, statistics) = line.trim().strip_prefix("cmdstat_")?.split_once(':')?;
    let mut fields = statistics.split(',').filter_map(|field| field.split_once('='));
    let mut number = |wanted| fields.find(|(name, _)| *name == wanted)?.1.parse().ok();
    Some((name.to_owned(), Usage { calls: number("calls")?, microseconds: number("usec")? }))
}

/// Returns how many seconds of a processor the server has used so far, its other threads' included:
/// with reading and writing, which the usage of commands leaves out.
pub(super) async fn cpu_seconds(admin: &mut MultiplexedConnection) -> anyhow::Result<f64> {
    let info: String = cmd("INFO").arg("cpu").query_async(admin).await?;
    let field = |wanted: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(wanted)?.strip_prefix(':'));
        let seconds: f64 =
            line.with_context(|| format!("Redis tells no {wanted}"))?.trim().parse()?;
        anyhow::Ok(seconds)
    };
    Ok(field("used_cpu_user")? + field("used_cpu_sys")?)
}

/// Returns for how long Redis worked on commands in each of `times` rounds, in microseconds: what
/// came less often than every other round is somebody else's. Must not be asked about functions.
pub(super) fn per_round(
    before: &BTreeMap<String, Usage>,
    after: &BTreeMap<String, Usage>,
    times: u64,
) -> f64 {
    let spent = |(name, after): (&String, &Usage)| {
        let before = before.get(name).copied().unwrap_or_default();
        let calls = after.calls.saturating_sub(before.calls);
        let microseconds = after.microseconds.saturating_sub(before.microseconds);
        let each_round = (calls as f64 / times as f64).round();
        if calls == 0 { 0.0 } else { microseconds as f64 / calls as f64 * each_round }
    };
    after.iter().filter(|(name, _)| *name != "info").map(spent).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_of_a_command_is_read() {
        let line = "cmdstat_function|load:calls=4,usec=812,usec_per_call=203.00,rejected_calls=0\r";
        let usage = Usage { calls: 4, microseconds: 812 };
        assert_eq!(command(line), Some(("function|load".to_owned(), usage)));
        assert_eq!(command("# Commandstats"), None);
    }

    #[test]
    fn what_others_send_now_and_then_does_not_count() {
        let usage = |calls, microseconds| Usage { calls, microseconds };
        let name = str::to_owned;
        let before = BTreeMap::from([(name("zrange"), usage(10, 100))]);
        let after = BTreeMap::from([
            (name("zrange"), usage(10 + 202, 100 + 404)),
            (name("ping"), usage(30, 3)),
            (name("info"), usage(100, 900)),
        ]);
        assert_eq!(per_round(&before, &after, 100), 4.0);
    }
}
