//! A connection to a cluster: one multiplexed connection to each primary, and the client library for
//! everything else.
//!
//! Commands go straight to the primary of their partition, those of one batch that have the same
//! primary in one write. Where that does not work (a slot has moved or moves, a primary is gone or
//! frozen), the library sends them again: it follows redirections, and finds the new primary. The
//! map of primaries is read when the connection is made. A connection whose map is wrong is replaced
//! by the pool.

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
    route::{Route, to_partition},
    slots::{self, Range},
    wire::Wire,
};

/// How long a connection is kept although its map is wrong: a migration of many slots must not
/// replace it at each of them.
const AGE_MIN: Duration = Duration::from_secs(5);

/// A connection to a cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    library: ClusterConnection,
    primaries: Arc<Primaries>,
    /// For an answer of one primary, before the library is asked.
    answer_max: Duration,
}

/// The primaries, as they were when the connection was made.
struct Primaries {
    wires: Vec<Wire>,
    /// For each partition the place in `wires`; `None` where its primary did not answer.
    places: Vec<Option<usize>>,
    made: Instant,
    is_wrong: AtomicBool,
}

impl Cluster {
    /// Makes a connection, with a way to connect to each primary.
    pub(crate) async fn connect<F>(
        mut library: ClusterConnection,
        answer_max: Duration,
        connect: impl Fn(Node) -> F,
    ) -> RedisResult<Self>
    where
        F: Future<Output = RedisResult<Wire>>,
    {
        let random = RoutingInfo::SingleNode(SingleNodeRoutingInfo::RandomPrimary);
        let answer = library.route_command(slots::question(), random).await?;
        let ranges = slots::read(answer).unwrap_or_default();
        let mut nodes: Vec<&Node> = Vec::new();
        for range in &ranges {
            if !nodes.contains(&&range.primary) {
                nodes.push(&range.primary);
            }
        }
        let made = join_all(nodes.iter().map(|&node| connect(node.clone()))).await;
        let (mut wires, mut place_of) = (Vec::new(), Vec::new());
        for wire in made {
            place_of.push(wire.is_ok().then_some(wires.len()));
            wires.extend(wire);
        }
        let place = |partition: Partition| {
            let slot = Slot::for_key(partition.to_string());
            let range: &Range = ranges.iter().find(|range| range.holds(slot))?;
            let node = nodes.iter().position(|&node| *node == range.primary)?;
            place_of[node]
        };
        let places: Vec<_> = Partition::all().map(place).collect();
        let is_wrong = AtomicBool::new(places.contains(&None));
        let primaries = Arc::new(Primaries { wires, places, made: Instant::now(), is_wrong });
        Ok(Self { library, primaries, answer_max })
    }

    /// Returns whether the map of primaries is wrong, and old enough to be read anew.
    pub(crate) fn is_outdated(&self) -> bool {
        let Primaries { made, is_wrong, .. } = &*self.primaries;
        is_wrong.load(Ordering::Relaxed) && made.elapsed() > AGE_MIN
    }

    /// Sends one command, and returns its answer, which may be a refusal.
    pub(crate) async fn command(&self, command: &Cmd, route: &Route) -> RedisResult<Value> {
        if let Route::Partition(partition) = route
            && let Some(wire) = self.wire(*partition)
        {
            if let Some(mut answers) = self.ask(wire, once(command)).await
                && let Some(answer) = answers.pop().filter(|answer| !is_redirection(answer))
            {
                return Ok(answer);
            }
            self.is_wrong();
        }
        // Boxed, as are all futures of the library: they are large.
        let mut library = self.library.clone();
        match route.for_library() {
            Some(route) => {
                let route = RoutingInfo::SingleNode(route);
                Box::pin(library.route_command(command.clone(), route)).await
            }
            None => Box::pin(library.req_packed_command(command)).await,
        }
    }

    /// Sends commands, and returns their answers in the same order, some of which may be refusals.
    pub(crate) async fn commands(
        &self,
        commands: &[(Partition, Cow<'_, Cmd>)],
    ) -> RedisResult<Vec<Value>> {
        let mut by_wire = vec![Vec::new(); self.primaries.wires.len()];
        let mut rest = Vec::new();
        for (index, (partition, _)) in commands.iter().enumerate() {
            match self.primaries.places[usize::from(partition.number())] {
                Some(place) => by_wire[place].push(index),
                None => rest.push(index),
            }
        }
        let sent = self.primaries.wires.iter().zip(&by_wire).filter(|(_, own)| !own.is_empty());
        let sent = sent.map(async |(wire, own)| {
            (own, self.ask(wire, own.iter().map(|&index| &*commands[index].1)).await)
        });
        let mut all = vec![Value::Nil; commands.len()];
        for (own, answers) in join_all(sent).await {
            match answers {
                Some(answers) => {
                    for (&index, answer) in own.iter().zip(answers) {
                        if is_redirection(&answer) {
                            rest.push(index);
                        } else {
                            all[index] = answer;
                        }
                    }
                }
                None => rest.extend(own),
            }
        }
        if !rest.is_empty() {
            self.is_wrong();
            for (index, answer) in Box::pin(self.by_library(commands, rest)).await? {
                all[index] = answer;
            }
        }
        Ok(all)
    }

    fn wire(&self, partition: Partition) -> Option<&Wire> {
        let place = self.primaries.places[usize::from(partition.number())]?;
        self.primaries.wires.get(place)
    }

    // `None` if the primary does not answer: each command may have run.
    async fn ask<'a>(
        &self,
        wire: &Wire,
        commands: impl ExactSizeIterator<Item = &'a Cmd>,
    ) -> Option<Vec<Value>> {
        let answers = timeout(self.answer_max, wire.send(commands)).await;
        answers.ok()?.ok().map(|answers| answers.values)
    }

    fn is_wrong(&self) {
        self.primaries.is_wrong.store(true, Ordering::Relaxed);
    }

    // Sends some of the commands, a pipeline for each partition.
    async fn by_library(
        &self,
        commands: &[(Partition, Cow<'_, Cmd>)],
        mut indices: Vec<usize>,
    ) -> RedisResult<Vec<(usize, Value)>> {
        indices.sort_by_key(|&index| (commands[index].0, index));
        let together = |a: &usize, b: &usize| commands[*a].0 == commands[*b].0;
        let sent = indices.chunk_by(together).map(async |own| {
            let mut pipeline = Pipeline::with_capacity(own.len());
            for &index in own {
                pipeline.add_command(Cmd::clone(&commands[index].1));
            }
            let route = to_partition(commands[own[0]].0);
            let mut library = self.library.clone();
            let answers = library.route_pipeline(pipeline, 0, own.len(), route).await?;
            RedisResult::Ok(own.iter().copied().zip(answers).collect::<Vec<_>>())
        });
        Ok(try_join_all(sent).await?.into_iter().flatten().collect())
    }
}

/// Returns whether an answer says that another node must be asked, or the same one later.
fn is_redirection(answer: &Value) -> bool {
    const CODES: [&str; 6] = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN"];
    matches!(answer, Value::ServerError(error) if CODES.contains(&error.code()))
}
