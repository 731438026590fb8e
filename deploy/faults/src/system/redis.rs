//! The Redis of a system.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use microblog_local::{launch::Ports, up::DataDir};
use microblog_testkit::{RedisCluster, RedisServer, Sentinels};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::Serialize;

use super::{
    Clock, DatabaseKind, Equipment, Setup,
    files::{self, Copy},
};

/// The data of a redis-server in its directory.
const DATA: [&str; 2] = ["appendonlydir", "dump.rdb"];

/// Stalls of a busy machine are shorter. Sentinels do not promote a replica that was without its
/// primary for ten times as long.
const SENTINEL_DOWN_AFTER_MS: u32 = 4_000;

/// How Redis runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StoreKind {
    Single,
    Sentinel,
    Cluster,
}

/// The running Redis.
pub(crate) enum Redis {
    /// The launcher's, with its data in this directory. The launcher starts it, and restarts it.
    Private(PathBuf),
    Single(RedisServer),
    Sentinel(Sentinels),
    Cluster(RedisCluster),
}

/// Returns the data directory of the launcher.
pub(super) fn data_dir(directory: &Path) -> PathBuf {
    directory.join("data")
}

impl Redis {
    pub(super) async fn start(setup: Setup, directory: &Path, ports: Ports) -> Result<Self> {
        Ok(match (setup.database, setup.store) {
            (DatabaseKind::Sqlite, StoreKind::Single) => {
                let data = DataDir::open(&data_dir(directory))?;
                data.prepare_redis(ports.redis())?;
                Self::Private(data.path().join("redis"))
            }
            (DatabaseKind::Sqlite, _) => bail!("`microblog up` starts a single redis-server"),
            (DatabaseKind::Postgres, StoreKind::Single) => {
                let environment = match setup.equipment {
                    Equipment::Clocks => Clock::Redis.prepare(directory)?.to_vec(),
                    _ => Vec::new(),
                };
                Self::Single(RedisServer::start_in(&[], &environment).await)
            }
            (DatabaseKind::Postgres, StoreKind::Sentinel) => {
                Self::Sentinel(Sentinels::start_with_timeout(SENTINEL_DOWN_AFTER_MS).await)
            }
            (DatabaseKind::Postgres, StoreKind::Cluster) => {
                Self::Cluster(RedisCluster::start(3, 1).await)
            }
        })
    }

    /// Returns the URL for a service in a process of its own.
    pub(super) fn url(&self, service: &str) -> Result<String> {
        Ok(match self {
            Self::Private(_) => bail!("only the launcher connects to its redis-server"),
            Self::Single(server) => server.url(service),
            Self::Sentinel(group) => group.url(service),
            Self::Cluster(cluster) => cluster.url(service),
        })
    }

    /// Kills all redis-servers (SIGKILL), changes the files of each, and starts them again.
    pub(crate) async fn kill_and_change(&self, change: impl Fn(&Path) -> Result<()>) -> Result<()> {
        if let Self::Private(directory) = self {
            let pid = fs::read_to_string(directory.join("redis.pid"))?;
            let pid = Pid::from_raw(pid.trim().parse()?);
            kill(pid, Signal::SIGKILL).context("cannot kill redis-server")?;
            // The launcher waits for more than a second before it starts it again.
            return change(directory);
        }
        let servers = self.servers();
        servers.iter().for_each(|server| server.kill());
        servers.iter().try_for_each(|server| change(server.directory()))?;
        for server in servers {
            server.restart().await;
        }
        Ok(())
    }

    /// Copies the files of the only redis-server, which goes on.
    pub(crate) fn copy(&self) -> Result<Copy> {
        match self {
            Self::Private(directory) => Copy::take(directory, &DATA),
            Self::Single(server) => Copy::take(server.directory(), &DATA),
            Self::Sentinel(_) | Self::Cluster(_) => bail!("not a single redis-server"),
        }
    }

    /// Returns the only redis-server, if this process has started it.
    pub(crate) fn single(&self) -> Result<&RedisServer> {
        match self {
            Self::Single(server) => Ok(server),
            _ => bail!("the setup has no single redis-server of its own"),
        }
    }

    /// Returns a primary and its only replica.
    pub(crate) fn pair(&self) -> Result<(&RedisServer, &RedisServer)> {
        match self {
            Self::Private(_) | Self::Single(_) => bail!("Redis has no replica"),
            Self::Sentinel(group) => Ok((group.primary(), group.replica())),
            Self::Cluster(cluster) => {
                let nodes = cluster.nodes();
                Ok((&nodes[0], &nodes[nodes.len() / 2]))
            }
        }
    }

    /// Returns the servers that this process has started.
    pub(crate) fn servers(&self) -> Vec<&RedisServer> {
        match self {
            Self::Private(_) => Vec::new(),
            Self::Single(server) => vec![server],
            Self::Sentinel(group) => vec![group.primary(), group.replica()],
            Self::Cluster(cluster) => cluster.nodes().iter().collect(),
        }
    }

    /// Returns the logs of its servers.
    pub(super) fn logs(&self) -> Vec<String> {
        match self {
            Self::Private(directory) => {
                vec![fs::read_to_string(directory.join("redis.log")).unwrap_or_default()]
            }
            _ => self.servers().into_iter().map(RedisServer::log).collect(),
        }
    }
}

/// Returns whether a redis-server that does not run has data.
pub(crate) fn has_data(directory: &Path) -> bool {
    DATA.iter().any(|name| directory.join(name).exists())
}

/// Deletes the data of a redis-server that does not run.
pub(crate) fn erase(directory: &Path) -> Result<()> {
    DATA.iter().try_for_each(|name| files::remove(&directory.join(name)))
}
