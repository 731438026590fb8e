//! Data of background jobs: the outbox, account deletions, and the index of users for `Verify`.

use std::collections::BTreeSet;

use microblog_domain::{Partition, Repairs, UserId};
use microblog_keyspace::{
    AccountDeletions, Batch, Call, Error, Outbox, decode,
    redis::{Cmd, cmd},
};

use super::{CHUNK, Store, user};
use crate::{
    graph::{Change, Edge, List},
    keys,
};

/// An entry of the outbox (`pending`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutboxEntry {
    /// A change of a follow.
    Follow(Edge),
    /// A change of a block.
    Block(Edge),
}

impl OutboxEntry {
    fn parse(member: &str) -> Option<Self> {
        let (kind, ids) = member.split_once(':')?;
        let (from, to) = ids.split_once('>')?;
        let id = |text: &str| UserId::new(text.parse().ok()?);
        let edge = Edge { from: id(from)?, to: id(to)? };
        match kind {
            "follow" => Some(Self::Follow(edge)),
            "block" => Some(Self::Block(edge)),
            _ => None,
        }
    }

    /// Returns the member of `pending`, as the Redis functions write it.
    pub(super) fn member(self) -> String {
        match self {
            Self::Follow(Edge { from, to }) => format!("follow:{from}>{to}"),
            Self::Block(Edge { from, to }) => format!("block:{from}>{to}"),
        }
    }

    /// Returns the edge.
    pub const fn edge(self) -> Edge {
        match self {
            Self::Follow(edge) | Self::Block(edge) => edge,
        }
    }
}

const OUTBOX: Outbox<OutboxEntry> = Outbox { key: keys::pending, parse: OutboxEntry::parse };

const DELETIONS: AccountDeletions = AccountDeletions {
    forget: "relation_forget",
    finish: "relation_finish_forgetting",
    clock: keys::clock,
    journal: keys::journal,
    accounts: keys::users,
    forgotten: keys::forgotten,
    forgetting: keys::forgetting,
};

impl Store {
    /// Returns the number of entries of the longest journal of some partitions. Recorded entries are
    /// removed from it, but for some hundred.
    pub async fn longest_journal(&self, partitions: &BTreeSet<Partition>) -> Result<u64, Error> {
        let mut batch = Batch::with_capacity(partitions.len());
        for &partition in partitions {
            batch.query(partition, cmd("XLEN").arg(keys::journal(partition)).take());
        }
        let mut lengths = self.keyspace.send(batch).await?.into_iter().map(decode::<u64>);
        lengths.try_fold(0, |longest, length| Ok(longest.max(length?)))
    }

    /// Returns a page of the outbox of each of some partitions, from a rank on, with the versions of
    /// the changes. `None` stands for a malformed entry.
    pub async fn outbox_page(
        &self,
        pages_from: &[(Partition, usize)],
    ) -> Result<Vec<Vec<Option<(OutboxEntry, u64)>>>, Error> {
        OUTBOX.pages(&self.keyspace, pages_from).await
    }

    /// Removes malformed outbox entries and returns them.
    pub async fn discard_malformed(&self, partition: Partition) -> Result<Vec<String>, Error> {
        OUTBOX.discard_malformed(&self.keyspace, partition).await
    }

    /// Returns the current changes of outbox entries from the source side: the edge with its
    /// version if it exists, else its end at the version of the entry.
    pub async fn source_changes(
        &self,
        pending: &[(OutboxEntry, u64)],
    ) -> Result<Vec<Change>, Error> {
        let mut batch = Batch::new();
        for (pending, _) in pending {
            let Edge { from, to } = pending.edge();
            let list = match pending {
                OutboxEntry::Follow(_) => List::Following,
                OutboxEntry::Block(_) => List::Blocks,
            };
            batch.query(from.partition(), score(list, from, to));
        }
        let answers = self.keyspace.send(batch).await?;
        let change = |((pending, version), answer): (&(OutboxEntry, u64), _)| {
            let current: Option<f64> = decode(answer)?;
            let version = current.map_or(*version, |version| version as u64);
            Ok(Change { edge: pending.edge(), version, exists: current.is_some() })
        };
        pending.iter().zip(answers).map(change).collect()
    }

    /// Returns the version of each entry (list, its user, an account); 0 if the account is not on
    /// the list. All are sent together.
    pub async fn entries(&self, entries: &[(List, UserId, UserId)]) -> Result<Vec<u64>, Error> {
        let mut batch = Batch::with_capacity(entries.len());
        for &(list, user, account) in entries {
            batch.query(user.partition(), score(list, user, account));
        }
        let version = |answer| Ok(decode::<Option<f64>>(answer)?.map_or(0, |score| score as u64));
        self.keyspace.send(batch).await?.into_iter().map(version).collect()
    }

    /// Marks an account as deleted.
    pub async fn forget(&self, user: UserId) -> Result<(), Error> {
        DELETIONS.mark(&self.keyspace, user).await
    }

    /// Returns accounts whose deletion is in progress, up to 10 of each partition.
    pub async fn forgetting(&self) -> Result<Vec<UserId>, Error> {
        self.deletions(Partition::all(), 10).await
    }

    /// Returns accounts of one partition whose deletion is in progress, up to 1,000.
    pub async fn forgetting_in(&self, partition: Partition) -> Result<Vec<UserId>, Error> {
        self.deletions([partition], 1_000).await
    }

    async fn deletions(
        &self,
        partitions: impl IntoIterator<Item = Partition>,
        count: usize,
    ) -> Result<Vec<UserId>, Error> {
        let deletions = DELETIONS.in_progress(&self.keyspace, partitions, count).await?;
        Ok(deletions.into_iter().map(|(user, _)| user).collect())
    }

    /// Returns the deleted accounts of a partition, and whether their deletion is complete.
    pub async fn forgotten(&self, partition: Partition) -> Result<Vec<(UserId, bool)>, Error> {
        let (mut deleted, mut cursor) = (Vec::new(), 0);
        loop {
            let (next, users) = self.scan(keys::forgotten(partition), cursor).await?;
            let mut batch = Batch::with_capacity(users.len());
            for user in &users {
                let score = cmd("ZSCORE").arg(keys::forgetting(partition)).arg(user.get()).take();
                batch.query(partition, score);
            }
            for (user, answer) in users.into_iter().zip(self.keyspace.send(batch).await?) {
                deleted.push((user, decode::<Option<f64>>(answer)?.is_none()));
            }
            if next == 0 {
                return Ok(deleted);
            }
            cursor = next;
        }
    }

    /// Completes the deletion of an account whose edges have ended. Returns whether they have.
    pub async fn finish_forgetting(&self, user: UserId) -> Result<bool, Error> {
        let edges = [keys::following, keys::followers, keys::blocks, keys::blocked_by];
        let edges = edges.map(|key| key(user));
        let without_inverse = List::ALL.iter().copied().filter(|list| list.inverse().is_none());
        let mut others: Vec<_> = without_inverse.map(|list| keys::list(list, user)).collect();
        others.extend([keys::lost(user), keys::unblocked(user)]);
        DELETIONS.finish(&self.keyspace, user, &edges, &others).await
    }

    /// Returns some of a partition's users with lists, and the next cursor; 0 is both the start and
    /// the end. May repeat users. An intset of up to 100,000 users is returned at once, which takes
    /// Redis some milliseconds.
    pub async fn users(
        &self,
        partition: Partition,
        cursor: u64,
    ) -> Result<(u64, Vec<UserId>), Error> {
        self.scan(keys::users(partition), cursor).await
    }

    /// Returns some of the id set of a list, and the next cursor, like [`Self::users`].
    pub async fn id_set(
        &self,
        list: List,
        of: UserId,
        cursor: u64,
    ) -> Result<(u64, Vec<UserId>), Error> {
        let Some(key) = keys::id_set(list, of) else { return Ok((0, Vec::new())) };
        self.scan(key, cursor).await
    }

    async fn scan(&self, set: String, cursor: u64) -> Result<(u64, Vec<UserId>), Error> {
        let scan = cmd("SSCAN").arg(set).arg(cursor).arg("COUNT").arg(CHUNK).take();
        let (cursor, ids): (u64, Vec<u64>) = self.keyspace.query(scan).await?;
        Ok((cursor, ids.into_iter().map(user).collect::<Result<_, _>>()?))
    }

    /// Rebuilds a user's id sets and mutuals from the lists of following and followers, for up to
    /// 100 accounts. Returns for each whether something differed.
    pub async fn index(&self, of: UserId, accounts: &[UserId]) -> Result<Vec<bool>, Error> {
        if accounts.is_empty() {
            return Ok(Vec::new());
        }
        let call = Call::new("relation_index")
            .key(keys::following(of))
            .key(keys::following_ids(of))
            .key(keys::followers(of))
            .key(keys::follower_ids(of))
            .key(keys::mutual(of));
        let call = accounts.iter().fold(call, |call, account| call.arg(account.get()));
        self.keyspace.call(call).await
    }

    /// Returns the number of outbox entries and of account deletions in progress, in a partition.
    pub async fn unfinished(&self, partition: Partition) -> Result<(u64, u64), Error> {
        let mut batch = Batch::new();
        for key in [keys::pending(partition), keys::forgetting(partition)] {
            batch.query(partition, cmd("ZCARD").arg(key).take());
        }
        let mut answers = self.keyspace.send(batch).await?.into_iter();
        let mut next = || answers.next().map_or(Ok(0), decode);
        Ok((next()?, next()?))
    }

    /// Measures how far the partitions' clocks are ahead of this process's clock. One batch.
    pub async fn measure_clocks(&self) -> Result<(), Error> {
        self.keyspace.measure_clocks(keys::clock).await
    }

    /// Returns the violation of a partition's clock, if any.
    pub async fn clock_violation(&self, at: Partition) -> Result<Option<String>, Error> {
        self.keyspace.clock_violation(at, keys::clock).await
    }

    /// Sets back all clocks that are too far ahead to issue stamps. Returns the repairs.
    pub async fn repair_clocks(&self) -> Result<Repairs, Error> {
        self.keyspace.repair_clocks("relation_repair_clock", keys::clock).await
    }

    /// Returns the lengths of a user's follow lists and id sets.
    pub async fn sizes(&self, user: UserId) -> Result<Sizes, Error> {
        let commands = [
            ("ZCARD", keys::following(user)),
            ("SCARD", keys::following_ids(user)),
            ("ZCARD", keys::followers(user)),
            ("SCARD", keys::follower_ids(user)),
            ("ZCARD", keys::mutual(user)),
        ];
        let mut batch = Batch::new();
        for (command, key) in commands {
            batch.query(user.partition(), cmd(command).arg(key).take());
        }
        let mut answers = self.keyspace.send(batch).await?.into_iter();
        let mut next = || answers.next().map_or(Ok(0), decode);
        Ok(Sizes {
            following: next()?,
            following_ids: next()?,
            followers: next()?,
            follower_ids: next()?,
            mutuals: next()?,
        })
    }
}

/// The lengths of a user's lists and id sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named like the keys")]
pub struct Sizes {
    pub following: u64,
    pub following_ids: u64,
    pub followers: u64,
    pub follower_ids: u64,
    pub mutuals: u64,
}

fn score(list: List, user: UserId, account: UserId) -> Cmd {
    cmd("ZSCORE").arg(keys::list(list, user)).arg(account.get()).take()
}
