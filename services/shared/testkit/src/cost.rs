//! The cost of a call in Redis commands and round trips.

use std::collections::BTreeMap;

use redis::aio::MultiplexedConnection;

use crate::RedisServer;

/// The repetitions of a call whose average is taken, so that an occasional split read does not
/// matter.
const TIMES: u64 = 20;

/// The cost of a call.
#[derive(Debug, PartialEq, Eq)]
pub struct Cost {
    /// The executions of each command, including those inside functions.
    pub commands: BTreeMap<String, u64>,
    /// The reads of the server from connections. Commands sent together are read together if
    /// nothing else runs.
    pub round_trips: u64,
}

impl Cost {
    /// Returns a cost to compare with.
    pub fn new(round_trips: u64, commands: &[(&str, u64)]) -> Self {
        let commands = commands.iter().map(|&(name, calls)| (name.to_owned(), calls)).collect();
        Self { commands, round_trips }
    }
}

/// Measures costs by the counters of a server that nothing else uses.
pub struct CostMeter(MultiplexedConnection);

impl CostMeter {
    /// Returns a meter of a server.
    pub async fn new(server: &RedisServer) -> Self {
        Self(server.admin().await)
    }

    /// Returns the average cost of a call that is repeated; it gets the number of the repetition.
    pub async fn cost(&mut self, call: impl AsyncFnMut(u64)) -> Cost {
        self.average(TIMES, call).await
    }

    /// Returns the cost of a call that cannot be repeated.
    pub async fn cost_once(&mut self, mut call: impl AsyncFnMut()) -> Cost {
        self.average(1, async |_| call().await).await
    }

    async fn average(&mut self, times: u64, mut call: impl AsyncFnMut(u64)) -> Cost {
        let (before, reads_before) = self.counters().await;
        for n in 0..times {
            call(n).await;
        }
        let (mut commands, reads) = self.counters().await;
        commands.iter_mut().for_each(|(name, calls)| *calls -= before.get(name).unwrap_or(&0));
        // The second INFO itself, and readiness probes, each of one write with both commands. They
        // may be read together with others: the average is rounded.
        let probes = ["role", "function|list"].map(|name| commands.remove(name).unwrap_or(0));
        let others = 1 + probes[0].max(probes[1]);
        commands.remove("info");
        commands.values_mut().for_each(|calls| *calls /= times);
        commands.retain(|_, calls| *calls > 0);
        Cost { commands, round_trips: (reads + times / 2 - reads_before - others) / times }
    }

    // Returns the number of calls of each command, and the number of reads from connections.
    async fn counters(&mut self) -> (BTreeMap<String, u64>, u64) {
        let mut info = redis::cmd("INFO");
        info.arg("stats").arg("commandstats");
        let info: String = info.query_async(&mut self.0).await.expect("read the counters");
        let reads = info.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
        let calls = |line: &str| {
            let (name, statistics) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), statistics.split(',').next()?.parse().ok()?))
        };
        (info.lines().filter_map(calls).collect(), reads.unwrap().trim().parse().unwrap())
    }
}
