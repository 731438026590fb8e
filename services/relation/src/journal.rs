//! Entries of the change journal, as the Redis functions append them.

use microblog_domain::UserId;

use crate::graph::{Change, Edge, List};

/// An entry of the change journal of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalEntry {
    /// A source edge, an inverse edge, or an entry of a private list without inverse edges began or
    /// ended. A private one need not have existed before. An inverse edge has the direction of its
    /// source edge.
    Edge(List, Change),
    /// A source edge is as it was, with a new version: Redis had it already, or did not have it. What
    /// is recorded may differ, as after a loss.
    Still(List, Change),
    /// The account was deleted, and its edges are being removed. Has the stamp.
    Forget(UserId, u64),
    /// The data of a deleted account is removed, with its private lists. Has the stamp.
    Forgotten(UserId, u64),
}

impl JournalEntry {
    /// Decodes an entry; `None` if it is malformed.
    pub fn parse(entry: &str) -> Option<Self> {
        if let Some(edge) = entry.strip_prefix("still ") {
            let Self::Edge(list, change) = Self::parse(edge)? else { return None };
            return Some(Self::Still(list, change));
        }
        let (name, numbers) = entry.split_once(' ')?;
        let numbers: Vec<u64> =
            numbers.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        match (name, &*numbers) {
            ("forget", &[user, stamp]) => Some(Self::Forget(UserId::new(user)?, stamp)),
            ("forgotten", &[user, stamp]) => Some(Self::Forgotten(UserId::new(user)?, stamp)),
            (_, &[from, to, version]) => {
                let edge = Edge { from: UserId::new(from)?, to: UserId::new(to)? };
                List::ALL.iter().find_map(|&list| {
                    let [begin, end] = list.change_names()?;
                    let exists = name == begin;
                    let change = Change { edge, version, exists };
                    (exists || name == end).then_some(Self::Edge(list, change))
                })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_decoded() {
        let user = |id| UserId::new(id).unwrap();
        let change =
            |exists| Change { edge: Edge { from: user(4), to: user(8) }, version: 9, exists };
        for (entry, expected) in [
            ("follow 4 8 9", JournalEntry::Edge(List::Following, change(true))),
            ("unfollow 4 8 9", JournalEntry::Edge(List::Following, change(false))),
            ("followed 4 8 9", JournalEntry::Edge(List::Followers, change(true))),
            ("unfollowed 4 8 9", JournalEntry::Edge(List::Followers, change(false))),
            ("block 4 8 9", JournalEntry::Edge(List::Blocks, change(true))),
            ("unblock 4 8 9", JournalEntry::Edge(List::Blocks, change(false))),
            ("mute 4 8 9", JournalEntry::Edge(List::Mutes, change(true))),
            ("unmute 4 8 9", JournalEntry::Edge(List::Mutes, change(false))),
            ("still follow 4 8 9", JournalEntry::Still(List::Following, change(true))),
            ("still unblock 4 8 9", JournalEntry::Still(List::Blocks, change(false))),
            ("forget 4 9", JournalEntry::Forget(user(4), 9)),
            ("forgotten 4 9", JournalEntry::Forgotten(user(4), 9)),
        ] {
            assert_eq!(JournalEntry::parse(entry), Some(expected), "{entry}");
        }
    }

    #[test]
    fn malformed_entries_are_none() {
        for entry in [
            "",
            "follow",
            "follow 4 8",
            "follow 0 8 9",
            "follow 4 8 9 1",
            "forget 4",
            "like 4 8 9",
            "forget x 1",
            "still",
            "still forget 4 9",
            "still still follow 4 8 9",
        ] {
            assert_eq!(JournalEntry::parse(entry), None, "{entry}");
        }
    }

    #[test]
    fn fuzz_entries() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            if JournalEntry::parse(&text).is_some() {
                assert!(text.split(' ').count() >= 3, "{text}");
            }
        });
    }
}
