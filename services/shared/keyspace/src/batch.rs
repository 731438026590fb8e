//! Batches: commands and calls to many partitions, sent as pipelines.

use std::borrow::Cow;

use futures::future::try_join_all;
use microblog_domain::Partition;
use redis::{Cmd, Value};
use tokio::sync::Semaphore;

use crate::{
    Call, Error, PartitionStates, RelevantChange,
    journal::SeenVersions,
    library::VersionedLibrary,
    reply::{check, is_generic_error},
    route::Routed,
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
    fn command(&self, library: &VersionedLibrary, seen: &SeenVersions) -> Routed<'_> {
        let command = match &self.request {
            Request::Query(command) => Cow::Borrowed(command),
            Request::Call(call) => Cow::Owned(call.command(library, seen)),
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

    /// Rejects a batch with a command of a closed partition.
    pub(crate) fn check(&self, states: &PartitionStates) -> Result<(), Error> {
        self.items.iter().try_for_each(|item| states.check(Some(item.partition)))
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

    /// Returns the result in each reply, or its error reply as an error. Adds to `relevant` what the
    /// results rely on, as they are taken.
    pub(crate) fn results(
        &self,
        replies: Vec<Value>,
        seen: &SeenVersions,
        relevant: &mut Vec<RelevantChange>,
    ) -> impl Iterator<Item = Result<Value, Error>> {
        self.items.iter().zip(replies).map(move |(item, reply)| match &item.request {
            Request::Query(_) => check(reply),
            Request::Call(call) => {
                let (result, change) = call.result(reply, seen)?;
                relevant.extend(change);
                check(result)
            }
        })
    }

    /// Sends all commands and returns the replies in the order added, which may be error replies.
    pub(crate) async fn send(
        &self,
        pool: &SharedPool,
        library: &VersionedLibrary,
        seen: &SeenVersions,
    ) -> Result<Vec<Value>, Error> {
        let permits = Semaphore::new(IN_FLIGHT_COMMANDS_MAX);
        let mut pipelines = self.items.chunks(PIPELINE_COMMANDS_MAX);
        if let (Some(items), None) = (pipelines.next(), pipelines.next()) {
            // One pipeline: the common case.
            return send_pipeline(items, pool, library, seen, &permits).await;
        }
        let pipelines = self.items.chunks(PIPELINE_COMMANDS_MAX);
        let sent = pipelines.map(|items| send_pipeline(items, pool, library, seen, &permits));
        Ok(try_join_all(sent).await?.into_iter().flatten().collect())
    }
}

async fn send_pipeline(
    items: &[Item],
    pool: &SharedPool,
    library: &VersionedLibrary,
    seen: &SeenVersions,
    permits: &Semaphore,
) -> Result<Vec<Value>, Error> {
    // Cannot fail: the semaphore is never closed, and has more permits than a pipeline commands.
    let _permits = permits.acquire_many(items.len() as u32).await;
    let commands: Vec<_> = items.iter().map(|item| item.command(library, seen)).collect();
    let replies = pool.commands(&commands).await?;
    if replies.len() == items.len() {
        Ok(replies)
    } else {
        Err(Error::malformed("a pipeline has fewer or more replies than commands"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reply_leaves_the_other_results_and_what_they_rely_on() {
        let (seen, partition) = (SeenVersions::new(PartitionStates::default()), Partition::new(7));
        seen.set_waits();
        let mut batch = Batch::new();
        for _ in 0..3 {
            batch.call(partition, Call::new("f").journal(partition, "j".into()).key("a"));
        }
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let done = |version| Value::Array(vec![Value::Int(5), bulk(version), bulk("like 1 2")]);
        let wrong = redis::parse_redis_value(b"-WRONGTYPE another type\r\n").unwrap();
        let (replies, mut relevant) = (vec![done("3-7"), wrong, done("3-8")], Vec::new());
        let results: Vec<_> = batch.results(replies, &seen, &mut relevant).collect();
        assert_eq!(results.len(), 3);
        for result in [&results[0], &results[2]] {
            assert_eq!(result.as_ref().unwrap(), &Value::Int(5));
        }
        assert_eq!(results[1].as_ref().unwrap_err().code(), Some("WRONGTYPE"));
        let versions = relevant.into_iter().map(|relevant| relevant.change.unwrap().version);
        assert_eq!(versions.map(|at| at.to_string()).collect::<Vec<_>>(), ["3-7", "3-8"]);
        assert_eq!(seen.arguments(partition, false), [3, 8, 0]);
    }
}
