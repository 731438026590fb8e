//! Failovers of Redis. A new primary may lack writes, and so may a server that was restarted or is an
//! older copy. Two servers may be primaries for a while: what is written to one of them is lost, here
//! at another time than in the post service.
//!
//! Each server has a checkpoint: its replication id, and a time until which it has all writes. Every
//! second, all processes renew it. A server with the checkpoint of another one has only the writes
//! until then. The posts that were delivered since are delivered again. Home timelines that were built
//! before are rebuilt when they are read, since jobs, pushes and pulled authors may be lost, too.
//!
//! All is done twice, the second time after [`SETTLED_AFTER`], for what other processes wrote to an old
//! primary meanwhile. Then the server gets a checkpoint of its own, which keeps the time of the loss: a
//! process that comes later from the old primary has written to it since then.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use futures::future::join_all;
use microblog_chassis::PeriodicJob;
use microblog_domain::Partition;
use tokio::time::Instant;

use crate::{
    author_posts::PostLists,
    error::Error,
    store::{Checkpoint, ServerState, Store},
};

/// The period of comparisons.
const COMPARE_PERIOD: Duration = Duration::from_secs(1);

/// How much the clocks of Redis servers may differ.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(60);

/// How long other processes may write to an old primary after the new one was found, unless they live
/// to see the new one. Sentinels and clusters settle within seconds.
const SETTLED_AFTER: Duration = Duration::from_secs(30);

/// How often a loss is repaired.
const REPAIRS: u8 = 2;

/// Finds failovers and repairs what they have lost.
pub(crate) struct FailoverRepair {
    store: Store,
    /// Without it, posts are not delivered again.
    posts: Option<PostLists>,
    /// By the first partition of each, now or earlier.
    servers: BTreeMap<Partition, Server>,
}

/// What this process knows of the Redis server of some partitions.
#[derive(Debug, Default)]
struct Server {
    /// The id and the time of its last checkpoint.
    checked: Option<(String, SystemTime)>,
    loss: Option<Loss>,
}

/// Writes that a server lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Loss {
    server_id: String,
    /// It has older writes.
    since: SystemTime,
    found_at: Instant,
    /// How often the posts were delivered again, and home timelines marked as stale.
    redelivered: u8,
    marked: u8,
}

impl FailoverRepair {
    pub(crate) fn new(store: Store, posts: Option<PostLists>) -> Self {
        Self { store, posts, servers: BTreeMap::new() }
    }

    /// Compares the servers with their checkpoints every second; never returns.
    pub(crate) async fn run(mut self) {
        let mut job = PeriodicJob::new("comparing the redis servers", COMPARE_PERIOD);
        loop {
            job.tick().await;
            let compared = self.compare().await;
            job.record(self.repair().await.and(compared));
        }
    }

    async fn compare(&mut self) -> Result<(), Error> {
        let partitions = self.store.partitions_of_servers().await?;
        let states = partitions.iter().map(|&partition| {
            let repaired = self.servers.get(&partition).and_then(Server::repaired);
            self.store.server_state(partition, repaired)
        });
        let states = join_all(states).await;
        let is_empty = |state: &ServerState| state.checkpoint.is_none();
        // Without any data, nothing is lost.
        let is_new = self.servers.is_empty()
            && states.iter().all(|state| state.as_ref().is_ok_and(is_empty));
        // A server that was known by another partition is still the same.
        let known = self.servers.values().filter_map(|server| server.checked.as_ref());
        let known: BTreeSet<String> = known.map(|(id, _)| id.clone()).collect();
        let mut outcome = Ok(());
        for (partition, state) in partitions.into_iter().zip(states) {
            match state {
                Ok(state) => {
                    let lacks_nothing = is_new || known.contains(&state.id);
                    let server = self.servers.entry(partition).or_default();
                    server.compare(state, lacks_nothing, SystemTime::now(), Instant::now());
                }
                Err(error) => outcome = Err(error.into()),
            }
        }
        outcome
    }

    // Each of both steps, as far as it is due.
    async fn repair(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        let redeliveries = self.losses().filter(|loss| loss.redelivered < loss.due(now));
        let mut redelivered = Ok(());
        if let Some(since) = redeliveries.map(|loss| loss.since).min() {
            if let Some(posts) = &self.posts {
                let since = since.checked_sub(CLOCK_TOLERANCE).unwrap_or(since);
                redelivered = posts.redeliver(since).await;
            }
            if redelivered.is_ok() {
                self.losses()
                    .for_each(|loss| loss.redelivered = loss.redelivered.max(loss.due(now)));
            }
        }
        if self.losses().any(|loss| loss.marked < loss.due(now)) {
            // Builds that have begun are marked the second time.
            self.store.record_unpushed(Duration::ZERO).await?;
            self.losses().for_each(|loss| loss.marked = loss.marked.max(loss.due(now)));
        }
        redelivered
    }

    fn losses(&mut self) -> impl Iterator<Item = &mut Loss> {
        self.servers.values_mut().filter_map(|server| server.loss.as_mut())
    }
}

impl Server {
    /// Compares the server with its checkpoint.
    fn compare(&mut self, state: ServerState, lacks_nothing: bool, now: SystemTime, at: Instant) {
        let ServerState { id, checkpoint } = state;
        let own = self.checked.as_ref();
        let unrepaired = self.loss.as_ref().filter(|loss| !loss.is_repaired());
        let is_repaired = self.repaired().is_some_and(|(repaired, _)| repaired == id);
        let since = match checkpoint {
            // Nothing, or this process itself, wrote to another server until then.
            Some(checkpoint) if checkpoint.id == id => {
                let is_same = own.is_none_or(|(own, _)| *own == id);
                if (is_same && unrepaired.is_none()) || is_repaired {
                    *self = Self { checked: Some((id, checkpoint.time)), loss: None };
                    return;
                }
                Some(checkpoint.lacks_since)
            }
            Some(Checkpoint { time, .. }) => Some(time),
            None => None,
        };
        if self.loss.as_ref().is_some_and(|loss| loss.server_id == id) {
            return;
        }
        let since = [since, own.map(|(_, time)| *time), unrepaired.map(|loss| loss.since)];
        let since = since.into_iter().flatten().min().unwrap_or(now);
        let done = if lacks_nothing { REPAIRS } else { 0 };
        if !lacks_nothing {
            let age_ms = now.duration_since(since).unwrap_or_default().as_millis() as u64;
            tracing::info!(age_ms, "redis may lack writes; posts will be delivered again");
        }
        self.loss =
            Some(Loss { server_id: id, since, found_at: at, redelivered: done, marked: done });
    }

    /// Returns the server's id, and since when it lacked writes, if a new checkpoint may begin.
    fn repaired(&self) -> Option<(&str, SystemTime)> {
        let loss = self.loss.as_ref().filter(|loss| loss.is_repaired())?;
        Some((&loss.server_id, loss.since))
    }
}

impl Loss {
    /// Returns how often it is to be repaired until now.
    fn due(&self, now: Instant) -> u8 {
        if now >= self.found_at + SETTLED_AFTER { REPAIRS } else { 1 }
    }

    fn is_repaired(&self) -> bool {
        self.redelivered.min(self.marked) >= REPAIRS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    fn state(id: &str, checkpoint: Option<(&str, u64, u64)>) -> ServerState {
        let checkpoint = checkpoint.map(|(id, second, since)| Checkpoint {
            id: id.to_owned(),
            time: time(second),
            lacks_since: time(since),
        });
        ServerState { id: id.to_owned(), checkpoint }
    }

    /// Returns a server with the id `a` and a checkpoint at ten.
    fn server() -> Server {
        let mut server = Server::default();
        server.compare(state("a", Some(("a", 10, 0))), false, time(10), Instant::now());
        assert_eq!(server.loss, None);
        server
    }

    fn since(server: &Server) -> Option<SystemTime> {
        server.loss.as_ref().map(|loss| loss.since)
    }

    fn repair(server: &mut Server, now: Instant) {
        let loss = server.loss.as_mut().unwrap();
        (loss.redelivered, loss.marked) = (loss.due(now), loss.due(now));
    }

    #[test]
    fn another_server_lacks_what_came_after_the_checkpoint() {
        let mut server = server();
        let begin = Instant::now();
        server.compare(state("b", Some(("a", 8, 0))), false, time(12), begin);
        assert_eq!(since(&server), Some(time(8)));
        repair(&mut server, begin);
        server.compare(state("b", Some(("a", 8, 0))), false, time(13), begin);
        assert_eq!(server.repaired(), None);
        // Once more, for processes that wrote to the old one.
        repair(&mut server, begin + SETTLED_AFTER);
        assert_eq!(server.repaired(), Some(("b", time(8))));
        server.compare(state("b", Some(("b", 50, 8))), false, time(50), begin);
        assert_eq!((server.loss, server.checked), (None, Some(("b".to_owned(), time(50)))));
    }

    #[test]
    fn a_process_that_comes_later_has_written_to_the_old_server_until_then() {
        let mut server = server();
        server.compare(state("a", Some(("a", 600, 0))), false, time(600), Instant::now());
        // Another process began its checkpoint long ago.
        server.compare(state("b", Some(("b", 601, 12))), false, time(601), Instant::now());
        assert_eq!(since(&server), Some(time(12)));
        // A process that starts now has written to none.
        let mut started = Server::default();
        started.compare(state("b", Some(("b", 601, 12))), false, time(601), Instant::now());
        assert_eq!(started.loss, None);
    }

    #[test]
    fn a_second_failover_during_a_repair_is_another_loss() {
        let mut server = server();
        let begin = Instant::now();
        server.compare(state("b", Some(("a", 9, 0))), false, time(12), begin);
        repair(&mut server, begin);
        server.compare(state("c", Some(("a", 10, 0))), false, time(14), begin);
        assert_eq!(since(&server), Some(time(9)));
        assert_eq!(server.loss.as_ref().map(|loss| loss.redelivered), Some(0));
    }

    #[test]
    fn a_server_without_a_checkpoint_lacks_what_this_process_wrote() {
        let mut known = server();
        known.compare(state("b", None), false, time(20), Instant::now());
        assert_eq!(since(&known), Some(time(10)));
        let mut unknown = Server::default();
        unknown.compare(state("b", None), false, time(20), Instant::now());
        assert_eq!(since(&unknown), Some(time(20)));
    }

    #[test]
    fn a_server_that_is_known_by_another_partition_lacks_nothing() {
        let mut server = server();
        server.compare(state("b", Some(("a", 10, 0))), true, time(20), Instant::now());
        assert_eq!(server.repaired(), Some(("b", time(10))));
    }
}
