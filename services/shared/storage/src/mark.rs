//! The mark of a primary of the cache: up to which position of the feed its entries are verified.

use microblog_domain::Partition;
use microblog_keyspace::{Batch, Call, Error, Keyspace, decode, key};

use crate::entry::History;

/// A primary, and the mark that it has.
#[derive(Clone, Debug)]
pub(crate) struct Primary {
    /// Its partitions, in order. The key of the mark lies in the first one.
    pub(crate) partitions: Vec<Partition>,
    /// Its own replication id; empty if it is no primary.
    pub(crate) replication_id: String,
    /// The mark; `None` if it has none.
    pub(crate) mark: Option<Mark>,
}

/// A mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The replication id of the server on which it was written.
    pub(crate) replication_id: String,
    /// The history of the database.
    pub(crate) history: History,
    /// The position of the feed.
    pub(crate) position: u64,
    /// The partitions whose entries are verified.
    pub(crate) partitions: PartitionSet,
    /// The age, by the server's clock.
    pub(crate) age_s: i64,
}

impl Primary {
    /// Reads the marks of all primaries. One that does not answer is left out.
    pub(crate) async fn read_all(keyspace: &Keyspace, prefix: &str) -> Result<Vec<Self>, Error> {
        let all = keyspace.partitions_by_primary().await?;
        let read = all.into_iter().map(async |partitions| {
            let call = Call::new("read_mark").key(mark_key(prefix, *partitions.first()?));
            let fields: Vec<Vec<u8>> = keyspace.call(call).await.ok()?;
            Self::new(partitions, fields)
        });
        Ok(futures::future::join_all(read).await.into_iter().flatten().collect())
    }

    fn new(partitions: Vec<Partition>, fields: Vec<Vec<u8>>) -> Option<Self> {
        let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).ok();
        let replication_id = text(fields.first()?)?;
        let mark = match &fields[1..] {
            [id, history, position, partitions, age] => Some(Mark {
                replication_id: text(id)?,
                history: History(text(history)?),
                position: text(position)?.parse().ok()?,
                partitions: PartitionSet(partitions.clone()),
                age_s: text(age)?.parse().ok()?,
            }),
            _ => None,
        };
        Some(Self { partitions, replication_id, mark })
    }

    /// Writes the mark: all partitions are verified up to a position. Returns whether it was written: not
    /// if the server has become another one, or has a later mark.
    pub(crate) async fn write_mark(
        &self,
        keyspace: &Keyspace,
        prefix: &str,
        history: &History,
        position: u64,
    ) -> Result<bool, Error> {
        let Some(&first) = self.partitions.first() else { return Ok(false) };
        let verified = PartitionSet::of(&self.partitions);
        let call = Call::new("mark").key(mark_key(prefix, first)).arg(&self.replication_id);
        let call = call.arg(&history.0).arg(position).arg(verified.0);
        let mut batch = Batch::with_capacity(1);
        batch.call(first, call);
        let reply = keyspace.send(batch).await?.pop().ok_or_else(no_reply)?;
        Ok(decode::<u8>(reply)? == 1)
    }
}

fn no_reply() -> Error {
    Error::Malformed("a call has no reply".into())
}

fn mark_key(prefix: &str, partition: Partition) -> String {
    key(format_args!("{prefix}:{{{partition}}}:mark"))
}

/// A set of partitions, as bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartitionSet(Vec<u8>);

impl PartitionSet {
    /// Returns the set of some partitions.
    pub(crate) fn of(partitions: &[Partition]) -> Self {
        let mut bits = vec![0; usize::from(Partition::COUNT) / 8];
        for partition in partitions {
            let at = usize::from(partition.number());
            bits[at / 8] |= 1 << (at % 8);
        }
        Self(bits)
    }

    /// Returns whether a partition is in the set.
    pub(crate) fn contains(&self, partition: Partition) -> bool {
        let at = usize::from(partition.number());
        self.0.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_its_partitions() {
        let partitions = [0, 7, 8, 1_023].map(Partition::new);
        let set = PartitionSet::of(&partitions);
        assert!(Partition::all().all(|at| set.contains(at) == partitions.contains(&at)));
        assert!(Partition::all().all(|at| !PartitionSet::default().contains(at)));
    }
}
