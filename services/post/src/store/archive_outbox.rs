//! What the archive may not know.

use std::collections::HashMap;

use microblog_domain::{CommentId, Partition, PostId};
use microblog_keyspace::{Batch, Call, Error, decode, redis::cmd};

use super::Store;
use crate::keys;

/// The member that says that there is an archive. It stands before all others.
const ENABLED: &str = "-";

/// What the archive may not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutboxEntry {
    /// A post was made.
    PostCreated(PostId),
    /// A post ended.
    PostDeleted(PostId),
    /// A comment was made.
    CommentCreated(PostId, CommentId),
    /// A comment ended.
    CommentDeleted(PostId, CommentId),
}

impl OutboxEntry {
    /// Returns the post that it is about.
    pub fn post(self) -> PostId {
        match self {
            Self::PostCreated(id) | Self::PostDeleted(id) => id,
            Self::CommentCreated(post, _) | Self::CommentDeleted(post, _) => post,
        }
    }

    /// Returns the member of `unarchived`, as the functions write it.
    pub(super) fn member(self) -> String {
        match self {
            Self::PostCreated(id) => format!("p{id}"),
            Self::PostDeleted(id) => format!("x{id}"),
            Self::CommentCreated(post, id) => format!("c{post}:{id}"),
            Self::CommentDeleted(post, id) => format!("d{post}:{id}"),
        }
    }

    /// Reads a member of `unarchived`.
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

/// A part of what waits in a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboxPage {
    /// What waits, with its stamp, oldest first.
    pub entries: Vec<(OutboxEntry, u64)>,
    /// Whether the partition is one that has an archive.
    pub has_archive: bool,
}

impl Store {
    /// How many notes [`Self::unarchived`] returns at most for a partition.
    pub const OUTBOX_PAGE_MAX: usize = 100;

    /// From now on, what the archive may not know is noted in these partitions, for good.
    pub async fn enable_archive_outbox(&self, partitions: &[Partition]) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(partitions.len());
        for &partition in partitions {
            let add = Call::new("post_enlist").key(keys::unarchived(partition));
            batch.call(partition, add.arg("NX").arg(0).arg(ENABLED));
        }
        self.keyspace.send(batch).await?;
        Ok(())
    }

    /// Returns up to 100 of what the archive may not know, of each of some partitions, in their
    /// order.
    pub async fn archive_outbox(&self, partitions: &[Partition]) -> Result<Vec<OutboxPage>, Error> {
        let mut batch = Batch::with_capacity(partitions.len());
        for &partition in partitions {
            let mut read = cmd("ZRANGE");
            read.arg(keys::unarchived(partition))
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
                    tracing::error!(member, "what waits in `unarchived` is nothing known");
                }
                Some((entry?, stamp as u64))
            };
            pages.push(OutboxPage { entries: members.filter_map(entry).collect(), has_archive });
        }
        Ok(pages)
    }

    /// Returns how much the archive may not know, in all partitions.
    pub async fn unarchived_count(&self) -> Result<u64, Error> {
        let mut batch = Batch::with_capacity(usize::from(Partition::COUNT));
        for partition in Partition::all() {
            batch.query(partition, cmd("ZCARD").arg(keys::unarchived(partition)).take());
        }
        let mut count = 0;
        for answer in self.keyspace.send(batch).await? {
            count += decode::<u64>(answer)?.saturating_sub(1);
        }
        Ok(count)
    }

    /// Notes that the archive may not know some posts.
    pub async fn enqueue_posts(&self, ids: &[PostId]) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for id in ids {
            let add = Call::new("post_enlist").key(keys::unarchived(id.partition()));
            let add = add.arg("NX").arg(id.get()).arg(OutboxEntry::PostCreated(*id).member());
            batch.call(id.partition(), add);
        }
        self.keyspace.send(batch).await?;
        Ok(())
    }

    /// Strikes out what the archive knows now. All go out together.
    pub async fn dequeue(&self, entries: &[OutboxEntry]) -> Result<(), Error> {
        let mut members: HashMap<Partition, Vec<String>> = HashMap::new();
        for entry in entries {
            members.entry(entry.post().partition()).or_default().push(entry.member());
        }
        let mut batch = Batch::with_capacity(members.len());
        for (partition, members) in members {
            let mut remove = cmd("ZREM");
            batch.query(partition, remove.arg(keys::unarchived(partition)).arg(members).take());
        }
        self.keyspace.send(batch).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written() {
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
