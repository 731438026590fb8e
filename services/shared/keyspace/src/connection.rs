//! A connection that many share, to one node or to a cluster, and what is sent on it. Knows no
//! pool and no time-out.
//!
//! The library's futures are boxed: they are large, and what is sent to a node of one's own is to
//! be small.

use std::borrow::Cow;

use redis::{
    Cmd, ErrorKind, Pipeline, RedisResult, Value,
    aio::ConnectionLike as _,
    cluster_async::ClusterConnection,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
};

use crate::wire::Wire;

/// A connection that may be cloned and used by many at once.
#[derive(Clone)]
pub(crate) enum Connection {
    /// To one server.
    Node(Wire),
    Cluster(ClusterConnection),
}

/// Something to send, on another connection again when the first one was dropped.
///
/// The client of a cluster takes what it sends, since it repeats it by itself.
pub(crate) trait Request: Send {
    type Answer: Send;

    fn send(
        &mut self,
        connection: &mut Connection,
    ) -> impl Future<Output = RedisResult<Self::Answer>> + Send;
}

/// One command; without a route, a cluster finds the node by the command's keys.
pub(crate) struct One {
    pub(crate) command: Cmd,
    pub(crate) route: Option<SingleNodeRoutingInfo>,
}

impl Request for One {
    type Answer = Value;

    async fn send(&mut self, connection: &mut Connection) -> RedisResult<Value> {
        match (connection, &self.route) {
            (Connection::Node(node), _) => {
                let mut answers = node.send(std::iter::once(&self.command)).await?;
                answers.values.pop().ok_or_else(|| (ErrorKind::Client, "no answer").into())
            }
            (Connection::Cluster(cluster), Some(route)) => {
                let route = RoutingInfo::SingleNode(route.clone());
                Box::pin(cluster.route_command(self.command.take(), route)).await
            }
            (Connection::Cluster(cluster), None) => cluster.req_packed_command(&self.command).await,
        }
    }
}

/// Commands of one partition, of one slot of a cluster.
pub(crate) struct Many<'a> {
    pub(crate) commands: Vec<Cow<'a, Cmd>>,
    pub(crate) route: SingleNodeRoutingInfo,
}

impl Many<'_> {
    fn pipeline(&self) -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(self.commands.len());
        for command in &self.commands {
            pipeline.add_command(Cmd::clone(command));
        }
        pipeline
    }
}

impl Request for Many<'_> {
    type Answer = Vec<Value>;

    async fn send(&mut self, connection: &mut Connection) -> RedisResult<Vec<Value>> {
        let count = self.commands.len();
        match connection {
            Connection::Node(node) => {
                Ok(node.send(self.commands.iter().map(AsRef::as_ref)).await?.values)
            }
            Connection::Cluster(cluster) => {
                let route = self.route.clone();
                Box::pin(cluster.route_pipeline(self.pipeline(), 0, count, route)).await
            }
        }
    }
}
