//! A system to measure: started on this machine with a store of its own and stopped again, or run
//! by somebody else. Knows where it listens and what it uses; calls nothing but its health.

mod layout;
pub(crate) mod log;
mod nesting;
mod process;
mod redis;
pub(crate) mod rest;
mod usage;

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, bail};
use microblog_keyspace::redis::aio::MultiplexedConnection;
use microblog_local::{
    remote,
    up::{DataDir, Redis},
};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

pub(crate) use self::usage::{ProcessUsage, RedisUsage, Usage};
use self::{nesting::Nesting, redis::Admin};
use crate::child::Child;

const START: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// How a system is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Shape {
    /// All servers in one process
    One,
    /// A process for each service
    Five,
}

/// Where a system's servers listen.
#[derive(Clone, Debug)]
pub(crate) struct Urls {
    pub(crate) gateway: String,
    pub(crate) user: String,
    pub(crate) relation: String,
    pub(crate) post: String,
    pub(crate) timeline: String,
}

/// A system of microblog. What was started here ends, and its data go, when the value is dropped,
/// which may take some seconds.
pub(crate) struct System {
    urls: Urls,
    // In this order they end: what uses the store first, the directory last.
    children: Vec<Child>,
    store: Option<Store>,
    nesting: Mutex<Option<Nesting>>,
    _directory: Option<TempDir>,
}

/// Where a system started here keeps its data.
struct Store {
    admin: Admin,
    /// Redis and its directory, where they are not kept by a process of the system.
    _own: Option<(Redis, DataDir)>,
}

impl System {
    /// Starts one on free ports of 127.0.0.1, with a private redis-server and data in a temporary
    /// directory, and waits until all of its servers serve. Accounts post and comment without
    /// limits, and logs have warnings alone, unless the environment says otherwise, which applies
    /// to all of its processes on top of this one's.
    pub(crate) async fn start(
        shape: Shape,
        threads: Option<usize>,
        environment: &[(String, String)],
    ) -> anyhow::Result<Self> {
        let directory = TempDir::with_prefix("microblog-load-")
            .context("cannot make a temporary directory: choose another place with TMPDIR")?;
        let started = layout::start(shape, threads, environment, directory.path())?;
        let system = Self {
            urls: started.urls,
            children: started.children,
            store: Some(started.store),
            nesting: Mutex::default(),
            _directory: Some(directory),
        };
        system.wait().await?;
        Ok(system)
    }

    /// Returns one that somebody else runs: nothing is known of its processes.
    pub(crate) fn elsewhere(urls: Urls) -> Self {
        Self {
            urls,
            children: Vec::new(),
            store: None,
            nesting: Mutex::default(),
            _directory: None,
        }
    }

    /// Returns where its servers listen.
    pub(crate) fn urls(&self) -> &Urls {
        &self.urls
    }

    /// Returns a new connection of Redis' administrator; none elsewhere.
    pub(crate) async fn redis(&self) -> anyhow::Result<Option<MultiplexedConnection>> {
        match &self.store {
            Some(store) => store.admin.connect().await.map(Some),
            None => Ok(None),
        }
    }

    /// Waits until nothing of what was brought into it waits for somebody any more. Does nothing
    /// elsewhere.
    pub(crate) async fn rest(&self) -> anyhow::Result<()> {
        let Some(mut admin) = self.redis().await? else { return Ok(()) };
        rest::reached(&mut admin).await
    }

    /// Waits until no post is on its way to followers. Does nothing elsewhere.
    pub(crate) async fn delivered(&self) -> anyhow::Result<()> {
        let Some(mut admin) = self.redis().await? else { return Ok(()) };
        rest::delivered(&mut admin).await
    }

    /// Waits until nothing waits, and has Redis write its append-only file anew, and not by itself from then
    /// on, so that neither is measured with what comes after. Does nothing elsewhere.
    pub(crate) async fn settle(&self) -> anyhow::Result<()> {
        let Some(mut admin) = self.redis().await? else { return Ok(()) };
        rest::reached(&mut admin).await?;
        log::settle(&mut admin).await
    }

    /// Listens in on Redis for a while (half a second is enough to be off by one in a hundred), to
    /// learn which of the commands that it counts were sent by clients, and which called by
    /// functions: it does not say. To be done under the very load that is measured, but before it is
    /// measured: Redis takes up to twice as long for commands while somebody listens in.
    ///
    /// Without it, [`RedisUsage`] has neither the number of commands nor their time. Does nothing
    /// elsewhere.
    pub(crate) async fn listen_in(&self, length: Duration) -> anyhow::Result<()> {
        let Some(store) = &self.store else { return Ok(()) };
        let nesting = store.admin.listen_in(length).await?;
        *self.nesting.lock().unwrap_or_else(PoisonError::into_inner) = Some(nesting);
        Ok(())
    }

    /// Returns what its processes and Redis have used so far; nothing elsewhere. Fails if one of the
    /// processes has ended: what was measured then is worth nothing.
    pub(crate) async fn usage(&self) -> anyhow::Result<Usage> {
        let Some(store) = &self.store else { return Ok(Usage::default()) };
        self.check()?;
        let nesting = self.nesting.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (redis_id, redis) = store.admin.usage(nesting).await?;
        let ids = self.children.iter().map(|child| (child.name(), child.id()));
        let processes = process::usage(ids.chain([("redis-server", redis_id)]))?;
        Ok(Usage { processes, redis: Some(redis) })
    }

    /// Waits until all servers serve.
    async fn wait(&self) -> anyhow::Result<()> {
        let until = Instant::now() + START;
        for url in self.urls.all() {
            let channel = remote::channel(url)?;
            while !remote::is_serving(channel.clone()).await.unwrap_or(false) {
                self.check()?;
                if Instant::now() > until {
                    bail!("the server at {url} does not serve within {START:?}:\n{}", self.logs());
                }
                sleep(POLL).await;
            }
        }
        // Another program's server may be what answers.
        self.check()
    }

    fn check(&self) -> anyhow::Result<()> {
        self.children.iter().try_for_each(Child::check)
    }

    fn logs(&self) -> String {
        self.children.iter().map(Child::end_of_log).collect()
    }
}

impl Drop for System {
    fn drop(&mut self) {
        // All at once: one after the other, each would wait for its own calls.
        self.children.iter().for_each(Child::terminate);
    }
}

impl Urls {
    fn all(&self) -> [&str; 5] {
        [&self.gateway, &self.user, &self.relation, &self.post, &self.timeline]
    }
}

#[cfg(test)]
mod tests {
    use microblog_keyspace::redis::cmd;

    use super::*;

    async fn started(shape: Shape, processes: usize) {
        let system = System::start(shape, Some(1), &[]).await.unwrap();
        let directory = system._directory.as_ref().unwrap().path().to_owned();
        let mut redis = system.redis().await.unwrap().unwrap();
        let keys: u64 = cmd("DBSIZE").query_async(&mut redis).await.unwrap();
        assert!(keys > 0, "the servers use another Redis");
        let before = system.usage().await.unwrap();
        assert_eq!(before.redis.as_ref().unwrap().commands, None);
        system.listen_in(POLL).await.unwrap();
        let _: String = cmd("PING").query_async(&mut redis).await.unwrap();
        let used = system.usage().await.unwrap().since(&before);
        assert!(used.redis.unwrap().commands.is_some_and(|commands| commands > 0));
        if cfg!(target_os = "linux") {
            assert_eq!(used.processes.len(), processes);
            assert!(used.processes.iter().all(|process| process.resident_bytes > 1 << 20));
        }
        drop(system);
        assert!(!directory.exists());
        assert!(cmd("PING").query_async::<String>(&mut redis).await.is_err(), "Redis goes on");
    }

    #[tokio::test]
    async fn a_system_in_one_process_starts_and_leaves_nothing() {
        started(Shape::One, 2).await;
    }

    #[tokio::test]
    async fn a_system_in_five_processes_starts_and_leaves_nothing() {
        started(Shape::Five, 6).await;
    }

    #[tokio::test]
    async fn nothing_is_known_of_a_system_elsewhere() {
        let at = |port: u16| format!("http://127.0.0.1:{port}");
        let (gateway, user, relation, post, timeline) = (at(1), at(2), at(3), at(4), at(5));
        let system = System::elsewhere(Urls { gateway, user, relation, post, timeline });
        assert_eq!(system.urls().post, "http://127.0.0.1:4");
        system.listen_in(POLL).await.unwrap();
        assert!(system.redis().await.unwrap().is_none());
        let usage = system.usage().await.unwrap();
        assert!(usage.processes.is_empty() && usage.redis.is_none());
    }
}
