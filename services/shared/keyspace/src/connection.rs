//! A shared connection: multiplexed, to a single server or to a cluster.

use std::{borrow::Cow, iter::once};

use microblog_domain::Partition;
use redis::{Cmd, ErrorKind, RedisResult, Value};

use crate::{cluster::Cluster, multiplexed::Multiplexed, route::Route};

/// A connection with concurrent users. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Connection {
    Server(Multiplexed),
    Cluster(Box<Cluster>),
}

/// A request, which may be retried on another connection.
pub(crate) trait Request: Send {
    type Reply: Send;

    fn send(
        &self,
        connection: &Connection,
    ) -> impl Future<Output = RedisResult<Self::Reply>> + Send;
}

/// One command.
pub(crate) struct Single {
    pub(crate) command: Cmd,
    pub(crate) route: Route,
}

impl Request for Single {
    type Reply = Value;

    async fn send(&self, connection: &Connection) -> RedisResult<Value> {
        match connection {
            Connection::Server(server) => {
                let mut replies = server.send(once(&self.command)).await?;
                replies.values.pop().ok_or_else(|| (ErrorKind::Client, "no reply").into())
            }
            Connection::Cluster(cluster) => cluster.command(&self.command, &self.route).await,
        }
    }
}

/// Pipelined commands with their partitions.
pub(crate) struct Pipeline<'a> {
    pub(crate) commands: Vec<(Partition, Cow<'a, Cmd>)>,
}

impl Request for Pipeline<'_> {
    type Reply = Vec<Value>;

    async fn send(&self, connection: &Connection) -> RedisResult<Vec<Value>> {
        match connection {
            Connection::Server(server) => {
                let commands = self.commands.iter().map(|(_, command)| &**command);
                Ok(server.send(commands).await?.values)
            }
            Connection::Cluster(cluster) => cluster.commands(&self.commands).await,
        }
    }
}
