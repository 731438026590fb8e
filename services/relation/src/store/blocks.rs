//! The steps of a block, and mutes.

use microblog_domain::UserId;
use microblog_keyspace::{Call, Error};

use super::{Store, Waiting, outcome, version};
use crate::{
    graph::{Change, Conflict, Edge, Outcome},
    keys,
};

/// What the blocker's side says of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// What was done.
    pub outcome: Outcome,
    /// The version of the block; 0 if it was refused.
    pub version: u64,
    /// The version of the end of the blocker's follow, if the target's side may not know it.
    pub ended_at: Option<u64>,
    /// Since when that side has the target as a follower; 0 if it has not.
    pub follower_since: u64,
}

/// What the blocked account's side says of a block or of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProjectedBlock {
    /// What was done.
    pub outcome: Outcome,
    /// The version of the end of the blocked account's follow, if the blocker's side may not know it.
    pub ended_at: Option<u64>,
    /// Since when that side has the blocker as a follower; 0 if it has not.
    pub follower_since: u64,
    /// If it was stale: the version that is known.
    pub known: u64,
}

impl Store {
    /// Makes a user block a target and follow it no more: the truth alone.
    pub async fn block(&self, edge: Edge) -> Result<Blocked, Error> {
        self.block_within(edge, self.blocks_limit).await
    }

    /// Does the same where the user blocks the target already: what else belongs to a block. Refused
    /// as beyond the limit where it does not.
    pub async fn block_again(&self, edge: Edge) -> Result<Blocked, Error> {
        self.block_within(edge, 0).await
    }

    async fn block_within(&self, edge: Edge, limit: u32) -> Result<Blocked, Error> {
        let (user, partition) = (edge.from, edge.from.partition());
        let call = Call::new("relation_block")
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
        Ok(Blocked {
            outcome: outcome(numbers.0)?,
            version: version(numbers.1)?,
            ended_at: Some(version(numbers.2)?).filter(|&version| version > 0),
            follower_since: version(numbers.3)?,
        })
    }

    /// Makes a user block a target no more: the truth alone. Returns the version of the end.
    ///
    /// `always` notes an end also of a block that is not there.
    pub async fn unblock(&self, edge: Edge, always: bool) -> Result<(Outcome, u64), Error> {
        let (user, partition) = (edge.from, edge.from.partition());
        let call = Call::new("relation_unblock")
            .key(keys::clock(partition))
            .key(keys::pending(partition))
            .key(keys::blocks(user))
            .issuing(partition)
            .arg(user.get())
            .arg(edge.to.get())
            .arg(u8::from(always));
        let (number, ended_at): (i64, i64) = self.keyspace.call(call).await?;
        Ok((outcome(number)?, version(ended_at)?))
    }

    /// Tells the target's side of a block or of its end. A block ends the target's follow of the
    /// blocker, whose truth lies on that side.
    pub async fn project_block(&self, change: &Change) -> Result<ProjectedBlock, Error> {
        let (target, partition) = (change.edge.to, change.edge.to.partition());
        let call = Call::new("relation_project_block")
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
        Ok(ProjectedBlock {
            outcome: outcome(numbers.0)?,
            ended_at: Some(version(numbers.1)?).filter(|&version| version > 0),
            follower_since: version(numbers.2)?,
            known: version(numbers.3)?,
        })
    }

    /// Gives a block or its end a new version above what both sides know: the truth alone. Returns
    /// the change; `None` if the block has changed since it was seen.
    pub async fn raise_block(&self, conflict: &Conflict) -> Result<Option<Change>, Error> {
        let Conflict { change, known } = *conflict;
        let (user, partition) = (change.edge.from, change.edge.from.partition());
        let call = Call::new("relation_raise_block")
            .key(keys::clock(partition))
            .key(keys::pending(partition))
            .key(keys::blocks(user))
            .issuing(partition)
            .arg(user.get())
            .arg(change.edge.to.get())
            .arg(change.version)
            .arg(u8::from(change.exists))
            .arg(known);
        let raised = version(self.keyspace.call(call).await?)?;
        Ok((raised > 0).then_some(Change { version: raised, ..change }))
    }

    /// Takes a change of a block off the list of those that the other side may not know, unless a
    /// newer one has come in.
    pub async fn confirm_block(&self, change: &Change) -> Result<(), Error> {
        let entry = (Waiting::Block(change.edge), change.version);
        self.confirm_entries([entry].into_iter()).await
    }

    /// Makes a user mute a target.
    pub async fn mute(&self, user: UserId, target: UserId) -> Result<Outcome, Error> {
        let partition = user.partition();
        let call = Call::new("relation_mute")
            .key(keys::clock(partition))
            .key(keys::forgotten(partition))
            .key(keys::users(partition))
            .key(keys::mutes(user))
            .issuing(partition)
            .arg(user.get())
            .arg(target.get())
            .arg(self.blocks_limit);
        outcome(self.keyspace.call(call).await?)
    }

    /// Makes a user mute a target no more.
    pub async fn unmute(&self, user: UserId, target: UserId) -> Result<(), Error> {
        let mut command = microblog_keyspace::redis::cmd("ZREM");
        command.arg(keys::mutes(user)).arg(target.get());
        self.keyspace.query(command).await
    }
}
