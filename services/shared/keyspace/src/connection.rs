//! A connection that many share, to one node or to a cluster, and what is sent on it. Knows no
//! pool and no time-out.

use redis::{
    Cmd, Pipeline, RedisResult, Value,
    aio::{ConnectionLike as _, MultiplexedConnection},
    cluster_async::ClusterConnection,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
};

/// A connection that may be cloned and used by many at once.
#[derive(Clone)]
pub(crate) enum Connection {
    Node(MultiplexedConnection),
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
            (Connection::Node(node), _) => node.send_packed_command(&self.command).await,
            (Connection::Cluster(cluster), Some(route)) => {
                let route = RoutingInfo::SingleNode(route.clone());
                cluster.route_command(self.command.take(), route).await
            }
            (Connection::Cluster(cluster), None) => cluster.req_packed_command(&self.command).await,
        }
    }
}

/// Commands of one partition, of one slot of a cluster.
pub(crate) struct Many {
    pub(crate) commands: Pipeline,
    pub(crate) route: SingleNodeRoutingInfo,
}

impl Request for Many {
    type Answer = Vec<Value>;

    async fn send(&mut self, connection: &mut Connection) -> RedisResult<Vec<Value>> {
        let count = self.commands.len();
        match connection {
            Connection::Node(node) => node.send_packed_commands(&self.commands, 0, count).await,
            Connection::Cluster(cluster) => {
                let commands = std::mem::take(&mut self.commands);
                cluster.route_pipeline(commands, 0, count, self.route.clone()).await
            }
        }
    }
}
