//! Shared pool: multiplexed connections, to the single server, to the primary of a Sentinel group,
//! or to each primary of a cluster. Measures the round trips.

use std::{borrow::Cow, sync::Arc, time::Duration};

use futures::future::try_join_all;
use microblog_domain::Partition;
use redis::{Cmd, ConnectionInfo, RedisError, Value};
use tokio::time::Instant;

use crate::{
    Error,
    cluster::{Cluster, SlotMap},
    connection_metrics::ConnectionMetrics,
    endpoint::Endpoint,
    round_trip_metrics::RoundTripMetrics,
    route::{self, Routed},
    server_pool::{ServerPool, ServerPoolOptions},
};

/// The shared connections of a keyspace.
#[derive(Clone)]
pub(crate) struct SharedPool {
    servers: Servers,
    endpoint: Arc<Endpoint>,
    timeout: Duration,
    round_trip_metrics: Arc<RoundTripMetrics>,
}

#[derive(Clone)]
enum Servers {
    /// The single server, or the primary of a Sentinel group.
    One(ServerPool),
    Cluster(Cluster),
}

impl SharedPool {
    pub(crate) fn new(
        endpoint: Arc<Endpoint>,
        round_trip_metrics: Arc<RoundTripMetrics>,
        size: usize,
        timeout: Duration,
    ) -> Self {
        let keyspace = round_trip_metrics.keyspace();
        let metrics = ConnectionMetrics::new(keyspace, "shared");
        let options = ServerPoolOptions { endpoint: endpoint.clone(), size, timeout, metrics };
        let servers = if endpoint.is_cluster() {
            Servers::Cluster(Cluster::new(options, keyspace))
        } else {
            Servers::One(options.pool(None))
        };
        Self { servers, endpoint, timeout, round_trip_metrics }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.endpoint.is_cluster()
    }

    /// Returns the timeout of a request.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn round_trip_metrics(&self) -> &RoundTripMetrics {
        &self.round_trip_metrics
    }

    /// Fills the pools of all servers. Without this, a call connects only if a pool is empty.
    pub(crate) async fn warm_up(&self) -> Result<(), Error> {
        match &self.servers {
            Servers::One(server) => server.warm_up().await,
            Servers::Cluster(cluster) => {
                let primaries = cluster.primaries().await?;
                try_join_all(primaries.iter().map(ServerPool::warm_up)).await.map(drop)
            }
        }
    }

    /// Sends one command and returns the reply, which may be an error reply.
    pub(crate) async fn command(
        &self,
        command: Cmd,
        partition: Option<Partition>,
    ) -> Result<Value, Error> {
        let mut replies = self.commands(&[(partition, Cow::Owned(command))]).await?;
        replies.pop().ok_or_else(|| Error::malformed("a command has no reply"))
    }

    /// Sends commands, in one write to each server, and returns the replies in the same order,
    /// which may be error replies. Ends within the timeout.
    ///
    /// The commands of a partition run in order. If a cluster is migrating its slot, those that a
    /// primary redirects run after those that it executes.
    pub(crate) async fn commands(&self, commands: &[Routed<'_>]) -> Result<Vec<Value>, Error> {
        let round_trip =
            self.round_trip_metrics.begin(commands.iter().map(|(_, command)| &**command));
        let replies = self.send(commands).await;
        round_trip.end(replies.as_deref());
        replies
    }

    async fn send(&self, commands: &[Routed<'_>]) -> Result<Vec<Value>, Error> {
        let deadline = Instant::now() + self.timeout;
        match &self.servers {
            Servers::One(server) => {
                let commands = commands.iter().map(|(_, command)| &**command);
                let generation = self.endpoint.generation();
                let replies = server.send(commands, deadline).await?;
                reset_on_readonly(server, generation, &replies);
                Ok(replies)
            }
            Servers::Cluster(cluster) => cluster.send(commands, deadline).await,
        }
    }

    /// Sends a command to the single server, or to every primary of a cluster, after reading the
    /// slot map. Returns all replies, which may be error replies.
    pub(crate) async fn send_to_all(&self, command: &Cmd) -> Result<Vec<Value>, Error> {
        let Servers::Cluster(cluster) = &self.servers else {
            return Ok(vec![self.command(command.clone(), None).await?]);
        };
        let primaries = cluster.primaries().await?;
        let deadline = Instant::now() + self.timeout;
        let sent = primaries.iter().map(async |primary| {
            let round_trip = self.round_trip_metrics.begin(std::iter::once(command));
            let replies = primary.send(std::iter::once(command), deadline).await;
            round_trip.end(replies.as_deref());
            replies
        });
        Ok(try_join_all(sent).await?.into_iter().flatten().collect())
    }

    /// Returns the server that holds a key.
    pub(crate) async fn server_of(&self, key: &str) -> Result<ConnectionInfo, Error> {
        match &self.servers {
            Servers::One(_) => Ok(self.endpoint.primary().await?),
            Servers::Cluster(cluster) => {
                let partition = route::partition_of(key.as_bytes())
                    .ok_or_else(|| Error::unavailable("the key has no partition"))?;
                Ok(self.endpoint.node(&cluster.primary_of(partition).await?)?)
            }
        }
    }

    /// Returns the partitions of each primary that has any, in order.
    pub(crate) async fn partitions_by_primary(&self) -> Result<Vec<Vec<Partition>>, Error> {
        match &self.servers {
            Servers::One(_) => Ok(vec![Partition::all().collect()]),
            Servers::Cluster(cluster) => cluster.partitions_by_primary().await,
        }
    }

    /// Returns the slot map of a cluster, if it was read.
    pub(crate) fn slot_map(&self) -> Option<Arc<SlotMap>> {
        match &self.servers {
            Servers::One(_) => None,
            Servers::Cluster(cluster) => cluster.current_slot_map(),
        }
    }

    /// Reports that a server failed which [`SharedPool::server_of`] returned: a cluster's slot map
    /// may be stale.
    pub(crate) fn report_failure(&self) {
        if let Servers::Cluster(cluster) = &self.servers {
            cluster.mark_stale();
        }
    }

    /// Discards the connections of a generation, to a server that is not a primary.
    pub(crate) fn reset(&self, generation: u64, error: RedisError) {
        if let Servers::One(server) = &self.servers {
            server.reset(generation, error);
        }
    }
}

// READONLY: the primary has become a replica. A replica of a cluster replies MOVED.
fn reset_on_readonly(server: &ServerPool, generation: u64, replies: &[Value]) {
    let is_readonly =
        |reply: &&Value| matches!(reply, Value::ServerError(error) if error.code() == "READONLY");
    if let Some(Value::ServerError(error)) = replies.iter().find(is_readonly) {
        server.reset(generation, error.clone().into());
    }
}
