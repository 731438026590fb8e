//! A shared connection to one server or to a cluster. Knows no pool and no time-out of a call.

use std::{borrow::Cow, iter::once};

use microblog_domain::Partition;
use redis::{Cmd, ErrorKind, RedisResult, Value};

use crate::{cluster::Cluster, route::Route, wire::Wire};

/// A connection that may be cloned and used by many at once.
#[derive(Clone)]
pub(crate) enum Connection {
    Node(Wire),
    Cluster(Box<Cluster>),
}

impl Connection {
    /// Returns whether a new connection would know better where the keys are.
    pub(crate) fn is_outdated(&self) -> bool {
        match self {
            Self::Node(_) => false,
            Self::Cluster(cluster) => cluster.is_outdated(),
        }
    }
}

/// Something to send, on another connection again when the first one was dropped.
pub(crate) trait Request: Send {
    type Answer: Send;

    fn send(
        &self,
        connection: &Connection,
    ) -> impl Future<Output = RedisResult<Self::Answer>> + Send;
}

/// One command.
pub(crate) struct One {
    pub(crate) command: Cmd,
    pub(crate) route: Route,
}

impl Request for One {
    type Answer = Value;

    async fn send(&self, connection: &Connection) -> RedisResult<Value> {
        match connection {
            Connection::Node(node) => {
                let mut answers = node.send(once(&self.command)).await?;
                answers.values.pop().ok_or_else(|| (ErrorKind::Client, "no answer").into())
            }
            Connection::Cluster(cluster) => cluster.command(&self.command, &self.route).await,
        }
    }
}

/// Commands with their partitions.
pub(crate) struct Many<'a> {
    pub(crate) commands: Vec<(Partition, Cow<'a, Cmd>)>,
}

impl Request for Many<'_> {
    type Answer = Vec<Value>;

    async fn send(&self, connection: &Connection) -> RedisResult<Vec<Value>> {
        match connection {
            Connection::Node(node) => {
                let commands = self.commands.iter().map(|(_, command)| &**command);
                Ok(node.send(commands).await?.values)
            }
            Connection::Cluster(cluster) => cluster.commands(&self.commands).await,
        }
    }
}
