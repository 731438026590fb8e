//! Writes of recorded data to Redis, where it has lost them.

use microblog_domain::{Partition, UserId};
use microblog_keyspace::{Batch, Call, Error, Recovery, decode, redis::cmd};

use super::{CHUNK, OutboxEntry, Store, follows::with_targets};
use crate::{
    graph::{Change, List},
    keys,
};

impl Store {
    /// Advances a partition's clock to a stamp that was issued.
    pub(crate) async fn raise_clock(&self, partition: Partition, stamp: u64) -> Result<(), Error> {
        let call = Call::new("relation_raise_clock").key(keys::clock(partition)).arg(stamp);
        self.keyspace.call(call).await
    }

    /// Restores deleted accounts, by the stamps of their deletion. All are sent together.
    pub(crate) async fn restore_deletions(&self, deletions: &[(UserId, u64)]) -> Result<(), Error> {
        let call = |&(user, since): &(UserId, u64)| {
            let partition = user.partition();
            let call = Call::new("relation_restore_deletion")
                .key(keys::forgotten(partition))
                .key(keys::forgetting(partition))
                .arg(user.get())
                .arg(since);
            (partition, call)
        };
        let answers = self.call_in_batches(deletions, |_| 1, call).await?;
        answers.into_iter().try_for_each(|answer| decode::<u64>(answer).map(drop))
    }

    /// Writes source edges of a partition where Redis has older ones or none, and adds them to the
    /// outbox. Each edge once, ordered by account. Returns those that were written.
    pub(crate) async fn restore(
        &self,
        recovery: Recovery,
        list: List,
        changes: &[Change],
    ) -> Result<Vec<Change>, Error> {
        let same_user = |a: &Change, b: &Change| a.edge.from == b.edge.from;
        let chunks: Vec<&[Change]> =
            changes.chunk_by(same_user).flat_map(|all| all.chunks(CHUNK)).collect();
        let partition = recovery.partition;
        let call = |chunk: &&[Change]| (partition, restore_call(recovery, list, chunk));
        let answers = self.call_in_batches(&chunks, |chunk| chunk.len(), call).await?;
        let mut written = Vec::new();
        for (chunk, answer) in chunks.into_iter().zip(answers) {
            let numbers: Vec<u8> = decode(answer)?;
            let changes = chunk.iter().zip(numbers).filter(|(_, is_written)| *is_written == 1);
            written.extend(changes.map(|(change, _)| *change));
        }
        Ok(written)
    }

    /// Writes the inverse sides of blocks. Adds blocks and ends of blocks to the outbox: their sagas
    /// are completed once more.
    pub(crate) async fn restore_blocked(
        &self,
        recovery: Recovery,
        changes: &[Change],
    ) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(2 * changes.len());
        for change in changes {
            let (user, target) = (change.edge.from, change.edge.to);
            if change.exists {
                let call = Call::new("relation_restore_blocked")
                    .recovery(recovery, keys::journal(recovery.partition))
                    .key(keys::blocked_by(target))
                    .key(keys::unblocked(target))
                    .arg(user.get())
                    .arg(change.version);
                batch.call(recovery.partition, call);
            }
            let mut add = cmd("ZADD");
            add.arg(keys::pending(user.partition())).arg("NX").arg(change.version);
            batch.query(user.partition(), add.arg(OutboxEntry::Block(change.edge).member()).take());
        }
        let answers = self.keyspace.send(batch).await?;
        answers.into_iter().try_for_each(|answer| decode::<u64>(answer).map(drop))
    }

    /// Writes inverse edges of a partition where Redis has older ones or none.
    pub(crate) async fn restore_inverse(
        &self,
        recovery: Recovery,
        mut changes: Vec<Change>,
    ) -> Result<(), Error> {
        changes.sort_by_key(|change| change.edge.to);
        let chunks: Vec<&[Change]> = changes.chunks(CHUNK).collect();
        let Recovery { partition, .. } = recovery;
        let call = |chunk: &&[Change]| {
            let call = Call::new("relation_restore_inverse");
            let call = call.recovery(recovery, keys::journal(partition));
            (partition, with_targets(call, partition, chunk))
        };
        let answers = self.call_in_batches(&chunks, |chunk| chunk.len(), call).await?;
        answers.into_iter().try_for_each(|answer| decode::<(Vec<i64>, Vec<i64>)>(answer).map(drop))
    }
}

// Returns the call for edges of one account.
fn restore_call(recovery: Recovery, list: List, changes: &[Change]) -> Call {
    let (user, partition) = (changes[0].edge.from, recovery.partition);
    let call = Call::new("relation_restore")
        .recovery(recovery, keys::journal(partition))
        .key(keys::pending(partition))
        .key(keys::users(partition))
        .key(keys::list(list, user));
    let (call, kind) = match list {
        List::Following => {
            let call = call
                .key(keys::following_ids(user))
                .key(keys::followers(user))
                .key(keys::follower_ids(user))
                .key(keys::mutual(user));
            (call, "follow")
        }
        List::Blocks => (call, "block"),
        _ => (call, ""),
    };
    changes.iter().fold(call.arg(kind).arg(user.get()), |call, change| {
        call.arg(change.edge.to.get()).arg(change.version).arg(u8::from(change.exists))
    })
}
