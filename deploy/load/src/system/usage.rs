//! Resource usage of a system, so far and between two times.

use serde::Serialize;

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

/// Counters of all redis-servers. They include the services' periodic jobs, which send some thousand
/// commands a second without load.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct RedisUsage {
    /// Commands, with those inside functions.
    pub(crate) commands: u64,
    /// Reads of sockets: one per round trip, or fewer if one read contains several pipelined
    /// requests.
    pub(crate) round_trips: u64,
    /// Bytes from clients.
    pub(crate) bytes_in: u64,
    /// Bytes to clients.
    pub(crate) bytes_out: u64,
}

impl Usage {
    /// Returns the usage since an earlier time. Memory sizes are the current ones.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let earlier = |name: &str| before.processes.iter().find(|process| process.name == name);
        let process = |process: &ProcessUsage| ProcessUsage {
            cpu_us: process.cpu_us.saturating_sub(earlier(&process.name).map_or(0, |p| p.cpu_us)),
            ..process.clone()
        };
        let redis = match (self.redis, before.redis) {
            (Some(redis), Some(before)) => Some(redis.since(before)),
            (redis, _) => redis,
        };
        Self { processes: self.processes.iter().map(process).collect(), redis }
    }
}

impl ProcessUsage {
    /// Returns a line with the memory.
    pub(crate) fn memory(&self) -> String {
        let [resident, anonymous] =
            [self.resident_bytes, self.anonymous_bytes].map(|bytes| bytes as f64 / 1e6);
        format!("{:<20}{resident:>8.1} MB resident, {anonymous:>8.1} MB anonymous", self.name)
    }
}

impl RedisUsage {
    // A restart of redis-server resets the counters.
    fn since(self, before: Self) -> Self {
        Self {
            commands: self.commands.saturating_sub(before.commands),
            round_trips: self.round_trips.saturating_sub(before.round_trips),
            bytes_in: self.bytes_in.saturating_sub(before.bytes_in),
            bytes_out: self.bytes_out.saturating_sub(before.bytes_out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(cpu_us: u64, count: u64) -> Usage {
        let process = ProcessUsage {
            name: "redis-server".to_owned(),
            cpu_us,
            resident_bytes: cpu_us,
            anonymous_bytes: cpu_us,
        };
        let redis = RedisUsage {
            commands: count,
            round_trips: 2 * count,
            bytes_in: 3 * count,
            bytes_out: 4 * count,
        };
        Usage { processes: vec![process], redis: Some(redis) }
    }

    #[test]
    fn since_subtracts_counters_and_keeps_sizes() {
        let used = usage(150, 30).since(&usage(100, 10));
        assert_eq!((used.processes[0].cpu_us, used.processes[0].resident_bytes), (50, 150));
        let RedisUsage { commands, round_trips, bytes_in, bytes_out } = used.redis.unwrap();
        assert_eq!([commands, round_trips, bytes_in, bytes_out], [20, 40, 60, 80]);
    }
}
