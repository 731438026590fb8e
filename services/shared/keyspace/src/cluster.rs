//! Cluster: a pool of connections to each primary, the slot map, and the client library for
//! redirections.
//!
//! A command goes to the primary of its partition. The commands of a batch with the same primary go
//! out in one write. If a primary redirects a command (MOVED, ASK) or rejects it while its slot
//! migrates (TRYAGAIN), the library sends it again.
//!
//! The slot map is read again in the background after MOVED, after an error that means that a primary
//! may be down or replaced, and after a primary did not reply. The pools of the other primaries stay
//! as they are, so that a failed primary delays no calls to them.

use std::{
    collections::BTreeMap,
    iter::once,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use futures::future::{join_all, try_join_all};
use microblog_domain::Partition;
use opentelemetry::{KeyValue, global, metrics::BoundCounter};
use redis::{
    RedisResult, Value,
    aio::ConnectionLike as _,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
};
use tokio::{
    sync::{Mutex as AsyncMutex, Notify, OnceCell},
    time::{Instant, sleep, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Error,
    address::Node,
    connection_metrics::{ConnectionGuard, ConnectionMetrics},
    error::{TimedOut, within},
    lock::lock,
    node_connection::ClusterConnection,
    reply::check,
    route::{Routed, to_partition},
    server_pool::{ServerPool, ServerPoolOptions},
    slots::{self, SlotRange},
};

/// Minimum interval between two readings of the slot map in the background: a failover takes
/// seconds, and a migration of many slots causes a MOVED at each.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);

/// The connections to a cluster. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Cluster {
    shared: Arc<Shared>,
    /// Reads the slot map again when it is stale.
    refresher: Arc<OnceLock<AbortOnDropHandle<()>>>,
}

struct Shared {
    options: ServerPoolOptions,
    /// `None` until it was read.
    slot_map: Mutex<Option<Arc<SlotMap>>>,
    stale: Notify,
    /// Held while the slot map is read.
    refreshing: AsyncMutex<()>,
    library: Mutex<Arc<Library>>,
    library_metrics: ConnectionMetrics,
    redirections: BoundCounter<u64>,
}

/// The primaries of a cluster, and their partitions.
#[derive(Default)]
pub(crate) struct SlotMap {
    ranges: Vec<SlotRange>,
    primaries: Vec<(Node, ServerPool)>,
    /// The index in `primaries` by partition; `None` if the slot has no primary.
    primary_of: Vec<Option<usize>>,
}

impl SlotMap {
    /// Returns the primaries.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.primaries.iter().map(|(node, _)| node)
    }

    /// Returns the index of a partition's primary; `None` if the slot has none.
    pub(crate) fn index(&self, partition: Partition) -> Option<usize> {
        self.primary_of[usize::from(partition.number())]
    }
}

/// The cluster client of the library.
#[derive(Default)]
struct Library {
    /// Made by the first request.
    client: OnceCell<(ClusterConnection, ConnectionGuard)>,
    /// The generation of its certificates and its password. The library reconnects with those that
    /// it was made with.
    files: u64,
}

impl Cluster {
    /// Does not connect.
    pub(crate) fn new(options: ServerPoolOptions, keyspace: &'static str) -> Self {
        let redirections = global::meter("microblog-keyspace")
            .u64_counter("microblog.redis.redirections")
            .with_unit("{command}")
            .with_description(
                "Commands that the cluster client sent: redirected ones, and those without a key",
            )
            .build();
        let shared = Shared {
            options,
            slot_map: Mutex::default(),
            stale: Notify::new(),
            refreshing: AsyncMutex::default(),
            library: Mutex::default(),
            library_metrics: ConnectionMetrics::new(keyspace, "library"),
            redirections: redirections.bind(&[KeyValue::new("microblog.keyspace", keyspace)]),
        };
        Self { shared: Arc::new(shared), refresher: Arc::default() }
    }

    /// Reads the slot map, and returns the pools of all primaries, or an error while a slot has
    /// none.
    pub(crate) async fn primaries(&self) -> Result<Vec<ServerPool>, Error> {
        self.start_refresher();
        let deadline = Instant::now() + self.shared.options.timeout;
        let slot_map = within(deadline, Box::pin(self.shared.refresh())).await?;
        if !slots::are_complete(&slot_map.ranges) {
            return Err(Error::unavailable("the cluster has slots without a primary"));
        }
        Ok(slot_map.primaries.iter().map(|(_, primary)| primary.clone()).collect())
    }

    /// Returns the primary of a partition.
    pub(crate) async fn primary_of(&self, partition: Partition) -> Result<Node, Error> {
        let slot_map = self.slot_map(Instant::now() + self.shared.options.timeout).await?;
        let index = self.index(&slot_map, partition)?;
        Ok(slot_map.primaries[index].0.clone())
    }

    /// Returns the partitions of each primary that has any, in order.
    pub(crate) async fn partitions_by_primary(&self) -> Result<Vec<Vec<Partition>>, Error> {
        let slot_map = self.slot_map(Instant::now() + self.shared.options.timeout).await?;
        let mut by_primary = BTreeMap::<usize, Vec<Partition>>::new();
        for partition in Partition::all() {
            if let Some(index) = slot_map.index(partition) {
                by_primary.entry(index).or_default().push(partition);
            }
        }
        Ok(by_primary.into_values().collect())
    }

    /// Returns the slot map, if it was read.
    pub(crate) fn current_slot_map(&self) -> Option<Arc<SlotMap>> {
        lock(&self.shared.slot_map).clone()
    }

    /// Has the slot map read again in the background.
    pub(crate) fn mark_stale(&self) {
        self.shared.stale.notify_one();
    }

    /// Sends commands and returns their replies in the same order, which may be error replies.
    pub(crate) async fn send(
        &self,
        commands: &[Routed<'_>],
        deadline: Instant,
    ) -> Result<Vec<Value>, Error> {
        let slot_map = self.slot_map(deadline).await?;
        let (mut routed, mut rest) = (Vec::with_capacity(commands.len()), Vec::new());
        for (index, (partition, _)) in commands.iter().enumerate() {
            match partition {
                Some(partition) => routed.push((self.index(&slot_map, *partition)?, index)),
                None => rest.push(index),
            }
        }
        // Stable: the commands to one primary keep their order.
        routed.sort_by_key(|&(primary, _)| primary);
        let sent = routed.chunk_by(|a, b| a.0 == b.0).map(async |group| {
            let (_, primary) = &slot_map.primaries[group[0].0];
            let commands = group.iter().map(|&(_, index)| &*commands[index].1);
            let mut unanswered = Unanswered(Some(&self.shared.stale));
            let replies = primary.send(commands, deadline).await?;
            unanswered.0 = None;
            Ok::<_, Error>((group, replies))
        });
        let mut all = vec![Value::Nil; commands.len()];
        // All, so that the commands to others are sent if one primary is away.
        for sent in join_all(sent).await {
            let (group, replies) = sent?;
            for (&(_, index), reply) in group.iter().zip(replies) {
                if self.is_redirected(&reply) {
                    rest.push(index);
                } else {
                    all[index] = reply;
                }
            }
        }
        if !rest.is_empty() {
            for (index, reply) in self.shared.send_by_library(commands, rest, deadline).await? {
                all[index] = reply;
            }
        }
        Ok(all)
    }

    /// Returns whether the library is to send the command again. It follows MOVED and ASK, and
    /// waits before it repeats TRYAGAIN.
    fn is_redirected(&self, reply: &Value) -> bool {
        let Value::ServerError(error) = reply else { return false };
        if matches!(error.code(), "MOVED" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN") {
            self.mark_stale();
        }
        matches!(error.code(), "MOVED" | "ASK" | "TRYAGAIN")
    }

    fn index(&self, slot_map: &SlotMap, partition: Partition) -> Result<usize, Error> {
        slot_map.index(partition).ok_or_else(|| {
            self.mark_stale();
            Error::unavailable("the slot has no primary")
        })
    }

    /// Returns the slot map, and reads it if that was not done yet.
    async fn slot_map(&self, deadline: Instant) -> Result<Arc<SlotMap>, Error> {
        if let Some(slot_map) = self.current_slot_map() {
            return Ok(slot_map);
        }
        self.start_refresher();
        within(deadline, Box::pin(self.shared.read_once())).await
    }

    fn start_refresher(&self) {
        self.refresher.get_or_init(|| {
            AbortOnDropHandle::new(tokio::spawn(refresh_when_stale(self.shared.clone())))
        });
    }
}

/// Marks the slot map stale when dropped, also with the future of a cancelled call.
struct Unanswered<'a>(Option<&'a Notify>);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(stale) = self.0 {
            stale.notify_one();
        }
    }
}

async fn refresh_when_stale(shared: Arc<Shared>) {
    loop {
        shared.stale.notified().await;
        if let Err(error) = shared.refresh().await {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(error, "slot map unavailable");
        }
        sleep(REFRESH_INTERVAL).await;
    }
}

impl Shared {
    /// Reads the slot map unless it was read already.
    async fn read_once(&self) -> Result<Arc<SlotMap>, Error> {
        let _guard = self.refreshing.lock().await;
        let current = lock(&self.slot_map).clone();
        match current {
            Some(slot_map) => Ok(slot_map),
            None => self.read().await,
        }
    }

    /// Reads the slot map.
    async fn refresh(&self) -> Result<Arc<SlotMap>, Error> {
        let _guard = self.refreshing.lock().await;
        self.read().await
    }

    /// Asks all known primaries, and takes the most frequent reply: after a failover, the nodes
    /// disagree for a while. Asks by the library if none replies.
    async fn read(&self) -> Result<Arc<SlotMap>, Error> {
        let known = lock(&self.slot_map).clone().unwrap_or_default();
        let replies = join_all(known.primaries.iter().map(|(_, primary)| self.ask(primary))).await;
        let replies: Vec<_> = replies.into_iter().flatten().collect();
        let votes = |reply: &&Vec<SlotRange>| replies.iter().filter(|other| other == reply).count();
        let ranges = match replies.iter().max_by_key(votes) {
            Some(ranges) => ranges.clone(),
            None => self.ask_library().await?,
        };
        if ranges == known.ranges && !ranges.is_empty() {
            return Ok(known);
        }
        let slot_map = Arc::new(self.slot_map(&known, ranges));
        *lock(&self.slot_map) = Some(slot_map.clone());
        if !known.nodes().eq(slot_map.nodes()) {
            if known.nodes().next().is_some() {
                self.options.endpoint.primaries_changed();
            }
            // After a failover, the library reaches the new primary as the replica that it was, does
            // not notice the failover, and returns to the old primary once that is up again.
            *lock(&self.library) = Arc::default();
        }
        Ok(slot_map)
    }

    async fn ask(&self, primary: &ServerPool) -> Result<Vec<SlotRange>, Error> {
        // A part of the timeout: a frozen primary must not delay the slot map for longer.
        let deadline = Instant::now() + self.options.timeout / 4;
        let replies = primary.send(once(&slots::command()), deadline).await?;
        let reply = replies.into_iter().next().unwrap_or(Value::Nil);
        slots::parse(check(reply)?)
    }

    async fn ask_library(&self) -> Result<Vec<SlotRange>, Error> {
        let deadline = Instant::now() + self.options.timeout;
        let ask = async |mut client: ClusterConnection| {
            let route = RoutingInfo::SingleNode(SingleNodeRoutingInfo::RandomPrimary);
            client.route_command(slots::command(), route).await
        };
        slots::parse(check(self.with_library(deadline, ask).await?)?)
    }

    /// Returns the slot map, with the pools of known primaries.
    fn slot_map(&self, known: &SlotMap, ranges: Vec<SlotRange>) -> SlotMap {
        let mut nodes: Vec<&Node> = ranges.iter().map(|range| &range.primary).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let pool = |node: &Node| match known.primaries.iter().find(|(known, _)| known == node) {
            Some(primary) => primary.clone(),
            None => (node.clone(), self.options.pool(Some(node.clone()))),
        };
        let primaries = nodes.iter().map(|&node| pool(node)).collect();
        let primary_of = Partition::all().map(|partition| {
            let range = slots::find(&ranges, slots::slot_of(partition))?;
            nodes.binary_search(&&range.primary).ok()
        });
        let primary_of = primary_of.collect();
        SlotMap { ranges, primaries, primary_of }
    }

    /// Sends commands by the library, those of a partition one after the other: in a pipeline, the
    /// library would send ASKING for the first one only.
    async fn send_by_library(
        &self,
        commands: &[Routed<'_>],
        mut indices: Vec<usize>,
        deadline: Instant,
    ) -> Result<Vec<(usize, Value)>, Error> {
        self.redirections.add(indices.len() as u64);
        indices.sort_by_key(|&index| (commands[index].0, index));
        let is_same_partition = |a: &usize, b: &usize| commands[*a].0 == commands[*b].0;
        let send = async |client: ClusterConnection| {
            let sent = indices.chunk_by(is_same_partition).map(async |indices| {
                let mut client = client.clone();
                let mut replies = Vec::with_capacity(indices.len());
                for &index in indices {
                    let (partition, command) = &commands[index];
                    let reply = match partition {
                        Some(partition) => {
                            let route = RoutingInfo::SingleNode(to_partition(*partition));
                            client.route_command(command.clone().into_owned(), route).await
                        }
                        None => client.req_packed_command(command).await,
                    };
                    replies.push((index, reply?));
                }
                RedisResult::Ok(replies)
            });
            Ok(try_join_all(sent).await?.into_iter().flatten().collect())
        };
        self.with_library(deadline, send).await
    }

    /// Sends a request by the library. Drops the client if its connections fail or do not reply.
    async fn with_library<T>(
        &self,
        deadline: Instant,
        send: impl AsyncFnOnce(ClusterConnection) -> RedisResult<T>,
    ) -> Result<T, Error> {
        let library = self.library();
        let connect = || self.library_metrics.measure(self.options.endpoint.cluster_client());
        let sent = async {
            let (client, _) = library.client.get_or_try_init(connect).await?;
            send(client.clone()).await
        };
        // Boxed: this large and rare future would be part of every command's future.
        let reply = timeout_at(deadline, Box::pin(sent)).await;
        let is_answered = match &reply {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => error.code().is_some(),
            Err(_elapsed) => false,
        };
        let mut current = lock(&self.library);
        // Another request may have replaced it.
        if !is_answered && Arc::ptr_eq(&current, &library) {
            *current = Arc::default();
        }
        Ok(reply.map_err(|_elapsed| Error::unavailable(TimedOut))??)
    }

    /// Returns the library's client with the current certificates and password. Does not connect.
    /// Reads the files each time, since the library may reconnect in any request, and is used rarely.
    fn library(&self) -> Arc<Library> {
        let files = self.options.endpoint.reload_files();
        let mut library = lock(&self.library);
        if library.files != files {
            *library = Arc::new(Library { files, ..Library::default() });
        }
        library.clone()
    }
}
