//! A connection that many share, to one node or to a cluster. Knows no pool and no time-out.

use redis::{
    Cmd, Pipeline, RedisResult, Value,
    aio::{ConnectionLike as _, MultiplexedConnection},
    cluster_async::ClusterConnection,
    cluster_routing::{MultipleNodeRoutingInfo, Route, RoutingInfo, SingleNodeRoutingInfo},
};

/// A connection that may be cloned and used by many at once.
#[derive(Clone)]
pub(crate) enum Connection {
    Node(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    /// Sends one command; without a route, a cluster finds the node by the command's keys.
    ///
    /// The cluster's client takes the command, since it repeats it by itself.
    pub(crate) async fn command(
        &mut self,
        command: &mut Cmd,
        route: Option<Route>,
    ) -> RedisResult<Value> {
        match (self, route) {
            (Self::Node(connection), _) => connection.send_packed_command(command).await,
            (Self::Cluster(connection), Some(route)) => {
                let node = SingleNodeRoutingInfo::SpecificNode(route);
                connection.route_command(command.take(), RoutingInfo::SingleNode(node)).await
            }
            (Self::Cluster(connection), None) => connection.req_packed_command(command).await,
        }
    }

    /// Sends commands of one partition, of one slot of a cluster.
    ///
    /// The cluster's client takes the commands, since it repeats them by itself.
    pub(crate) async fn commands(
        &mut self,
        commands: &mut Pipeline,
        route: Route,
    ) -> RedisResult<Vec<Value>> {
        let count = commands.len();
        match self {
            Self::Node(connection) => connection.send_packed_commands(commands, 0, count).await,
            Self::Cluster(connection) => {
                let commands = std::mem::take(commands);
                let node = SingleNodeRoutingInfo::SpecificNode(route);
                connection.route_pipeline(commands, 0, count, node).await
            }
        }
    }

    /// Sends a command to the one node, or to every primary, and returns the answer of each.
    pub(crate) async fn everywhere(&mut self, command: &Cmd) -> RedisResult<Vec<Value>> {
        match self {
            Self::Node(connection) => Ok(vec![connection.send_packed_command(command).await?]),
            Self::Cluster(connection) => {
                // Without a policy, the answers come as they are, by node.
                let everywhere =
                    RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                match connection.route_command(command.clone(), everywhere).await? {
                    Value::Map(answers) => {
                        Ok(answers.into_iter().map(|(_node, answer)| answer).collect())
                    }
                    answer => Ok(vec![answer]),
                }
            }
        }
    }
}
