//! Readings of Redis memory in a quiescent system, in total and per kind of key.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use microblog_keyspace::redis::{self, Pipeline, aio::MultiplexedConnection, cmd};
use tokio::time;

use super::key_kinds::{Kind, Kinds, kind};
use crate::{redis_info::Info, system::quiescence};

/// Idempotency records, which expire after a day: the only keys with a UUID in their name. Rate
/// limit keys, which expire after a minute, do not exist because the limits are off.
const EXPIRING_KEYS: &str = "post:{*}:*-*-*-*-*";

const SCAN_COUNT: u32 = 1000;
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const STEADY_TIMEOUT: Duration = Duration::from_secs(600);

/// How long the used memory must be constant. Redis resizes client buffers once a second and
/// shrinks them after two seconds without use.
const STEADY: Duration = Duration::from_secs(4);

/// Fluctuation of an idle server.
const FLUCTUATION_BYTES: u64 = 4 << 10;

/// Redis memory at one time.
pub(super) struct Reading {
    /// Memory that Redis uses, without buffers.
    pub(super) used: i64,
    pub(super) kinds: Kinds,
}

impl Reading {
    /// Returns the sum of `MEMORY USAGE` over all keys.
    pub(super) fn bytes_of_keys(&self) -> i64 {
        self.kinds.values().map(|kind| kind.bytes as i64).sum()
    }
}

/// An administrator's connection to the Redis of all services.
pub(super) struct Store {
    redis: MultiplexedConnection,
    expiring: Kinds,
}

impl Store {
    pub(super) fn new(redis: MultiplexedConnection) -> Self {
        Self { redis, expiring: Kinds::new() }
    }

    /// Waits for quiescence and constant memory, deletes expiring keys, and reads the memory.
    pub(super) async fn read_when_quiescent(&mut self) -> anyhow::Result<Reading> {
        quiescence::wait_until_quiescent(&mut self.redis).await?;
        let started = Instant::now();
        self.remove_expiring().await?;
        // Before reading the memory: the scan completes an incremental rehash, during which both
        // hash tables exist.
        let kinds = self.scan_keys("*", false).await?;
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
        Ok(Reading { used, kinds })
    }

    /// Deletes expiring keys, so that no step counts them, and adds up their memory.
    pub(super) async fn remove_expiring(&mut self) -> anyhow::Result<()> {
        for (name, removed) in self.remove(EXPIRING_KEYS).await? {
            self.expiring.entry(name).or_default().add(removed);
        }
        Ok(())
    }

    /// Returns the memory of the deleted expiring keys.
    pub(super) fn expiring(&self) -> &Kinds {
        &self.expiring
    }

    /// Deletes all keys that match a pattern.
    pub(super) async fn remove(&mut self, pattern: &str) -> anyhow::Result<Kinds> {
        self.scan_keys(pattern, true).await
    }

    /// Runs commands without reading their responses.
    pub(super) async fn run(&mut self, pipeline: &Pipeline) -> anyhow::Result<()> {
        pipeline.exec_async(&mut self.redis).await.context("command failed")
    }

    /// Sets an option and returns its previous value.
    pub(super) async fn configure(&mut self, option: &str, value: &str) -> anyhow::Result<String> {
        let (_, before): (String, String) =
            cmd("CONFIG").arg("GET").arg(option).query_async(&mut self.redis).await?;
        self.run(redis::pipe().cmd("CONFIG").arg("SET").arg(option).arg(value)).await?;
        Ok(before)
    }

    /// Returns the memory that Redis uses, without client buffers and the buffer of the append-only
    /// file.
    async fn used(&mut self) -> anyhow::Result<i64> {
        let info = Info::fetch(&mut self.redis, &["memory"]).await?;
        let number = |name| info.field::<i64>(name);
        Ok(number("used_memory")? - number("mem_clients_normal")? - number("mem_aof_buffer")?)
    }

    /// Returns the keys that match a pattern, and optionally deletes them.
    async fn scan_keys(&mut self, pattern: &str, delete: bool) -> anyhow::Result<Kinds> {
        let mut kinds = Kinds::new();
        let mut cursor = 0;
        loop {
            let (next, keys) = self.scan(cursor, pattern).await?;
            for (key, bytes) in keys.iter().zip(self.usage(&keys).await?) {
                kinds.entry(kind(key)).or_default().add(Kind { keys: 1, bytes });
            }
            if delete && !keys.is_empty() {
                self.run(redis::pipe().cmd("DEL").arg(keys)).await?;
            }
            cursor = next;
            if cursor == 0 {
                return Ok(kinds);
            }
        }
    }

    async fn scan(&mut self, cursor: u64, pattern: &str) -> anyhow::Result<(u64, Vec<String>)> {
        let mut scan = cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
        Ok(scan.query_async(&mut self.redis).await?)
    }

    /// Returns MEMORY USAGE of each key; 0 for a missing key.
    async fn usage(&mut self, keys: &[String]) -> anyhow::Result<Vec<u64>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        for key in keys {
            pipeline.cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0);
        }
        let bytes: Vec<Option<u64>> = pipeline.query_async(&mut self.redis).await?;
        Ok(bytes.into_iter().map(Option::unwrap_or_default).collect())
    }
}

#[cfg(test)]
mod tests {
    use microblog_testkit::RedisServer;
    use uuid::Uuid;

    use super::*;

    async fn started() -> (RedisServer, Store) {
        let server = RedisServer::start().await;
        let store = Store::new(server.admin().await);
        (server, store)
    }

    async fn set(store: &mut Store, key: &str) {
        store.run(redis::pipe().cmd("SET").arg(key).arg("x")).await.unwrap();
    }

    #[tokio::test]
    async fn expiring_keys_are_deleted_and_counted_separately() {
        let (_server, mut store) = started().await;
        let id = Uuid::new_v4();
        let requests =
            [format!("post:{{7}}:request:1:{id}"), format!("post:{{7}}:comment_request:1:{id}")];
        for key in &requests {
            set(&mut store, key).await;
        }
        set(&mut store, "post:{7}:post:12345").await;
        let reading = store.read_when_quiescent().await.unwrap();
        assert_eq!(reading.kinds.keys().collect::<Vec<_>>(), ["post post"]);
        assert_eq!(reading.bytes_of_keys(), reading.kinds["post post"].bytes as i64);
        let expired: Vec<_> =
            store.expiring().iter().map(|(name, kind)| (&**name, kind.keys)).collect();
        assert_eq!(expired, [("post comment_request", 1), ("post request", 1)]);
    }
}
