//! What a system has used, and what it used between two moments.

use std::collections::BTreeMap;

use serde::Serialize;

use super::nesting::Nesting;
use crate::info::Executed;

/// What the processes of a system and its Redis have used so far, or since some moment.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Usage {
    /// Each process, redis-server among them. None on systems other than Linux, nor where the
    /// system is somebody else's.
    pub(crate) processes: Vec<ProcessUsage>,
    /// None where the system is somebody else's.
    pub(crate) redis: Option<RedisUsage>,
}

/// What a process has used.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ProcessUsage {
    /// The name of its program.
    pub(crate) name: String,
    /// Time on all CPUs, the kernel's for it included; as exact as a tick, mostly 10 ms.
    pub(crate) cpu_us: u64,
    /// How much of it is in memory now, whatever was before.
    pub(crate) resident_bytes: u64,
    /// How much of that is its own, and not in a file such as the program.
    pub(crate) anonymous_bytes: u64,
}

/// What Redis has done.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RedisUsage {
    /// Commands that clients sent, the services' rounds in the background included, which send some
    /// thousands a second whatever the load; what functions called is not among them. An estimate,
    /// in proportion to what was heard when [listening in](super::System::listen_in); none before.
    pub(crate) commands: Option<u64>,
    /// How long Redis worked on these commands, what functions called included, but not the reading
    /// and writing of connections. Estimated in the same way, but for functions, whose time is exact.
    pub(crate) server_us: Option<u64>,
    /// Reads of connections: one for each round trip, or less, where a read brought what several
    /// callers of one connection had sent meanwhile.
    pub(crate) round_trips: u64,
    /// Bytes that clients sent.
    pub(crate) bytes_in: u64,
    /// Bytes that clients were sent.
    pub(crate) bytes_out: u64,
    #[serde(skip)]
    by_name: BTreeMap<String, Executed>,
    #[serde(skip)]
    nesting: Option<Nesting>,
}

/// What Redis counts of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) reads: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
}

impl Usage {
    /// Returns what was used since an earlier moment. Sizes are those of now.
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
    /// Returns what was used according to Redis' own counters, and to how its commands are called.
    pub(super) fn new(
        by_name: BTreeMap<String, Executed>,
        traffic: Traffic,
        nesting: Option<Nesting>,
    ) -> Self {
        let sent = nesting.as_ref().map(|nesting| nesting.sent(&by_name));
        let Traffic { reads, bytes_in, bytes_out } = traffic;
        Self {
            commands: sent.map(|sent| sent.calls),
            server_us: sent.map(|sent| sent.us),
            round_trips: reads,
            bytes_in,
            bytes_out,
            by_name,
            nesting,
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
        Self::new(by_name.collect(), traffic, self.nesting.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(cpu_us: u64, reads: u64, get: Executed) -> Usage {
        let process = ProcessUsage {
            name: "redis-server".to_owned(),
            cpu_us,
            resident_bytes: cpu_us,
            anonymous_bytes: cpu_us,
        };
        let by_name = BTreeMap::from([("get".to_owned(), get)]);
        let traffic = Traffic { reads, bytes_in: 2 * reads, bytes_out: 3 * reads };
        let nesting = Nesting::heard(["+1.0 [0 127.0.0.1:1] \"get\" \"a\""].into_iter());
        let redis = RedisUsage::new(by_name, traffic, Some(nesting));
        Usage { processes: vec![process], redis: Some(redis) }
    }

    #[test]
    fn times_and_counts_are_since_then_and_sizes_are_of_now() {
        let before = usage(100, 10, Executed { calls: 4, us: 40 });
        let after = usage(150, 30, Executed { calls: 9, us: 60 });
        let used = after.since(&before);
        assert_eq!((used.processes[0].cpu_us, used.processes[0].resident_bytes), (50, 150));
        let redis = used.redis.unwrap();
        assert_eq!((redis.round_trips, redis.bytes_in, redis.bytes_out), (20, 40, 60));
        assert_eq!((redis.commands, redis.server_us), (Some(5), Some(20)));
    }
}
