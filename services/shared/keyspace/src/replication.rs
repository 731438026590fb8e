//! Replication: makes calls wait until replicas have their changes.
//!
//! WAIT blocks its connection, and concerns the writes of this connection alone. So each primary has
//! one connection for it, which the calls that wait at a moment share. On that connection, in one
//! pipeline:
//!
//! 1. XRANGE reads the journal entry of each change;
//! 2. a function writes a small key;
//! 3. WAIT waits until the replicas have this write.
//!
//! A primary has one stream of writes to its replicas. An entry that was read in step 1 is before the
//! write of step 2 in this stream. So a replica that has the write has all entries, and, since an
//! entry is appended by the function that makes the change, the changes.
//!
//! If a failover has replaced the primary since the change was made, and lost it, the entry is not
//! there, or is another one: its stamp tells. The wait fails then.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use futures::future::BoxFuture;
use redis::{Cmd, Pipeline, Value, cmd};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{
    DedicatedConnection, Durability, Error, RelevantChange, Waiter, Waiters,
    address::Node,
    dedicated_pool::DedicatedPools,
    durability::Waits,
    journal::changes,
    library::VersionedLibrary,
    lock::lock,
    reply::{check, decode},
    shared_pool::SharedPool,
};

/// The most changes of a group: a pipeline takes milliseconds.
const GROUP_MAX: usize = 1_000;

/// Waits for replicas.
pub(crate) struct Replication {
    waits: Waits,
    primary: Primary,
    /// The queues by primary; one without a node if there is one server.
    queues: Mutex<BTreeMap<Option<Node>, Waiters>>,
}

/// What is needed to wait for the replicas of a primary.
#[derive(Clone)]
struct Primary {
    shared: SharedPool,
    dedicated: Arc<DedicatedPools>,
    replicas: usize,
    /// The start of the call that writes a key.
    mark: Cmd,
}

impl Replication {
    pub(crate) fn new(
        shared: SharedPool,
        dedicated: Arc<DedicatedPools>,
        library: &VersionedLibrary,
        replicas: usize,
    ) -> Self {
        let mut mark = cmd("FCALL");
        library.write_function("mark_replicated", &mut mark);
        let waits = Waits::new("replicated", shared.timeout(), Error::NotReplicated);
        let primary = Primary { shared, dedicated, replicas, mark: mark.arg(1).take() };
        Self { waits, primary, queues: Mutex::default() }
    }

    /// Returns the primary of a change; `None` if there is one server.
    fn node(&self, relevant: &RelevantChange) -> Option<Node> {
        let slot_map = self.primary.shared.slot_map()?;
        slot_map.nodes().nth(slot_map.index(relevant.partition)?).cloned()
    }
}

impl Durability for Replication {
    fn wait(&self, changes: Vec<RelevantChange>) -> BoxFuture<'_, Result<(), Error>> {
        let results: Vec<_> = {
            let mut queues = lock(&self.queues);
            let add = |relevant: RelevantChange| {
                let queue = queues.entry(self.node(&relevant)).or_insert_with(|| {
                    let (queue, waiters) = Waiters::new();
                    tokio::spawn(self.primary.clone().run(waiters));
                    queue
                });
                queue.add(relevant)
            };
            changes.into_iter().map(add).collect()
        };
        Box::pin(self.waits.all(results))
    }
}

impl Primary {
    /// Waits for the replicas on behalf of calls, until the keyspace is dropped.
    async fn run(self, mut waiters: UnboundedReceiver<Waiter>) {
        let (mut connection, mut group) = (None, Vec::new());
        while waiters.recv_many(&mut group, GROUP_MAX).await > 0 {
            let replies = self.send(&mut connection, &group).await;
            let are_there = replies.and_then(|replies| self.are_there(&group, replies));
            if !are_there.as_ref().is_ok_and(|are_there| are_there.iter().all(|&is| is)) {
                // The primary may have been replaced.
                connection = None;
            }
            let are_there = are_there.map_err(Arc::new);
            for (index, waiter) in group.drain(..).enumerate() {
                waiter.end(match &are_there {
                    Ok(are_there) if are_there[index] => Ok(()),
                    Ok(_) => Err(Error::NotReplicated(
                        "the journal lacks the change, or is not open yet".into(),
                    )),
                    Err(error) => Err(Error::NotReplicated(error.clone().into())),
                });
            }
        }
    }

    /// Sends the commands of a group, and returns their replies. Keeps the connection.
    async fn send(
        &self,
        kept: &mut Option<DedicatedConnection>,
        group: &[Waiter],
    ) -> Result<Vec<Value>, Error> {
        let mut commands = Pipeline::with_capacity(group.len() + 2);
        for Waiter { relevant, .. } in group {
            let change = relevant.change.as_ref();
            let version = change.map(|change| change.version).unwrap_or_default().to_string();
            let read = cmd("XRANGE").arg(&relevant.journal).arg(&version).arg(version).take();
            commands.add_command(read);
        }
        let journal = &group[0].relevant.journal;
        commands.add_command(self.mark.clone().arg(format!("{journal}:mark")).take());
        // A part of the timeout of a call: the next group waits meanwhile.
        let limit = self.shared.timeout() / 3;
        commands.add_command(cmd("WAIT").arg(self.replicas).arg(limit.as_millis() as u64).take());
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => self.dedicated.get(&self.shared, journal).await?,
        };
        let replies = connection.query_all(&commands, self.shared.timeout()).await?;
        *kept = Some(connection);
        Ok(replies)
    }

    /// Returns for each change of a group whether the primary has it. Fails unless the replicas have
    /// what the primary has.
    fn are_there(&self, group: &[Waiter], mut replies: Vec<Value>) -> Result<Vec<bool>, Error> {
        let replicas: usize = decode(replies.pop().unwrap_or(Value::Nil))?;
        check(replies.pop().unwrap_or(Value::Nil))?;
        if replicas < self.replicas {
            return Err(Error::unavailable(format!("{replicas} replicas have the changes")));
        }
        let is_there = |(waiter, reply): (&Waiter, Value)| {
            // An error reply: the partition has moved to another primary.
            let found = changes(reply).ok().and_then(|mut found| found.pop());
            found.is_some() && found == waiter.relevant.change
        };
        Ok(group.iter().zip(replies).map(is_there).collect())
    }
}
