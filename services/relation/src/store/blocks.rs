//! The steps of a block.

use microblog_keyspace::{Call, Error};

use super::{OutboxEntry, Store, outcome, version};
use crate::{
    graph::{Change, Conflict, Edge, Outcome},
    keys,
};

/// The result of the source step of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSourceResult {
    /// The outcome.
    pub outcome: Outcome,
    /// The version of the block; 0 if it was rejected.
    pub version: u64,
    /// The version at which the blocker's follow ended, if it is not acknowledged.
    pub ended_at: Option<u64>,
    /// The version at which the blocker's followers list has the target; 0 if it does not.
    pub follower_since: u64,
}

/// The result of the projection of a block or unblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockProjectionResult {
    /// The outcome.
    pub outcome: Outcome,
    /// The version at which the blocked account's follow ended, if it is not acknowledged.
    pub ended_at: Option<u64>,
    /// The version at which the blocked account's followers list has the blocker; 0 if it does not.
    pub follower_since: u64,
    /// For a stale change: the version of the inverse side.
    pub known: u64,
}

impl Store {
    /// The source step of a block, which also ends the user's follow of the target.
    pub async fn block(&self, edge: Edge) -> Result<BlockSourceResult, Error> {
        self.block_within(edge, self.blocks_limit).await
    }

    /// The source step of an existing block. Rejected as beyond the limit if there is no block.
    pub async fn reblock(&self, edge: Edge) -> Result<BlockSourceResult, Error> {
        self.block_within(edge, 0).await
    }

    async fn block_within(&self, edge: Edge, limit: u32) -> Result<BlockSourceResult, Error> {
        let (user, partition) = (edge.from, edge.from.partition());
        let call = Call::new("relation_block")
            .journal(partition, keys::journal(partition))
            .key(keys::clock(partition))
            .key(keys::pending(partition))
            .key(keys::forgotten(partition))
            .key(keys::users(partition))
            .key(keys::blocks(user))
            .key(keys::following(user))
            .key(keys::following_ids(user))
            .key(keys::followers(user))
            .key(keys::follower_ids(user))
            .key(keys::mutual(user))
            .issuing(partition)
            .arg(user.get())
            .arg(edge.to.get())
            .arg(limit);
        let numbers: (i64, i64, i64, i64) = self.keyspace.call(call).await?;
        Ok(BlockSourceResult {
            outcome: outcome(numbers.0)?,
            version: version(numbers.1)?,
            ended_at: Some(version(numbers.2)?).filter(|&version| version > 0),
            follower_since: version(numbers.3)?,
        })
    }

    /// The source step of an unblock. Returns the version of the end.
    ///
    /// With `force`, adds the end to the outbox even if there is no block.
    pub async fn unblock(&self, edge: Edge, force: bool) -> Result<(Outcome, u64), Error> {
        let (user, partition) = (edge.from, edge.from.partition());
        let call = Call::new("relation_unblock")
            .journal(partition, keys::journal(partition))
            .key(keys::clock(partition))
            .key(keys::pending(partition))
            .key(keys::blocks(user))
            .issuing(partition)
            .arg(user.get())
            .arg(edge.to.get())
            .arg(u8::from(force));
        let (number, ended_at): (i64, i64) = self.keyspace.call(call).await?;
        Ok((outcome(number)?, version(ended_at)?))
    }

    /// The projection of a block or unblock. A block also ends the target's follow of the blocker,
    /// whose source edge is in the same partition.
    pub async fn project_block(&self, change: &Change) -> Result<BlockProjectionResult, Error> {
        let (target, partition) = (change.edge.to, change.edge.to.partition());
        let call = Call::new("relation_project_block")
            .journal(partition, keys::journal(partition))
            .key(keys::clock(partition))
            .key(keys::pending(partition))
            .key(keys::forgotten(partition))
            .key(keys::users(partition))
            .key(keys::blocked_by(target))
            .key(keys::unblocked(target))
            .key(keys::following(target))
            .key(keys::following_ids(target))
            .key(keys::followers(target))
            .key(keys::follower_ids(target))
            .key(keys::mutual(target))
            .issuing(partition)
            .arg(target.get())
            .arg(change.edge.from.get())
            .arg(change.version)
            .arg(u8::from(change.exists));
        let numbers: (i64, i64, i64, i64) = self.keyspace.call(call).await?;
        Ok(BlockProjectionResult {
            outcome: outcome(numbers.0)?,
            ended_at: Some(version(numbers.1)?).filter(|&version| version > 0),
            follower_since: version(numbers.2)?,
            known: version(numbers.3)?,
        })
    }

    /// Gives a block or its end a version above both sides: a source step. Returns the change;
    /// `None` if the block has changed since it was read.
    pub async fn bump_block_version(&self, conflict: &Conflict) -> Result<Option<Change>, Error> {
        let Conflict { change, known } = *conflict;
        let (user, partition) = (change.edge.from, change.edge.from.partition());
        let call = Call::new("relation_bump_block_version")
            .journal(partition, keys::journal(partition))
            .key(keys::clock(partition))
            .key(keys::pending(partition))
            .key(keys::blocks(user))
            .issuing(partition)
            .arg(user.get())
            .arg(change.edge.to.get())
            .arg(change.version)
            .arg(u8::from(change.exists))
            .arg(known);
        let bumped = version(self.keyspace.call(call).await?)?;
        Ok((bumped > 0).then_some(Change { version: bumped, ..change }))
    }

    /// Acknowledges a change of a block: removes its outbox entry, unless a newer change replaced
    /// it.
    pub async fn acknowledge_block(&self, change: &Change) -> Result<(), Error> {
        let entry = (OutboxEntry::Block(change.edge), change.version);
        self.acknowledge_entries([entry].into_iter()).await
    }
}
