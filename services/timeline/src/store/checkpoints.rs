//! Checkpoints of Redis servers.

use std::time::SystemTime;

use microblog_domain::{Partition, Stamp};
use microblog_keyspace::{Batch, Call, Error, decode};

use super::{Store, malformed};
use crate::keys;

/// What a server has of the service's writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The server's replication id.
    pub(crate) server_id: String,
    /// The id and the time of the checkpoint: the server has all that a server of this id was written
    /// until then. `None` if there is none.
    pub(crate) checked: Option<(String, SystemTime)>,
}

impl Store {
    /// Returns a partition of each Redis server that has any.
    pub(crate) async fn partitions_of_servers(&self) -> Result<Vec<Partition>, Error> {
        self.keyspace.partitions_of_primaries().await
    }

    /// Renews the checkpoints of the servers of partitions that have the ids of the last ones, or may
    /// begin new ones with the ids that are given. Returns the checkpoints.
    pub(crate) async fn checkpoints(
        &self,
        servers: &[(Partition, Option<String>)],
    ) -> Result<Vec<Checkpoint>, Error> {
        let mut batch = Batch::with_capacity(servers.len());
        for (partition, accepted_id) in servers {
            let call = Call::new("tl_checkpoint").key(keys::checkpoint(*partition));
            batch.call(*partition, call.arg(accepted_id.as_deref().unwrap_or_default()));
        }
        let checkpoint = |reply| {
            let (server_id, id, ms): (String, String, u64) = decode(reply)?;
            let time = Stamp::new(ms << 12).ok_or_else(|| malformed("checkpoint"))?.time();
            Ok(Checkpoint { server_id, checked: (!id.is_empty()).then_some((id, time)) })
        };
        self.keyspace.send(batch).await?.into_iter().map(checkpoint).collect()
    }
}
