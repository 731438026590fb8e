//! Many commands to many partitions, sent together.

use std::borrow::Cow;

use futures::future::try_join_all;
use microblog_domain::Partition;
use redis::{Cmd, Value};
use tokio::sync::Semaphore;

use crate::{Call, Error, library::Composed, links::Links, route::of_partition};

// A pipeline's commands: enough that a round trip costs nothing, few enough that they take
// milliseconds.
const PIPELINE_MAX: usize = 1000;

// The commands of one batch that Redis has at a time: one pipeline is made while another is worked
// on. More would only keep the calls of others waiting, and count against the time-out.
const IN_FLIGHT_MAX: usize = 2 * PIPELINE_MAX;

/// Commands and calls to many partitions, to be sent together.
#[derive(Default)]
pub struct Batch {
    items: Vec<Item>,
}

#[derive(Clone)]
struct Item {
    partition: Partition,
    request: Request,
}

#[derive(Clone)]
enum Request {
    Query(Cmd),
    Call(Call),
}

impl Batch {
    /// Returns an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an empty batch with room for so many commands.
    pub fn with_capacity(commands: usize) -> Self {
        Self { items: Vec::with_capacity(commands) }
    }

    /// Adds a command, all of whose keys lie in this partition.
    pub fn query(&mut self, partition: Partition, command: Cmd) {
        self.items.push(Item { partition, request: Request::Query(command) });
    }

    /// Adds a call, all of whose keys lie in this partition, unless the keyspace joins partitions.
    pub fn call(&mut self, partition: Partition, call: Call) {
        self.items.push(Item { partition, request: Request::Call(call) });
    }

    /// Returns the number of commands and calls.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns which calls have answers that can mean that a node does not know the function.
    pub(crate) fn missed(&self, answers: &[Value]) -> Vec<usize> {
        let may_be_missed = |(index, (item, answer)): (usize, (&Item, &Value))| {
            let missed = matches!(item.request, Request::Call(_)) && is_general(answer);
            missed.then_some(index)
        };
        self.items.iter().zip(answers).enumerate().filter_map(may_be_missed).collect()
    }

    /// Returns a batch of some of this one's commands.
    pub(crate) fn pick(&self, indices: &[usize]) -> Self {
        Self { items: indices.iter().map(|&index| self.items[index].clone()).collect() }
    }

    /// Sends everything and returns the answers in the order added, some may be refusals.
    pub(crate) async fn send(
        &self,
        links: &Links,
        library: &Composed,
    ) -> Result<Vec<Value>, Error> {
        let mut order: Vec<usize> = (0..self.items.len()).collect();
        let is_cluster = links.is_cluster();
        if is_cluster {
            order.sort_by_key(|&index| self.items[index].partition);
        }
        let together = |a: &usize, b: &usize| {
            !is_cluster || self.items[*a].partition == self.items[*b].partition
        };
        let pipelines = order.chunk_by(together).flat_map(|slot| slot.chunks(PIPELINE_MAX));

        let room = Semaphore::new(IN_FLIGHT_MAX);
        let mut first = pipelines.clone();
        if let (Some(indices), None) = (first.next(), first.next()) {
            // The usual case. Alone, it is in the order added.
            return self.send_pipeline(indices, links, library, &room).await;
        }
        let sent =
            pipelines.clone().map(|indices| self.send_pipeline(indices, links, library, &room));
        let answers = try_join_all(sent).await?;

        let mut all = vec![Value::Nil; self.items.len()];
        for (indices, answers) in pipelines.zip(answers) {
            for (&index, answer) in indices.iter().zip(answers) {
                all[index] = answer;
            }
        }
        Ok(all)
    }

    async fn send_pipeline(
        &self,
        indices: &[usize],
        links: &Links,
        library: &Composed,
        room: &Semaphore,
    ) -> Result<Vec<Value>, Error> {
        // Never closed, and a pipeline is smaller than the room.
        let _room = room.acquire_many(indices.len() as u32).await;
        let command = |&index: &usize| match &self.items[index].request {
            Request::Query(command) => Cow::Borrowed(command),
            Request::Call(call) => Cow::Owned(call.command(library)),
        };
        let commands = indices.iter().map(command).collect();
        let partition = self.items[indices[0]].partition;
        let answers = links.commands(commands, of_partition(partition)).await?;
        if answers.len() == indices.len() {
            Ok(answers)
        } else {
            Err(Error::malformed("a pipeline got another number of answers than commands"))
        }
    }
}

/// Returns whether this is Redis's general refusal, as for a function that it does not know.
pub(crate) fn is_general(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.code() == "ERR")
}
