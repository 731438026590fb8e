//! A system to measure: one that is started on this machine with its own Redis, or an external one.
//! It has its URLs and reads its resource usage, and calls only its health service.

mod launch;
mod postgres;
mod procfs;
pub(crate) mod quiescence;
mod store;
mod usage;

use std::time::Duration;

use anyhow::{Context as _, bail};
use microblog_keyspace::redis::aio::MultiplexedConnection;
pub(crate) use microblog_local::launch::{Layout, Urls};
use microblog_local::remote;
use microblog_testkit::{Files, PostgresServer};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use self::store::Store;
pub(crate) use self::{
    launch::{Database, Setup, Topology},
    postgres::SqlUsage,
    usage::Usage,
};
use crate::child_process::Child;

/// The names of the redis-servers in the results.
const REDIS_NAMES: [&str; 3] = ["redis-server", "redis-server 2", "redis-server 3"];
const START: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A microblog system. Dropping the value stops the processes that it started and deletes their
/// data, which may take some seconds.
pub(crate) struct System {
    urls: Urls,
    // Fields drop in order: clients of Redis first, directories last.
    children: Vec<Child>,
    store: Option<Store>,
    postgres: Option<PostgresServer>,
    _files: Option<Files>,
    _directory: Option<TempDir>,
}

impl System {
    /// Starts a system on free ports of 127.0.0.1, with a private Redis and data in temporary
    /// directories, and waits until all servers serve. Rate limits are off and the log level is
    /// `warn`, unless the environment of this process overrides them.
    pub(crate) async fn start(setup: Setup) -> anyhow::Result<Self> {
        let directory = TempDir::with_prefix("microblog-load-")
            .context("cannot make a temporary directory: set TMPDIR to another directory")?;
        let started = launch::start(setup, directory.path()).await?;
        let system = Self {
            urls: started.urls,
            children: started.children,
            store: Some(started.store),
            postgres: started.postgres,
            _files: started.files,
            _directory: Some(directory),
        };
        system.wait().await?;
        Ok(system)
    }

    /// Returns an external system, whose processes are unknown.
    pub(crate) fn external(urls: Urls) -> Self {
        Self {
            urls,
            children: Vec::new(),
            store: None,
            postgres: None,
            _files: None,
            _directory: None,
        }
    }

    /// Returns the URLs of its servers.
    pub(crate) fn urls(&self) -> &Urls {
        &self.urls
    }

    /// Returns new connections of the administrator of Redis, one to each server; none for an
    /// external system.
    pub(crate) async fn redis(&self) -> anyhow::Result<Vec<MultiplexedConnection>> {
        match &self.store {
            Some(store) => store.connect().await,
            None => Ok(Vec::new()),
        }
    }

    /// Waits until no background work is pending. Does nothing for an external system.
    pub(crate) async fn wait_until_quiescent(&self) -> anyhow::Result<()> {
        quiescence::wait_until_quiescent(&mut self.redis().await?).await
    }

    /// Waits until all posts are delivered to followers. Does nothing for an external system.
    pub(crate) async fn wait_until_delivered(&self) -> anyhow::Result<()> {
        quiescence::wait_until_delivered(&mut self.redis().await?).await
    }

    /// Returns the resource usage so far of the processes that it started, and of its own Redis;
    /// nothing for an external system. Fails if a process has exited, since the measurement is then invalid.
    pub(crate) async fn usage(&self) -> anyhow::Result<Usage> {
        self.check()?;
        let mut ids: Vec<_> =
            self.children.iter().map(|child| (child.name(), child.id())).collect();
        let mut redis = None;
        if let Some(store) = &self.store {
            let (redis_ids, usage) = store.usage().await?;
            ids.extend(REDIS_NAMES.into_iter().zip(redis_ids));
            redis = Some(usage);
        }
        Ok(Usage { processes: procfs::usage(ids.into_iter())?, redis })
    }

    /// Returns the usage so far of its own PostgreSQL server, if it has one.
    pub(crate) fn sql_usage(&self) -> anyhow::Result<Option<SqlUsage>> {
        self.postgres.as_ref().map(SqlUsage::read).transpose()
    }

    /// Waits until all servers serve.
    async fn wait(&self) -> anyhow::Result<()> {
        let until = Instant::now() + START;
        for url in self.urls.all() {
            let channel = remote::channel(url)?;
            while !remote::is_serving(channel.clone()).await.unwrap_or(false) {
                self.check()?;
                if Instant::now() > until {
                    bail!("the server at {url} is not serving after {START:?}:\n{}", self.logs());
                }
                sleep(POLL_INTERVAL).await;
            }
        }
        // Another process may have answered on the port.
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
        // Terminates all at once, so that they drain in parallel.
        self.children.iter().for_each(Child::terminate);
    }
}

#[cfg(test)]
mod tests {
    use microblog_keyspace::redis::cmd;
    use microblog_local::keys::Keys;

    use super::*;

    async fn started(layout: Layout, redis: Topology, processes: usize) {
        let setup =
            Setup { layout, threads: Some(1), redis, tls: false, database: Database::Sqlite };
        let system = System::start(setup).await.unwrap();
        let directory = system._directory.as_ref().unwrap().path().to_owned();
        let mut redis = system.redis().await.unwrap();
        for node in &mut redis {
            let keys: u64 = cmd("DBSIZE").query_async(node).await.unwrap();
            assert!(keys > 0, "the servers use a different Redis");
        }
        let before = system.usage().await.unwrap();
        let _: String = cmd("PING").query_async(&mut redis[0]).await.unwrap();
        let used = system.usage().await.unwrap().since(&before);
        assert!(used.redis.unwrap().commands > 0);
        if cfg!(target_os = "linux") {
            assert_eq!(used.processes.len(), processes);
            assert!(used.processes.iter().all(|process| process.resident_bytes > 1 << 20));
        }
        drop(system);
        assert!(!directory.exists());
        for node in &mut redis {
            assert!(cmd("PING").query_async::<String>(node).await.is_err(), "Redis still runs");
        }
    }

    #[tokio::test]
    async fn a_system_in_one_process_starts_and_cleans_up() {
        started(Layout::Colocated, Topology::Single, 2).await;
    }

    #[tokio::test]
    async fn a_system_in_a_process_for_each_service_on_a_cluster_starts_and_cleans_up() {
        started(Layout::Separate, Topology::Cluster, 9).await;
    }

    #[tokio::test]
    async fn a_system_with_postgresql_writes_there() {
        let (layout, redis) = (Layout::Colocated, Topology::Single);
        let setup =
            Setup { layout, threads: Some(1), redis, tls: false, database: Database::Postgresql };
        let system = System::start(setup).await.unwrap();
        let until = Instant::now() + START;
        // Such as the history of each service.
        while system.sql_usage().unwrap().is_none_or(|usage| usage.rows < 1.0) {
            assert!(Instant::now() < until, "no rows in PostgreSQL");
            sleep(POLL_INTERVAL).await;
        }
        let usage = system.sql_usage().unwrap().unwrap();
        assert!(usage.bytes > 0.0 && usage.written >= usage.rows && usage.cpu_us > 0.0);
    }

    #[tokio::test]
    async fn an_external_system_has_no_usage() {
        let at = |port: u16| format!("http://127.0.0.1:{port}");
        let [gateway, user, relation, post, timeline, notice] = [1, 2, 3, 4, 5, 6].map(at);
        let keys = Keys::default();
        let urls = Urls { gateway, user, relation, post, timeline, notice, keys };
        let system = System::external(urls);
        assert_eq!(system.urls().post, "http://127.0.0.1:4");
        assert!(system.redis().await.unwrap().is_empty());
        let usage = system.usage().await.unwrap();
        assert!(usage.processes.is_empty() && usage.redis.is_none());
    }
}
