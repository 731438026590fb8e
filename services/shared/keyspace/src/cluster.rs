//! Cluster connection: one multiplexed connection to each primary, and the client library for the
//! rest.
//!
//! A command goes to the primary of its partition. The commands of a batch with the same primary go
//! out in one write. If a primary redirects (MOVED, ASK), fails or does not reply, the library
//! sends the command again: it follows redirections and finds new primaries. The slot map is read
//! when the connection is made. The pool replaces a connection whose slot map is stale.

use std::{
    borrow::Cow,
    iter::once,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::{join_all, try_join_all};
use microblog_domain::Partition;
use redis::{
    Cmd, Pipeline, RedisResult, Value,
    aio::ConnectionLike as _,
    cluster_async::ClusterConnection,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo, Slot},
};
use tokio::time::{Instant, timeout};

use crate::{
    address::Node,
    multiplexed::Multiplexed,
    route::{Route, to_partition},
    slots::{self, SlotRange},
};

/// Minimum age of a connection that is replaced for its stale slot map: a migration of many slots
/// must not replace it at each slot.
const REFRESH_INTERVAL_MIN: Duration = Duration::from_secs(5);

/// A connection to a cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    library: ClusterConnection,
    slot_map: Arc<SlotMap>,
    /// Timeout of a primary's reply, after which the library sends the command again.
    reply_timeout: Duration,
}

/// The primaries when the connection was made.
struct SlotMap {
    primaries: Vec<Multiplexed>,
    /// The index in `primaries` by partition; `None` if connecting to the primary failed.
    primary_of: Vec<Option<usize>>,
    read_at: Instant,
    is_stale: AtomicBool,
}

impl Cluster {
    /// Reads the slot map and connects to each primary.
    pub(crate) async fn connect<F>(
        mut library: ClusterConnection,
        reply_timeout: Duration,
        connect: impl Fn(Node) -> F,
    ) -> RedisResult<Self>
    where
        F: Future<Output = RedisResult<Multiplexed>>,
    {
        let random = RoutingInfo::SingleNode(SingleNodeRoutingInfo::RandomPrimary);
        let reply = library.route_command(slots::command(), random).await?;
        let ranges = slots::parse(reply).unwrap_or_default();
        let mut nodes: Vec<&Node> = Vec::new();
        for range in &ranges {
            if !nodes.contains(&&range.primary) {
                nodes.push(&range.primary);
            }
        }
        let connected = join_all(nodes.iter().map(|&node| connect(node.clone()))).await;
        let (mut primaries, mut index_of_node) = (Vec::new(), Vec::new());
        for primary in connected {
            index_of_node.push(primary.is_ok().then_some(primaries.len()));
            primaries.extend(primary);
        }
        let index = |partition: Partition| {
            let slot = Slot::for_key(partition.to_string());
            let range: &SlotRange = ranges.iter().find(|range| range.contains(slot))?;
            let node = nodes.iter().position(|&node| *node == range.primary)?;
            index_of_node[node]
        };
        let primary_of: Vec<_> = Partition::all().map(index).collect();
        let is_stale = AtomicBool::new(primary_of.contains(&None));
        let slot_map = SlotMap { primaries, primary_of, read_at: Instant::now(), is_stale };
        Ok(Self { library, slot_map: Arc::new(slot_map), reply_timeout })
    }

    /// Returns whether the slot map is stale, and old enough to be replaced.
    pub(crate) fn is_outdated(&self) -> bool {
        let SlotMap { read_at, is_stale, .. } = &*self.slot_map;
        is_stale.load(Ordering::Relaxed) && read_at.elapsed() > REFRESH_INTERVAL_MIN
    }

    /// Sends one command and returns its reply, which may be an error reply.
    pub(crate) async fn command(&self, command: &Cmd, route: &Route) -> RedisResult<Value> {
        if let Route::Partition(partition) = route
            && let Some(primary) = self.primary(*partition)
        {
            if let Some(mut replies) = self.send_to(primary, once(command)).await
                && let Some(reply) = replies.pop().filter(|reply| !is_redirection(reply))
            {
                return Ok(reply);
            }
            self.mark_stale();
        }
        // Boxed, like all futures of the library: they are large.
        let mut library = self.library.clone();
        match route.for_library() {
            Some(route) => {
                let route = RoutingInfo::SingleNode(route);
                Box::pin(library.route_command(command.clone(), route)).await
            }
            None => Box::pin(library.req_packed_command(command)).await,
        }
    }

    /// Sends commands and returns their replies in the same order, which may be error replies.
    pub(crate) async fn commands(
        &self,
        commands: &[(Partition, Cow<'_, Cmd>)],
    ) -> RedisResult<Vec<Value>> {
        let mut by_primary = vec![Vec::new(); self.slot_map.primaries.len()];
        let mut rest = Vec::new();
        for (index, (partition, _)) in commands.iter().enumerate() {
            match self.slot_map.primary_of[usize::from(partition.number())] {
                Some(primary) => by_primary[primary].push(index),
                None => rest.push(index),
            }
        }
        let sent = self.slot_map.primaries.iter().zip(&by_primary);
        let sent = sent.filter(|(_, indices)| !indices.is_empty());
        let sent = sent.map(async |(primary, indices)| {
            let commands = indices.iter().map(|&index| &*commands[index].1);
            (indices, self.send_to(primary, commands).await)
        });
        let mut all = vec![Value::Nil; commands.len()];
        for (indices, replies) in join_all(sent).await {
            match replies {
                Some(replies) => {
                    for (&index, reply) in indices.iter().zip(replies) {
                        if is_redirection(&reply) {
                            rest.push(index);
                        } else {
                            all[index] = reply;
                        }
                    }
                }
                None => rest.extend(indices),
            }
        }
        if !rest.is_empty() {
            self.mark_stale();
            for (index, reply) in Box::pin(self.send_by_library(commands, rest)).await? {
                all[index] = reply;
            }
        }
        Ok(all)
    }

    fn primary(&self, partition: Partition) -> Option<&Multiplexed> {
        let index = self.slot_map.primary_of[usize::from(partition.number())]?;
        self.slot_map.primaries.get(index)
    }

    // Returns `None` if the primary does not reply: each command may have run.
    async fn send_to<'a>(
        &self,
        primary: &Multiplexed,
        commands: impl ExactSizeIterator<Item = &'a Cmd>,
    ) -> Option<Vec<Value>> {
        let replies = timeout(self.reply_timeout, primary.send(commands)).await;
        replies.ok()?.ok().map(|replies| replies.values)
    }

    fn mark_stale(&self) {
        self.slot_map.is_stale.store(true, Ordering::Relaxed);
    }

    // Sends the commands at `indices` by the library, as one pipeline for each partition.
    async fn send_by_library(
        &self,
        commands: &[(Partition, Cow<'_, Cmd>)],
        mut indices: Vec<usize>,
    ) -> RedisResult<Vec<(usize, Value)>> {
        indices.sort_by_key(|&index| (commands[index].0, index));
        let is_same_partition = |a: &usize, b: &usize| commands[*a].0 == commands[*b].0;
        let sent = indices.chunk_by(is_same_partition).map(async |indices| {
            let mut pipeline = Pipeline::with_capacity(indices.len());
            for &index in indices {
                pipeline.add_command(Cmd::clone(&commands[index].1));
            }
            let route = to_partition(commands[indices[0]].0);
            let mut library = self.library.clone();
            let replies = library.route_pipeline(pipeline, 0, indices.len(), route).await?;
            RedisResult::Ok(indices.iter().copied().zip(replies).collect::<Vec<_>>())
        });
        Ok(try_join_all(sent).await?.into_iter().flatten().collect())
    }
}

/// Returns whether a reply is a redirection, or an error that a retry may resolve.
fn is_redirection(reply: &Value) -> bool {
    const CODES: [&str; 6] = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN"];
    matches!(reply, Value::ServerError(error) if CODES.contains(&error.code()))
}
