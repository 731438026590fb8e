//! Data of background jobs: the outbox, account deletions, and the index of users for `Verify`.

use microblog_domain::{Partition, Repairs, UserId};
use microblog_keyspace::{
    Batch, Call, Error, decode,
    redis::{Cmd, cmd},
};

use super::{CHUNK, Store, lists, user};
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

impl Store {
    /// Returns up to 100 outbox entries of each partition, from a rank on, with the versions of the
    /// changes. `None` stands for a malformed entry.
    pub async fn outbox_page(
        &self,
        partitions: &[(Partition, usize)],
    ) -> Result<Vec<Vec<Option<(OutboxEntry, u64)>>>, Error> {
        let mut batch = Batch::new();
        for &(partition, from) in partitions {
            let mut command = cmd("ZRANGE");
            command.arg(keys::pending(partition)).arg(from).arg(from + CHUNK - 1);
            batch.query(partition, command.arg("WITHSCORES").take());
        }
        let answers = self.keyspace.send(batch).await?.into_iter();
        let entries = |answer| -> Result<Vec<_>, Error> {
            let members: Vec<(String, f64)> = decode(answer)?;
            let entry = |(member, version): (String, f64)| {
                let pending = OutboxEntry::parse(&member);
                if pending.is_none() {
                    tracing::error!("malformed outbox entry");
                }
                Some((pending?, version as u64))
            };
            Ok(members.into_iter().map(entry).collect())
        };
        answers.map(entries).collect()
    }

    /// Removes malformed outbox entries and returns them.
    pub async fn discard_malformed(&self, partition: Partition) -> Result<Vec<String>, Error> {
        let (mut discarded, mut from) = (Vec::new(), 0);
        loop {
            let mut read = cmd("ZRANGE");
            read.arg(keys::pending(partition)).arg(from).arg(from + CHUNK - 1);
            let members: Vec<String> = self.keyspace.query(read).await?;
            let is_page = members.len() == CHUNK;
            let malformed: Vec<String> =
                members.into_iter().filter(|member| OutboxEntry::parse(member).is_none()).collect();
            if !malformed.is_empty() {
                let remove = cmd("ZREM").arg(keys::pending(partition)).arg(&malformed).take();
                self.keyspace.query::<u64>(remove).await?;
            }
            from += CHUNK - malformed.len();
            discarded.extend(malformed);
            if !is_page {
                return Ok(discarded);
            }
        }
    }

    /// The page size of [`Self::outbox_page`] per partition.
    pub const OUTBOX_PAGE_MAX: usize = CHUNK;

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
        let partition = user.partition();
        let call = Call::new("relation_forget")
            .key(keys::clock(partition))
            .key(keys::forgotten(partition))
            .key(keys::forgetting(partition))
            .issuing(partition)
            .arg(user.get());
        self.keyspace.call(call).await
    }

    /// Returns accounts whose deletion is in progress, a few of each partition.
    pub async fn forgetting(&self) -> Result<Vec<UserId>, Error> {
        let mut batch = Batch::new();
        for partition in Partition::all() {
            let mut command = cmd("ZRANGE");
            batch.query(partition, command.arg(keys::forgetting(partition)).arg(0).arg(9).take());
        }
        let mut users = Vec::new();
        for answer in self.keyspace.send(batch).await? {
            for id in decode::<Vec<u64>>(answer)? {
                users.push(user(id)?);
            }
        }
        Ok(users)
    }

    /// Returns accounts of one partition whose deletion is in progress, up to 1,000.
    pub async fn forgetting_in(&self, partition: Partition) -> Result<Vec<UserId>, Error> {
        let mut command = cmd("ZRANGE");
        command.arg(keys::forgetting(partition)).arg(0).arg(999);
        let ids: Vec<u64> = self.keyspace.query(command).await?;
        ids.into_iter().map(user).collect()
    }

    /// Completes the deletion of an account whose lists are empty. Returns whether they are.
    pub async fn forgot(&self, user: UserId) -> Result<bool, Error> {
        let partition = user.partition();
        let call = Call::new("relation_forgot")
            .key(keys::forgetting(partition))
            .key(keys::users(partition))
            .key(keys::following(user))
            .key(keys::followers(user))
            .key(keys::blocks(user))
            .key(keys::blocked_by(user))
            .key(keys::mutes(user))
            .key(keys::lost(user))
            .key(keys::unblocked(user))
            .arg(user.get());
        self.keyspace.call(call).await
    }

    /// Returns some of a partition's users with lists, and the next cursor; 0 is both the start and
    /// the end. May repeat users. An intset of up to 100,000 users is returned at once, which takes
    /// Redis some milliseconds.
    pub async fn users(
        &self,
        partition: Partition,
        cursor: u64,
    ) -> Result<(u64, Vec<UserId>), Error> {
        let mut command = cmd("SSCAN");
        command.arg(keys::users(partition)).arg(cursor).arg("COUNT").arg(CHUNK);
        let (cursor, ids): (u64, Vec<u64>) = self.keyspace.query(command).await?;
        Ok((cursor, ids.into_iter().map(user).collect::<Result<_, _>>()?))
    }

    /// Returns some of the id set of a list, and the next cursor, like [`Self::users`].
    pub async fn id_set(
        &self,
        list: List,
        of: UserId,
        cursor: u64,
    ) -> Result<(u64, Vec<UserId>), Error> {
        let Some(key) = lists::id_set(list, of) else { return Ok((0, Vec::new())) };
        let scan = cmd("SSCAN").arg(key).arg(cursor).arg("COUNT").arg(CHUNK).take();
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
    cmd("ZSCORE").arg(lists::key(list, user)).arg(account.get()).take()
}
