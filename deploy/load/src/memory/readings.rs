//! Readings of Redis memory and of SQL in a quiescent system.

use std::time::{Duration, Instant};

use anyhow::bail;
use microblog_keyspace::redis::{aio::MultiplexedConnection, cmd};
use tokio::time;

use crate::{
    redis_info::Info,
    system::{SqlUsage, System, quiescence},
};

const SCAN_COUNT: u32 = 1000;
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const STEADY_TIMEOUT: Duration = Duration::from_secs(600);

/// How long the used memory must be constant. Redis resizes client buffers once a second and
/// shrinks them after two seconds without use.
const STEADY: Duration = Duration::from_secs(4);

/// Fluctuation of an idle server.
const FLUCTUATION_BYTES: u64 = 4 << 10;

/// How long no row may be written. A PostgreSQL session reports its rows up to ten seconds after it
/// becomes idle.
const WRITTEN: Duration = Duration::from_secs(12);
const WRITTEN_POLL: Duration = Duration::from_secs(2);

/// A reading of a system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// The memory that Redis uses.
    pub(super) used: i64,
    pub(super) sql: Option<SqlUsage>,
}

impl Reading {
    /// Waits until PostgreSQL reports no more rows, if the databases are in such a server, and until the
    /// memory of Redis is constant.
    pub(super) async fn read(store: &mut Store, system: &System) -> anyhow::Result<Self> {
        quiescence::wait_until_quiescent(std::slice::from_mut(&mut store.redis)).await?;
        let mut sql = system.sql_usage()?;
        let mut since = Instant::now();
        while sql.is_some() && since.elapsed() < WRITTEN {
            time::sleep(WRITTEN_POLL).await;
            let now = system.sql_usage()?;
            if now.map(|now| now.written) != sql.map(|sql| sql.written) {
                since = Instant::now();
            }
            sql = now;
        }
        let used = store.read_when_quiescent().await?;
        Ok(Self { used, sql })
    }
}

/// An administrator's connection to the Redis of all services.
pub(super) struct Store {
    redis: MultiplexedConnection,
}

impl Store {
    pub(super) fn new(redis: MultiplexedConnection) -> Self {
        Self { redis }
    }

    /// Waits for quiescence and constant memory, and returns the memory.
    pub(super) async fn read_when_quiescent(&mut self) -> anyhow::Result<i64> {
        quiescence::wait_until_quiescent(std::slice::from_mut(&mut self.redis)).await?;
        let started = Instant::now();
        // Before reading the memory: the scan completes an incremental rehash, during which both
        // hash tables exist.
        self.scan().await?;
        let mut used = self.used().await?;
        let mut since = Instant::now();
        while since.elapsed() < STEADY {
            if started.elapsed() > STEADY_TIMEOUT {
                bail!("Redis memory is not constant after {STEADY_TIMEOUT:?}");
            }
            time::sleep(POLL_INTERVAL).await;
            let now = self.used().await?;
            if now.abs_diff(used) > FLUCTUATION_BYTES {
                (used, since) = (now, Instant::now());
            }
        }
        Ok(used)
    }

    async fn scan(&mut self) -> anyhow::Result<()> {
        let mut cursor = 0;
        loop {
            let scan = cmd("SCAN").arg(cursor).arg("COUNT").arg(SCAN_COUNT).take();
            let (next, _): (u64, Vec<String>) = scan.query_async(&mut self.redis).await?;
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// Returns the memory that Redis uses, without client buffers, the buffer of the append-only file, and
    /// what the Lua virtual machines use.
    async fn used(&mut self) -> anyhow::Result<i64> {
        let info = Info::fetch(&mut self.redis, &["server", "memory"]).await?;
        let number = |name| info.field::<i64>(name);
        let (version, allocator): (String, String) =
            (info.field("redis_version")?, info.field("mem_allocator")?);
        let used =
            number("used_memory")? - number("mem_clients_normal")? - number("mem_aof_buffer")?;
        Ok(match counts_lua(&version, &allocator) {
            true => used - number("used_memory_vm_total")?,
            false => used,
        })
    }
}

/// Whether `used_memory` has what the Lua virtual machines use, which grows with each call of a function
/// until it is collected. It has from Redis 7.4 on (redis/redis#13133), if built with jemalloc. Valkey says
/// that it is Redis 7.2.4.
fn counts_lua(redis_version: &str, allocator: &str) -> bool {
    let mut numbers = redis_version.split('.').map_while(|number| number.parse::<u32>().ok());
    let version = numbers.next().zip(numbers.next());
    allocator.starts_with("jemalloc") && version.is_some_and(|version| version >= (7, 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_counts_the_memory_of_lua_from_7_4_on_if_built_with_jemalloc() {
        let jemalloc = "jemalloc-5.3.0";
        for counted in ["7.4.0", "8.0.2", "8.2.3", "10.0.0"] {
            assert!(counts_lua(counted, jemalloc), "{counted}");
            assert!(!counts_lua(counted, "libc"), "{counted}");
        }
        for not_counted in ["7.0.15", "7.2.4", "6.9.1", ""] {
            assert!(!counts_lua(not_counted, jemalloc), "{not_counted}");
        }
    }
}
