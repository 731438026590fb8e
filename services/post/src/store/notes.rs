//! What the archive may not know.

use std::collections::HashMap;

use microblog_domain::{CommentId, Partition, PostId};
use microblog_keyspace::{Batch, Call, Error, decode, redis::cmd};

use super::Store;
use crate::keys;

/// The member that says that there is an archive. It stands before all others.
const ARCHIVED: &str = "-";

/// What the archive may not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Note {
    /// A post was made.
    Post(PostId),
    /// A post ended.
    PostEnded(PostId),
    /// A comment was made.
    Comment(PostId, CommentId),
    /// A comment ended.
    CommentEnded(PostId, CommentId),
}

impl Note {
    /// Returns the post that it is about.
    pub fn post(self) -> PostId {
        match self {
            Self::Post(id) | Self::PostEnded(id) => id,
            Self::Comment(post, _) | Self::CommentEnded(post, _) => post,
        }
    }

    /// Returns the member of `unarchived`, as the functions write it.
    pub(super) fn member(self) -> String {
        match self {
            Self::Post(id) => format!("p{id}"),
            Self::PostEnded(id) => format!("x{id}"),
            Self::Comment(post, id) => format!("c{post}:{id}"),
            Self::CommentEnded(post, id) => format!("d{post}:{id}"),
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
            'p' => post(rest).map(Self::Post),
            'x' => post(rest).map(Self::PostEnded),
            'c' => pair().map(|(post, id)| Self::Comment(post, id)),
            'd' => pair().map(|(post, id)| Self::CommentEnded(post, id)),
            _ => None,
        }
    }
}

/// A part of what waits in a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// What waits, with its stamp, oldest first.
    pub notes: Vec<(Note, u64)>,
    /// Whether the partition is one that has an archive.
    pub is_archived: bool,
}

impl Store {
    /// How many notes [`Self::unarchived`] returns at most for a partition.
    pub const NOTES_MAX: usize = 100;

    /// From now on, what the archive may not know is noted in these partitions, for good.
    pub async fn begin_archiving(&self, partitions: &[Partition]) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(partitions.len());
        for &partition in partitions {
            let add = Call::new("post_enlist").key(keys::unarchived(partition));
            batch.call(partition, add.arg("NX").arg(0).arg(ARCHIVED));
        }
        self.keyspace.send(batch).await?;
        Ok(())
    }

    /// Returns up to 100 of what the archive may not know, of each of some partitions, in their
    /// order.
    pub async fn unarchived(&self, partitions: &[Partition]) -> Result<Vec<Notes>, Error> {
        let mut batch = Batch::with_capacity(partitions.len());
        for &partition in partitions {
            let mut read = cmd("ZRANGE");
            read.arg(keys::unarchived(partition)).arg(0).arg(Self::NOTES_MAX).arg("WITHSCORES");
            batch.query(partition, read);
        }
        let mut pages = Vec::with_capacity(partitions.len());
        for answer in self.keyspace.send(batch).await? {
            let members: Vec<(String, f64)> = decode(answer)?;
            let is_archived = members.first().is_some_and(|(member, _)| member == ARCHIVED);
            let members = members.into_iter().filter(|(member, _)| member != ARCHIVED);
            let note = |(member, stamp): (String, f64)| {
                let note = Note::parse(&member);
                if note.is_none() {
                    tracing::error!(member, "what waits in `unarchived` is nothing known");
                }
                Some((note?, stamp as u64))
            };
            pages.push(Notes { notes: members.filter_map(note).collect(), is_archived });
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
    pub async fn note(&self, ids: &[PostId]) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for id in ids {
            let add = Call::new("post_enlist").key(keys::unarchived(id.partition()));
            let add = add.arg("NX").arg(id.get()).arg(Note::Post(*id).member());
            batch.call(id.partition(), add);
        }
        self.keyspace.send(batch).await?;
        Ok(())
    }

    /// Strikes out what the archive knows now. All go out together.
    pub async fn archived(&self, notes: &[Note]) -> Result<(), Error> {
        let mut members: HashMap<Partition, Vec<String>> = HashMap::new();
        for note in notes {
            members.entry(note.post().partition()).or_default().push(note.member());
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
        for (note, member) in [
            (Note::Post(post), "p7"),
            (Note::PostEnded(post), "x7"),
            (Note::Comment(post, comment), "c7:9"),
            (Note::CommentEnded(post, comment), "d7:9"),
        ] {
            assert_eq!(note.member(), member);
            assert_eq!(Note::parse(member), Some(note));
        }
        for rubbish in ["", "-", "p", "p0", "x-1", "c7", "c7:", "q7", "微"] {
            assert_eq!(Note::parse(rubbish), None, "{rubbish}");
        }
    }
}
