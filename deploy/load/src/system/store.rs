//! The Redis of a started system, and its statistics.

use anyhow::Context as _;
use microblog_keyspace::redis::aio::MultiplexedConnection;
use microblog_testkit::{ADMIN, Files, RedisCluster, RedisServer, connect, free_port};

use super::{launch::Topology, usage::RedisUsage};
use crate::redis_info::Info;

/// The servers, on free ports of 127.0.0.1. Dropping the value ends them.
pub(super) enum Store {
    Single { server: RedisServer, has_tls: bool },
    Cluster(RedisCluster),
}

impl Store {
    /// Starts the servers, and waits until they serve. With certificates, services use TLS.
    pub(super) async fn start(topology: Topology, files: Option<&Files>) -> Self {
        let options = || {
            let tls = files.map(|files| files.redis_options(free_port(), false));
            // As in production, unlike in tests.
            let fsync = ("appendfsync", "everysec".to_owned());
            tls.into_iter().flatten().chain([fsync]).collect::<Vec<_>>()
        };
        match topology {
            Topology::Single => {
                let options = options();
                let options: Vec<_> =
                    options.iter().map(|(name, value)| (*name, value.as_str())).collect();
                let server = RedisServer::start_with(&options).await;
                Self::Single { server, has_tls: files.is_some() }
            }
            Topology::Cluster => {
                let options = || {
                    let tls = files.map(|_| ("tls-cluster", "yes".to_owned()));
                    options().into_iter().chain(tls).collect()
                };
                Self::Cluster(RedisCluster::start_with(3, 0, options).await)
            }
        }
    }

    /// Returns the URL for a service's user.
    pub(super) fn url(&self, user: &str) -> String {
        match self {
            Self::Single { server, has_tls: true } => server.tls_url(user),
            Self::Single { server, has_tls: false } => server.url(user),
            Self::Cluster(cluster) => cluster.url(user),
        }
    }

    fn nodes(&self) -> &[RedisServer] {
        match self {
            Self::Single { server, .. } => std::slice::from_ref(server),
            Self::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Returns new connections of the administrator, one to each server.
    pub(super) async fn connect(&self) -> anyhow::Result<Vec<MultiplexedConnection>> {
        let mut connections = Vec::new();
        for node in self.nodes() {
            let connection = connect(&node.url(ADMIN)).await;
            connections.push(connection.context("cannot connect to the system's redis-server")?);
        }
        Ok(connections)
    }

    /// Returns the PIDs of the servers and their statistics so far.
    pub(super) async fn usage(&self) -> anyhow::Result<(Vec<u32>, RedisUsage)> {
        let (mut ids, mut usage) = (Vec::new(), RedisUsage::default());
        for mut connection in self.connect().await? {
            let info = Info::fetch(&mut connection, &["server", "stats"]).await?;
            ids.push(info.field("process_id")?);
            usage.commands += info.field::<u64>("total_commands_processed")?;
            usage.round_trips += info.field::<u64>("total_reads_processed")?;
            usage.bytes_in += info.field::<u64>("total_net_input_bytes")?;
            usage.bytes_out += info.field::<u64>("total_net_output_bytes")?;
        }
        Ok((ids, usage))
    }
}
