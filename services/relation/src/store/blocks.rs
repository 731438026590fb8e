//! The steps of a block, and mutes.

use microblog_domain::UserId;
use microblog_keyspace::{Call, Error};

use super::{Store, Waiting, outcome, version};
use crate::{
    graph::{Change, Edge, Outcome},
    keys,
};

impl Store {
    /// Makes a user block a target and follow it no more: the truth alone.
    ///
    /// Returns the version of the block, and of the end of the follow if the target's side may
    /// not know that.
    pub async fn block(&self, edge: Edge) -> Result<(Outcome, u64, Option<u64>), Error> {
        let (user, partition) = (edge.from, edge.from.partition());
        let call = Call::new("relation_block")
            .key(keys::clock(partition))
            .key(keys::pending(partition))
            .key(keys::forgotten(partition))
            .key(keys::users(partition))
            .key(keys::blocks(user))
            .key(keys::following(user))
            .key(keys::following_ids(user))
            .key(keys::mutual(user))
            .arg(partition.number())
            .arg(user.get())
            .arg(edge.to.get())
            .arg(self.blocks_limit);
        let (number, blocked_at, ended_at): (i64, i64, i64) = self.keyspace.call(call).await?;
        let ended_at = Some(version(ended_at)?).filter(|&version| version > 0);
        Ok((outcome(number)?, version(blocked_at)?, ended_at))
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
            .arg(partition.number())
            .arg(user.get())
            .arg(edge.to.get())
            .arg(u8::from(always));
        let (number, ended_at): (i64, i64) = self.keyspace.call(call).await?;
        Ok((outcome(number)?, version(ended_at)?))
    }

    /// Tells the target's side of a block or of its end. A block ends the target's follow of the
    /// blocker, whose truth lies on that side.
    ///
    /// Returns the version of that end, if the blocker's side may not know it.
    pub async fn project_block(&self, change: &Change) -> Result<(Outcome, Option<u64>), Error> {
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
            .key(keys::mutual(target))
            .arg(partition.number())
            .arg(target.get())
            .arg(change.edge.from.get())
            .arg(change.version)
            .arg(u8::from(change.exists));
        let (number, ended_at): (i64, i64) = self.keyspace.call(call).await?;
        let ended_at = Some(version(ended_at)?).filter(|&version| version > 0);
        Ok((outcome(number)?, ended_at))
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
            .arg(partition.number())
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
