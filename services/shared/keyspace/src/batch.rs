//! Batches: commands and calls to many partitions, sent as pipelines.

use std::borrow::Cow;

use futures::future::try_join_all;
use microblog_domain::Partition;
use redis::{Cmd, Value};
use tokio::sync::Semaphore;

use crate::{
    Call, Error, library::VersionedLibrary, reply::is_generic_error, route::Routed,
    shared_pool::SharedPool,
};

// Commands in a pipeline: enough to amortise a round trip, few enough to take milliseconds.
const PIPELINE_COMMANDS_MAX: usize = 1000;

// Commands of one batch in flight: Redis runs one pipeline while the next one is written. More would
// delay other calls, and count towards the timeout.
const IN_FLIGHT_COMMANDS_MAX: usize = 2 * PIPELINE_COMMANDS_MAX;

/// Commands and calls to many partitions.
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

impl Item {
    fn command(&self, library: &VersionedLibrary) -> Routed<'_> {
        let command = match &self.request {
            Request::Query(command) => Cow::Borrowed(command),
            Request::Call(call) => Cow::Owned(call.command(library)),
        };
        (Some(self.partition), command)
    }
}

impl Batch {
    /// Returns an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an empty batch with capacity for `commands`.
    pub fn with_capacity(commands: usize) -> Self {
        Self { items: Vec::with_capacity(commands) }
    }

    /// Adds a command. All of its keys must be in `partition`.
    pub fn query(&mut self, partition: Partition, command: Cmd) {
        self.items.push(Item { partition, request: Request::Query(command) });
    }

    /// Adds a call. All of its keys must be in `partition`, unless
    /// [`Keyspace::joins_partitions`](crate::Keyspace::joins_partitions).
    pub fn call(&mut self, partition: Partition, call: Call) {
        self.items.push(Item { partition, request: Request::Call(call) });
    }

    /// Returns the number of commands and calls.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the indices of the calls whose error may mean that the function is not loaded.
    pub(crate) fn calls_with_generic_error(&self, replies: &[Value]) -> Vec<usize> {
        let index_of_failed = |(index, (item, reply)): (usize, (&Item, &Value))| {
            let is_failed = matches!(item.request, Request::Call(_)) && is_generic_error(reply);
            is_failed.then_some(index)
        };
        self.items.iter().zip(replies).enumerate().filter_map(index_of_failed).collect()
    }

    /// Returns a batch of the commands at `indices`.
    pub(crate) fn select(&self, indices: &[usize]) -> Self {
        Self { items: indices.iter().map(|&index| self.items[index].clone()).collect() }
    }

    /// Sends all commands and returns the replies in the order added, which may be error replies.
    pub(crate) async fn send(
        &self,
        pool: &SharedPool,
        library: &VersionedLibrary,
    ) -> Result<Vec<Value>, Error> {
        let permits = Semaphore::new(IN_FLIGHT_COMMANDS_MAX);
        let mut pipelines = self.items.chunks(PIPELINE_COMMANDS_MAX);
        if let (Some(items), None) = (pipelines.next(), pipelines.next()) {
            // One pipeline: the common case.
            return send_pipeline(items, pool, library, &permits).await;
        }
        let pipelines = self.items.chunks(PIPELINE_COMMANDS_MAX);
        let sent = pipelines.map(|items| send_pipeline(items, pool, library, &permits));
        Ok(try_join_all(sent).await?.into_iter().flatten().collect())
    }
}

async fn send_pipeline(
    items: &[Item],
    pool: &SharedPool,
    library: &VersionedLibrary,
    permits: &Semaphore,
) -> Result<Vec<Value>, Error> {
    // Cannot fail: the semaphore is never closed, and has more permits than a pipeline commands.
    let _permits = permits.acquire_many(items.len() as u32).await;
    let commands: Vec<_> = items.iter().map(|item| item.command(library)).collect();
    let replies = pool.commands(&commands).await?;
    if replies.len() == items.len() {
        Ok(replies)
    } else {
        Err(Error::malformed("a pipeline has fewer or more replies than commands"))
    }
}
