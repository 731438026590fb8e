//! Reads that only scans and checks need.

use microblog_domain::{Partition, PostId, Repairs, UserId};
use microblog_keyspace::{
    Batch, Error, decode,
    redis::{Cmd, cmd},
};

use super::{client::Store, decode::user};
use crate::{
    keys,
    post::{Counts, ListLengths},
};

impl Store {
    /// Returns some of a partition's authors, and the next cursor; 0 is both the beginning and the
    /// end. An author may occur twice. Up to 100,000 authors, which Redis stores as one array, come
    /// at once, within milliseconds.
    pub async fn authors(
        &self,
        partition: Partition,
        cursor: u64,
    ) -> Result<(u64, Vec<UserId>), Error> {
        let mut command = cmd("SSCAN");
        command.arg(keys::authors(partition)).arg(cursor).arg("COUNT").arg(100);
        let (cursor, ids): (u64, Vec<u64>) = self.keyspace.query(command).await?;
        Ok((cursor, ids.into_iter().map(user).collect::<Result<_, _>>()?))
    }

    /// Returns the lengths of a partition's backlogs: pending reposts, undelivered posts, accounts
    /// that are being erased, and the archive outbox.
    pub async fn backlogs(&self, partition: Partition) -> Result<[u64; 4], Error> {
        let keys = [keys::pending(partition), keys::outbox(partition), keys::forgetting(partition)];
        let mut batch = Batch::new();
        for key in keys {
            batch.query(partition, length("ZCARD", key));
        }
        batch.query(partition, length("ZCARD", keys::unarchived(partition)));
        let mut answers = self.keyspace.send(batch).await?.into_iter();
        let mut next = || answers.next().map_or(Ok(0), decode::<u64>);
        let [pending, undelivered, forgetting, unarchived] = [next()?, next()?, next()?, next()?];
        // Without the member that enables the outbox.
        Ok([pending, undelivered, forgetting, unarchived.saturating_sub(1)])
    }

    /// Measures how far the clocks of the partitions are ahead of this process's. One batch.
    pub async fn measure_clocks(&self) -> Result<(), Error> {
        self.keyspace.measure_clocks(keys::clock).await
    }

    /// Returns the violation of a partition's clock.
    pub async fn clock_violation(&self, at: Partition) -> Result<Option<String>, Error> {
        self.keyspace.clock_violation(at, keys::clock).await
    }

    /// Sets back all clocks that are too far ahead to issue stamps. Returns the repairs.
    pub async fn repair_clocks(&self) -> Result<Repairs, Error> {
        self.keyspace.repair_clocks("post_repair_clock", keys::clock).await
    }

    /// Returns the lengths of the lists of posts.
    pub async fn list_lengths(&self, ids: &[PostId]) -> Result<Vec<ListLengths>, Error> {
        let mut batch = Batch::with_capacity(4 * ids.len());
        for &id in ids {
            batch.query(id.partition(), length("ZCARD", keys::likes(id)));
            batch.query(id.partition(), length("ZCARD", keys::comments(id)));
            batch.query(id.partition(), length("ZCARD", keys::reposts(id)));
            batch.query(id.partition(), length("HLEN", keys::comment_bodies(id)));
        }
        let mut answers = self.keyspace.send(batch).await?.into_iter();
        let mut next = || answers.next().map_or(Ok(0), decode);
        ids.iter()
            .map(|_| {
                let counts = Counts { likes: next()?, comments: next()?, reposts: next()? };
                Ok(ListLengths { counts, comment_bodies: next()? })
            })
            .collect()
    }

    /// Returns whether each repost is on the list of the post it is paired with.
    pub async fn are_listed(&self, reposts: &[(PostId, PostId)]) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(reposts.len());
        for &(repost, target) in reposts {
            let mut command = cmd("ZSCORE");
            command.arg(keys::reposts(target)).arg(repost.get());
            batch.query(target.partition(), command);
        }
        let is_listed = |answer| Ok(decode::<Option<f64>>(answer)?.is_some());
        self.keyspace.send(batch).await?.into_iter().map(is_listed).collect()
    }
}

fn length(command: &str, key: String) -> Cmd {
    cmd(command).arg(key).take()
}
