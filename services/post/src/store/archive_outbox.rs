//! The archive outbox: changes that the archiver has not written yet.

use std::collections::HashMap;

use microblog_domain::{CommentId, Partition, PostId};
use microblog_keyspace::{Batch, Call, Error, decode, redis::cmd};

use super::Store;
use crate::keys;

/// The member that says that there is an archive. It sorts before all entries.
const ENABLED: &str = "-";

/// An entry of the archive outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutboxEntry {
    /// A post was created.
    PostCreated(PostId),
    /// A post was deleted: a tombstone.
    PostDeleted(PostId),
    /// A comment was created.
    CommentCreated(PostId, CommentId),
    /// A comment was deleted: a tombstone.
    CommentDeleted(PostId, CommentId),
}

impl OutboxEntry {
    /// Returns the post that the entry belongs to.
    pub fn post(self) -> PostId {
        match self {
            Self::PostCreated(id) | Self::PostDeleted(id) => id,
            Self::CommentCreated(post, _) | Self::CommentDeleted(post, _) => post,
        }
    }

    /// Encodes the member of `archive_outbox`, in the functions' format.
    pub(super) fn member(self) -> String {
        match self {
            Self::PostCreated(id) => format!("p{id}"),
            Self::PostDeleted(id) => format!("x{id}"),
            Self::CommentCreated(post, id) => format!("c{post}:{id}"),
            Self::CommentDeleted(post, id) => format!("d{post}:{id}"),
        }
    }

    /// Decodes a member of `archive_outbox`.
    fn parse(member: &str) -> Option<Self> {
        let kind = member.chars().next()?;
        let rest = &member[kind.len_utf8()..];
        let post = |text: &str| PostId::new(text.parse().ok()?);
        let pair = || {
            let (of, id) = rest.split_once(':')?;
            Some((post(of)?, CommentId::new(id.parse().ok()?)?))
        };
        match kind {
            'p' => post(rest).map(Self::PostCreated),
            'x' => post(rest).map(Self::PostDeleted),
            'c' => pair().map(|(post, id)| Self::CommentCreated(post, id)),
            'd' => pair().map(|(post, id)| Self::CommentDeleted(post, id)),
            _ => None,
        }
    }
}

/// A page of a partition's outbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboxPage {
    /// The entries with their stamps, oldest first.
    pub entries: Vec<(OutboxEntry, u64)>,
    /// Whether the outbox is enabled.
    pub has_archive: bool,
}

impl Store {
    /// The most entries that [`Self::archive_outbox`] returns for a partition.
    pub const OUTBOX_PAGE_MAX: usize = 100;

    /// Enables the outbox of some partitions, for good.
    pub async fn enable_archive_outbox(&self, partitions: &[Partition]) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(partitions.len());
        for &partition in partitions {
            let add = Call::new("post_add_to_set").key(keys::archive_outbox(partition));
            batch.call(partition, add.arg("NX").arg(0).arg(ENABLED));
        }
        self.keyspace.send(batch).await?;
        Ok(())
    }

    /// Returns the first page of the outbox of each of some partitions, in order.
    pub async fn archive_outbox(&self, partitions: &[Partition]) -> Result<Vec<OutboxPage>, Error> {
        let mut batch = Batch::with_capacity(partitions.len());
        for &partition in partitions {
            let mut read = cmd("ZRANGE");
            read.arg(keys::archive_outbox(partition))
                .arg(0)
                .arg(Self::OUTBOX_PAGE_MAX)
                .arg("WITHSCORES");
            batch.query(partition, read);
        }
        let mut pages = Vec::with_capacity(partitions.len());
        for answer in self.keyspace.send(batch).await? {
            let members: Vec<(String, f64)> = decode(answer)?;
            let has_archive = members.first().is_some_and(|(member, _)| member == ENABLED);
            let members = members.into_iter().filter(|(member, _)| member != ENABLED);
            let entry = |(member, stamp): (String, f64)| {
                let entry = OutboxEntry::parse(&member);
                if entry.is_none() {
                    tracing::error!(member, "malformed entry in `archive_outbox`");
                }
                Some((entry?, stamp as u64))
            };
            pages.push(OutboxPage { entries: members.filter_map(entry).collect(), has_archive });
        }
        Ok(pages)
    }

    /// Returns the number of entries in the outboxes of all partitions.
    pub async fn archive_outbox_length(&self) -> Result<u64, Error> {
        let mut batch = Batch::with_capacity(usize::from(Partition::COUNT));
        for partition in Partition::all() {
            batch.query(partition, cmd("ZCARD").arg(keys::archive_outbox(partition)).take());
        }
        let mut count = 0;
        for answer in self.keyspace.send(batch).await? {
            count += decode::<u64>(answer)?.saturating_sub(1);
        }
        Ok(count)
    }

    /// Adds posts to the outbox.
    pub async fn enqueue_posts(&self, ids: &[PostId]) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for id in ids {
            let add = Call::new("post_add_to_set").key(keys::archive_outbox(id.partition()));
            let add = add.arg("NX").arg(id.get()).arg(OutboxEntry::PostCreated(*id).member());
            batch.call(id.partition(), add);
        }
        self.keyspace.send(batch).await?;
        Ok(())
    }

    /// Removes entries that are archived. All commands go out together.
    pub async fn dequeue(&self, entries: &[OutboxEntry]) -> Result<(), Error> {
        let mut members: HashMap<Partition, Vec<String>> = HashMap::new();
        for entry in entries {
            members.entry(entry.post().partition()).or_default().push(entry.member());
        }
        let mut batch = Batch::with_capacity(members.len());
        for (partition, members) in members {
            let mut remove = cmd("ZREM");
            batch.query(partition, remove.arg(keys::archive_outbox(partition)).arg(members).take());
        }
        self.keyspace.send(batch).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outbox_entries_round_trip() {
        let (post, comment) = (PostId::new(7).unwrap(), CommentId::new(9).unwrap());
        for (entry, member) in [
            (OutboxEntry::PostCreated(post), "p7"),
            (OutboxEntry::PostDeleted(post), "x7"),
            (OutboxEntry::CommentCreated(post, comment), "c7:9"),
            (OutboxEntry::CommentDeleted(post, comment), "d7:9"),
        ] {
            assert_eq!(entry.member(), member);
            assert_eq!(OutboxEntry::parse(member), Some(entry));
        }
        for rubbish in ["", "-", "p", "p0", "x-1", "c7", "c7:", "q7", "微"] {
            assert_eq!(OutboxEntry::parse(rubbish), None, "{rubbish}");
        }
    }
}
