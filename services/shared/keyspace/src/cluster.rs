//! Cluster connection: the cluster client of the library, which routes commands to primaries and
//! follows redirections and failovers.

use std::borrow::Cow;

use futures::future::try_join_all;
use microblog_domain::Partition;
use redis::{
    Cmd, Pipeline, RedisResult, Value, aio::ConnectionLike as _, cluster_async::ClusterConnection,
    cluster_routing::RoutingInfo,
};

use crate::route::{Route, to_partition};

/// A connection to a cluster. The futures of the library are boxed, because they are large.
#[derive(Clone)]
pub(crate) struct Cluster {
    library: ClusterConnection,
}

impl Cluster {
    pub(crate) fn new(library: ClusterConnection) -> Self {
        Self { library }
    }

    /// Sends one command and returns its reply, which may be an error reply.
    pub(crate) async fn command(&self, command: &Cmd, route: &Route) -> RedisResult<Value> {
        let mut library = self.library.clone();
        match route.for_library() {
            Some(route) => {
                let route = RoutingInfo::SingleNode(route);
                Box::pin(library.route_command(command.clone(), route)).await
            }
            None => Box::pin(library.req_packed_command(command)).await,
        }
    }

    /// Sends commands, as one pipeline for each partition, and returns their replies in the same
    /// order, which may be error replies.
    pub(crate) async fn commands(
        &self,
        commands: &[(Partition, Cow<'_, Cmd>)],
    ) -> RedisResult<Vec<Value>> {
        let mut order: Vec<usize> = (0..commands.len()).collect();
        order.sort_by_key(|&index| commands[index].0);
        let is_same_partition = |a: &usize, b: &usize| commands[*a].0 == commands[*b].0;
        let sent = order.chunk_by(is_same_partition).map(async |indices| {
            let mut pipeline = Pipeline::with_capacity(indices.len());
            for &index in indices {
                pipeline.add_command(Cmd::clone(&commands[index].1));
            }
            let route = to_partition(commands[indices[0]].0);
            let mut library = self.library.clone();
            let replies = Box::pin(library.route_pipeline(pipeline, 0, indices.len(), route));
            RedisResult::Ok((indices, replies.await?))
        });
        let mut all = vec![Value::Nil; commands.len()];
        for (indices, replies) in try_join_all(sent).await? {
            for (&index, reply) in indices.iter().zip(replies) {
                all[index] = reply;
            }
        }
        Ok(all)
    }
}
