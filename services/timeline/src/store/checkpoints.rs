//! Checkpoints of Redis servers.

use std::time::SystemTime;

use microblog_domain::{Partition, Stamp};
use microblog_keyspace::{Call, Error};

use super::{Store, malformed};
use crate::keys;

/// What a Redis server has of the service's writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerState {
    /// Its replication id.
    pub(crate) id: String,
    /// The last checkpoint in its data.
    pub(crate) checkpoint: Option<Checkpoint>,
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The replication id of a server that had all writes until `time`.
    pub(crate) id: String,
    pub(crate) time: SystemTime,
    /// Since when that server lacked writes to earlier ones.
    pub(crate) lacks_since: SystemTime,
}

impl Store {
    /// Returns a partition of each Redis server that has any.
    pub(crate) async fn partitions_of_servers(&self) -> Result<Vec<Partition>, Error> {
        self.keyspace.partitions_of_primaries().await
    }

    /// Returns the state of the server of a partition. Renews the checkpoint if it has the server's id,
    /// and begins a new one if the server has the id that is given; then with since when it lacks
    /// writes.
    pub(crate) async fn server_state(
        &self,
        partition: Partition,
        begin: Option<(&str, SystemTime)>,
    ) -> Result<ServerState, Error> {
        let (id, lacks_since) = begin.unwrap_or(("", SystemTime::UNIX_EPOCH));
        let call = Call::new("tl_checkpoint")
            .key(keys::checkpoint(partition))
            .arg(id)
            .arg(Stamp::first_at(lacks_since, partition).get());
        let (id, known_id, until, since): (String, String, u64, u64) =
            self.keyspace.call(call).await?;
        let time =
            |stamp| Stamp::new(stamp).map(Stamp::time).ok_or_else(|| malformed("checkpoint"));
        let known = Checkpoint { id: known_id, time: time(until)?, lacks_since: time(since)? };
        Ok(ServerState { id, checkpoint: Some(known).filter(|known| !known.id.is_empty()) })
    }
}
