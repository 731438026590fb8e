//! Redis' memory: when nothing is under way any more, how much is used, and by keys of which kinds.
//! Knows the names of keys that pass by themselves.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use microblog_keyspace::redis::{self, Pipeline, aio::MultiplexedConnection, cmd};
use tokio::time;

use super::kinds::{Kind, Kinds, kind};
use crate::{info::Info, system::rest};

/// What is kept for a day so that requests can be repeated: the only keys that name a UUID. Paces,
/// which are kept for a minute, are not there where accounts may write as fast as they like.
const PASSING: &str = "post:{*}:*-*-*-*-*";

const SCAN_COUNT: u32 = 1000;
const POLL: Duration = Duration::from_millis(200);
const STEADY_TIMEOUT: Duration = Duration::from_secs(600);

/// Redis looks after the buffers of a connection, and counts them, once a second, and gives back
/// what has not been used for two.
const STEADY: Duration = Duration::from_secs(4);

/// What comes and goes while nobody does anything.
const STEADY_BYTES: u64 = 4 << 10;

/// Redis' memory at one moment.
pub(super) struct Reading {
    /// All that is used, but for buffers.
    pub(super) used: i64,
    pub(super) kinds: Kinds,
}

impl Reading {
    /// Returns what all keys take by themselves.
    pub(super) fn bytes_of_keys(&self) -> i64 {
        self.kinds.values().map(|kind| kind.bytes as i64).sum()
    }
}

/// The Redis of all services, as an administrator sees it.
pub(super) struct Store {
    redis: MultiplexedConnection,
    passing: Kinds,
}

impl Store {
    pub(super) fn new(redis: MultiplexedConnection) -> Self {
        Self { redis, passing: Kinds::new() }
    }

    /// Waits until nothing is under way any more, drops what passes by itself, and reads.
    pub(super) async fn at_rest(&mut self) -> anyhow::Result<Reading> {
        rest::reached(&mut self.redis).await?;
        let begun = Instant::now();
        self.remove_passing().await?;
        // Before the memory is read: a table of keys that is growing has its old half, too, until
        // its keys have been looked up.
        let kinds = self.visit("*", false).await?;
        let mut used = self.used().await?;
        let mut since = Instant::now();
        while since.elapsed() < STEADY {
            if begun.elapsed() > STEADY_TIMEOUT {
                bail!("Redis' memory has not come to rest after {STEADY_TIMEOUT:?}");
            }
            time::sleep(POLL).await;
            let now = self.used().await?;
            if now.abs_diff(used) > STEADY_BYTES {
                (used, since) = (now, Instant::now());
            }
        }
        Ok(Reading { used, kinds })
    }

    /// Drops what passes by itself, so that it does not count, and notes what it took.
    pub(super) async fn remove_passing(&mut self) -> anyhow::Result<()> {
        for (name, removed) in self.remove(PASSING).await? {
            self.passing.entry(name).or_default().add(removed);
        }
        Ok(())
    }

    /// Returns what was dropped so far.
    pub(super) fn passing(&self) -> &Kinds {
        &self.passing
    }

    /// Deletes all keys with names of a pattern.
    pub(super) async fn remove(&mut self, pattern: &str) -> anyhow::Result<Kinds> {
        self.visit(pattern, true).await
    }

    /// Sends commands whose answers do not matter.
    pub(super) async fn run(&mut self, pipeline: &Pipeline) -> anyhow::Result<()> {
        pipeline.exec_async(&mut self.redis).await.context("Redis refuses a command")
    }

    /// Sets an option, and returns what it was.
    pub(super) async fn configure(&mut self, option: &str, value: &str) -> anyhow::Result<String> {
        let (_, before): (String, String) =
            cmd("CONFIG").arg("GET").arg(option).query_async(&mut self.redis).await?;
        self.run(redis::pipe().cmd("CONFIG").arg("SET").arg(option).arg(value)).await?;
        Ok(before)
    }

    /// Returns the bytes that Redis uses, but for what connections and the append-only file have
    /// under way.
    async fn used(&mut self) -> anyhow::Result<i64> {
        let info = Info::ask(&mut self.redis, &["memory"]).await?;
        let number = |name| info.field::<i64>(name);
        Ok(number("used_memory")? - number("mem_clients_normal")? - number("mem_aof_buffer")?)
    }

    /// Returns what keys there are with names of a pattern, and deletes them if told so.
    async fn visit(&mut self, pattern: &str, delete: bool) -> anyhow::Result<Kinds> {
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

    /// Returns the bytes of each key; 0 for one that is gone.
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
    async fn what_passes_by_itself_is_dropped_and_noted() {
        let (_server, mut store) = started().await;
        let id = Uuid::new_v4();
        let requests =
            [format!("post:{{7}}:request:1:{id}"), format!("post:{{7}}:comment_request:1:{id}")];
        for key in &requests {
            set(&mut store, key).await;
        }
        set(&mut store, "post:{7}:post:12345").await;
        let reading = store.at_rest().await.unwrap();
        assert_eq!(reading.kinds.keys().collect::<Vec<_>>(), ["post post"]);
        assert_eq!(reading.bytes_of_keys(), reading.kinds["post post"].bytes as i64);
        let noted: Vec<_> =
            store.passing().iter().map(|(name, kind)| (&**name, kind.keys)).collect();
        assert_eq!(noted, [("post comment_request", 1), ("post request", 1)]);
    }
}
