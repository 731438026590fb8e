//! Resource usage of a system, so far and between two times.

use std::collections::BTreeMap;

use serde::Serialize;

use super::monitor::MonitorSample;
use crate::redis_info::CommandStats;

/// Resource usage of a system's processes and Redis.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Usage {
    /// Each process, including redis-server. Empty on systems other than Linux and for an external
    /// system.
    pub(crate) processes: Vec<ProcessUsage>,
    /// `None` for an external system.
    pub(crate) redis: Option<RedisUsage>,
}

/// Resource usage of a process.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ProcessUsage {
    /// The program's name.
    pub(crate) name: String,
    /// User and system time on all CPUs, with the resolution of a clock tick, usually 10 ms.
    pub(crate) cpu_us: u64,
    /// Resident memory (VmRSS) at the later time.
    pub(crate) resident_bytes: u64,
    /// Anonymous part of it (RssAnon), which excludes file mappings such as the program.
    pub(crate) anonymous_bytes: u64,
}

/// Statistics of Redis.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RedisUsage {
    /// Commands that clients sent, without commands inside functions. Includes the services'
    /// periodic jobs, which send some thousand commands a second without load. An estimate from the
    /// [sample](super::System::sample_commands); `None` without one.
    pub(crate) commands: Option<u64>,
    /// Execution time of these commands, including commands inside functions, without socket I/O.
    /// An estimate like `commands`, except for functions, whose time is exact.
    pub(crate) server_us: Option<u64>,
    /// Reads of sockets: one per round trip, or fewer if one read contains several pipelined
    /// requests.
    pub(crate) round_trips: u64,
    /// Bytes from clients.
    pub(crate) bytes_in: u64,
    /// Bytes to clients.
    pub(crate) bytes_out: u64,
    #[serde(skip)]
    by_name: BTreeMap<String, CommandStats>,
    #[serde(skip)]
    sample: Option<MonitorSample>,
}

/// Connection statistics of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) reads: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
}

impl Usage {
    /// Returns the usage since an earlier time. Memory sizes are the current ones.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let earlier = |name: &str| before.processes.iter().find(|process| process.name == name);
        let process = |process: &ProcessUsage| ProcessUsage {
            cpu_us: process.cpu_us.saturating_sub(earlier(&process.name).map_or(0, |p| p.cpu_us)),
            ..process.clone()
        };
        let redis = match (&self.redis, &before.redis) {
            (Some(redis), Some(before)) => Some(redis.since(before)),
            (redis, _) => redis.clone(),
        };
        Self { processes: self.processes.iter().map(process).collect(), redis }
    }
}

impl RedisUsage {
    /// Returns the usage from Redis' counters and an optional MONITOR sample.
    pub(super) fn new(
        by_name: BTreeMap<String, CommandStats>,
        traffic: Traffic,
        sample: Option<MonitorSample>,
    ) -> Self {
        let sent = sample.as_ref().map(|sample| sample.sent(&by_name));
        let Traffic { reads, bytes_in, bytes_out } = traffic;
        Self {
            commands: sent.map(|sent| sent.calls),
            server_us: sent.map(|sent| sent.us),
            round_trips: reads,
            bytes_in,
            bytes_out,
            by_name,
            sample,
        }
    }

    fn since(&self, before: &Self) -> Self {
        let earlier = |name: &str| before.by_name.get(name).copied().unwrap_or_default();
        let by_name = self.by_name.iter().map(|(name, &now)| (name.clone(), now - earlier(name)));
        let traffic = Traffic {
            reads: self.round_trips.saturating_sub(before.round_trips),
            bytes_in: self.bytes_in.saturating_sub(before.bytes_in),
            bytes_out: self.bytes_out.saturating_sub(before.bytes_out),
        };
        Self::new(by_name.collect(), traffic, self.sample.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(cpu_us: u64, reads: u64, get: CommandStats) -> Usage {
        let process = ProcessUsage {
            name: "redis-server".to_owned(),
            cpu_us,
            resident_bytes: cpu_us,
            anonymous_bytes: cpu_us,
        };
        let by_name = BTreeMap::from([("get".to_owned(), get)]);
        let traffic = Traffic { reads, bytes_in: 2 * reads, bytes_out: 3 * reads };
        let sample = MonitorSample::from_lines(["+1.0 [0 127.0.0.1:1] \"get\" \"a\""].into_iter());
        let redis = RedisUsage::new(by_name, traffic, Some(sample));
        Usage { processes: vec![process], redis: Some(redis) }
    }

    #[test]
    fn since_subtracts_counters_and_keeps_sizes() {
        let before = usage(100, 10, CommandStats { calls: 4, us: 40 });
        let after = usage(150, 30, CommandStats { calls: 9, us: 60 });
        let used = after.since(&before);
        assert_eq!((used.processes[0].cpu_us, used.processes[0].resident_bytes), (50, 150));
        let redis = used.redis.unwrap();
        assert_eq!((redis.round_trips, redis.bytes_in, redis.bytes_out), (20, 40, 60));
        assert_eq!((redis.commands, redis.server_us), (Some(5), Some(20)));
    }
}
