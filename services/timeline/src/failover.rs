//! Failovers of Redis. A new primary may lack writes, and so may a server that was restarted or is an
//! older copy. Two servers may be primaries for a while: what is written to one of them is lost, here
//! at another time than in the post service.
//!
//! Each server has a checkpoint: its replication id, and when it had that id. Every second, all
//! processes renew it. A server that finds the checkpoint of another one has only the writes until
//! then. The posts that were delivered since are delivered again. Home timelines that were built before
//! are rebuilt when they are read, since jobs, pushes and pulled authors may be lost, too.
//!
//! A process also remembers the last server that it has seen: it may have written to that one after
//! another process began a checkpoint of the new one. A process that dies meanwhile cannot do that, so
//! all is repeated once, after [`SETTLED_AFTER`].

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use microblog_chassis::PeriodicJob;
use microblog_domain::Partition;
use tokio::time::Instant;

use crate::{
    author_posts::PostLists,
    error::Error,
    home_cache,
    store::{Checkpoint, Store},
};

/// The period of comparisons.
const COMPARE_PERIOD: Duration = Duration::from_secs(1);

/// How much the clocks of Redis servers may differ.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(60);

/// How long processes may write to an old primary after the new one was found. Sentinels and clusters
/// settle within seconds.
const SETTLED_AFTER: Duration = Duration::from_secs(30);

/// Finds failovers and repairs what they have lost.
pub(crate) struct FailoverRepair {
    store: Store,
    /// Without it, posts are not delivered again.
    posts: Option<PostLists>,
    /// By the first partition of each.
    servers: BTreeMap<Partition, Server>,
}

/// What this process knows of the Redis server of some partitions.
#[derive(Debug, Default)]
struct Server {
    /// The last checkpoint that it had.
    checked: Option<(String, SystemTime)>,
    loss: Option<Loss>,
    /// The id with which a new checkpoint may begin.
    accepted_id: Option<String>,
}

/// Writes that a server lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Loss {
    server_id: String,
    /// Older writes are not lost.
    since: SystemTime,
    found_at: Instant,
    is_repaired: bool,
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
            job.record(self.compare().await);
        }
    }

    // Repairs what is due.
    async fn compare(&mut self) -> Result<(), Error> {
        let partitions = self.store.partitions_of_servers().await?;
        let accepted = |&at: &Partition| {
            (at, self.servers.get(&at).and_then(|server| server.accepted_id.clone()))
        };
        let servers: Vec<_> = partitions.iter().map(accepted).collect();
        let checkpoints = self.store.checkpoints(&servers).await?;
        // Without any data, nothing is lost.
        let is_new = self.servers.is_empty() && checkpoints.iter().all(|one| one.checked.is_none());
        for (&partition, checkpoint) in partitions.iter().zip(checkpoints) {
            let server = self.servers.entry(partition).or_default();
            if is_new {
                server.accepted_id = Some(checkpoint.server_id);
            } else {
                server.compare(checkpoint, SystemTime::now(), Instant::now());
            }
        }
        let mut due: Vec<_> = self
            .servers
            .values_mut()
            .filter(|server| server.is_repair_due(Instant::now()))
            .collect();
        let losses = due.iter().filter_map(|server| server.loss.as_ref());
        if let Some(since) = losses.map(|loss| loss.since).min() {
            if let Some(posts) = &self.posts {
                posts.redeliver(since.checked_sub(CLOCK_TOLERANCE).unwrap_or(since)).await?;
            }
            self.store.record_unpushed(home_cache::BUILD_MAX).await?;
        }
        due.iter_mut().for_each(|server| server.repaired());
        Ok(())
    }
}

impl Server {
    /// Compares the server with its checkpoint.
    fn compare(&mut self, checkpoint: Checkpoint, now: SystemTime, at: Instant) {
        let Checkpoint { server_id, checked } = checkpoint;
        let is_checked = checked.as_ref().is_some_and(|(id, _)| *id == server_id);
        // Its own writes may have gone to another server until then.
        let is_same = self.checked.as_ref().is_none_or(|(id, _)| *id == server_id);
        if is_checked && (is_same || self.accepted_id.as_ref() == Some(&server_id)) {
            *self = Self { checked, ..Self::default() };
            return;
        }
        if self.loss.as_ref().is_some_and(|loss| loss.server_id == server_id) {
            return;
        }
        let of_another = checked.filter(|_| !is_checked).map(|(_, time)| time);
        let own = self.checked.as_ref().map(|(_, time)| *time);
        let unrepaired = self.loss.as_ref().map(|loss| loss.since);
        let since = [of_another, own, unrepaired].into_iter().flatten().min().unwrap_or(now);
        let age_ms = now.duration_since(since).unwrap_or_default().as_millis() as u64;
        tracing::warn!(age_ms, "redis may lack writes; posts will be delivered again");
        self.loss = Some(Loss { server_id, since, found_at: at, is_repaired: false });
        self.accepted_id = None;
    }

    /// Returns whether a loss is to be repaired for the first time, or for the second.
    fn is_repair_due(&self, now: Instant) -> bool {
        let is_due = |loss: &Loss| !loss.is_repaired || now >= loss.found_at + SETTLED_AFTER;
        self.accepted_id.is_none() && self.loss.as_ref().is_some_and(is_due)
    }

    /// Notes that a loss was repaired. After the second time, the server gets a checkpoint.
    fn repaired(&mut self) {
        if let Some(loss) = &mut self.loss {
            self.accepted_id = loss.is_repaired.then(|| loss.server_id.clone());
            loss.is_repaired = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    fn checkpoint(server_id: &str, checked: Option<(&str, u64)>) -> Checkpoint {
        let checked = checked.map(|(id, second)| (id.to_owned(), time(second)));
        Checkpoint { server_id: server_id.to_owned(), checked }
    }

    fn server() -> Server {
        let mut server = Server::default();
        server.compare(checkpoint("a", Some(("a", 10))), time(10), Instant::now());
        assert_eq!(server.loss, None);
        server
    }

    fn since(server: &Server) -> Option<SystemTime> {
        server.loss.as_ref().map(|loss| loss.since)
    }

    #[test]
    fn another_server_lacks_what_came_after_the_checkpoint() {
        let mut server = server();
        let begin = Instant::now();
        server.compare(checkpoint("b", Some(("a", 8))), time(12), begin);
        assert_eq!(since(&server), Some(time(8)));
        assert!(server.is_repair_due(begin));
        server.repaired();
        assert!(!server.is_repair_due(begin));
        assert_eq!(server.accepted_id, None);
        // Once more, for processes that wrote to the old one.
        assert!(server.is_repair_due(begin + SETTLED_AFTER));
        server.repaired();
        assert_eq!(server.accepted_id.as_deref(), Some("b"));
        assert!(!server.is_repair_due(begin + SETTLED_AFTER));
        server.compare(checkpoint("b", Some(("b", 50))), time(50), begin);
        assert_eq!((server.loss, server.checked), (None, Some(("b".to_owned(), time(50)))));
    }

    #[test]
    fn own_writes_are_repaired_although_another_process_has_begun_a_checkpoint() {
        let mut server = server();
        server.compare(checkpoint("b", Some(("b", 40))), time(41), Instant::now());
        assert_eq!(since(&server), Some(time(10)));
    }

    #[test]
    fn a_second_failover_during_a_repair_is_another_loss() {
        let mut server = server();
        let begin = Instant::now();
        server.compare(checkpoint("b", Some(("a", 10))), time(12), begin);
        server.repaired();
        server.repaired();
        server.compare(checkpoint("c", Some(("a", 9))), time(60), begin);
        assert_eq!(since(&server), Some(time(9)));
        assert!(server.is_repair_due(begin));
    }

    #[test]
    fn a_server_without_a_checkpoint_lacks_what_this_process_wrote() {
        let mut known = server();
        known.compare(checkpoint("b", None), time(20), Instant::now());
        assert_eq!(since(&known), Some(time(10)));
        let mut unknown = Server::default();
        unknown.compare(checkpoint("b", None), time(20), Instant::now());
        assert_eq!(since(&unknown), Some(time(20)));
    }
}
