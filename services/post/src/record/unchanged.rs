//! Which entries of the journals change nothing that is recorded: the change feed does not have them.
//!
//! The end of a like or repost has an entry also if Redis had none, since it may have been recorded and
//! lost. What a deleted account wrote may have been erased from the rows before it is erased from
//! Redis. So ends are compared with the rows, and reposts, which a repair may add again. Likes,
//! comments and posts only begin if they are new.

use std::collections::BTreeSet;

use microblog_domain::{CommentId, PostId};
use microblog_record::WriteTransaction;

use super::rows;
use crate::journal::{JournalEntry, Reaction, ReactionList};

/// What is recorded of the entries that are compared.
struct Known {
    /// The likes and reposts that exist, by post and member.
    reactions: BTreeSet<(ReactionList, PostId, u64)>,
    /// The comments that are deleted. One without a row may have been added and deleted before it was
    /// read.
    deleted: BTreeSet<(PostId, CommentId)>,
}

/// Returns the indices of the entries that change nothing. Before they are applied.
pub(super) async fn unchanged(
    transaction: &mut WriteTransaction,
    entries: &[JournalEntry],
) -> Result<BTreeSet<usize>, sqlx::Error> {
    let (mut likes, mut reposts, mut comments) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for &entry in entries {
        match entry {
            JournalEntry::Reaction(Reaction { list, post, member, exists, .. }) => match list {
                ReactionList::Likes if exists => {}
                ReactionList::Likes => _ = likes.insert((post, member)),
                ReactionList::Reposts => _ = reposts.insert((post, member)),
            },
            JournalEntry::Uncomment(post, id, _) => _ = comments.insert((post, id)),
            _ => {}
        }
    }
    let mut known = Known {
        reactions: BTreeSet::new(),
        deleted: rows::deleted_comments(transaction, &comments).await?,
    };
    for (list, keys) in [(ReactionList::Likes, likes), (ReactionList::Reposts, reposts)] {
        let existing = rows::existing_reactions(transaction, list, &keys).await?;
        known.reactions.extend(existing.into_iter().map(|(post, member)| (list, post, member)));
    }
    let entries = entries.iter().enumerate();
    Ok(entries.filter(|(_, entry)| !known.apply(**entry)).map(|(index, _)| index).collect())
}

impl Known {
    /// Applies an entry. Returns whether it changes something, if the feed has such entries.
    fn apply(&mut self, entry: JournalEntry) -> bool {
        match entry {
            JournalEntry::Reaction(Reaction { list, post, member, exists: true, .. }) => {
                self.reactions.insert((list, post, member))
            }
            JournalEntry::Reaction(Reaction { list, post, member, .. }) => {
                self.reactions.remove(&(list, post, member))
            }
            JournalEntry::Uncomment(post, id, _) => self.deleted.insert((post, id)),
            JournalEntry::Unpost(post, _) => {
                self.reactions.retain(|(_, of, _)| *of != post);
                true
            }
            JournalEntry::Post(..)
            | JournalEntry::Comment(..)
            | JournalEntry::Moved(_)
            | JournalEntry::Forget(..)
            | JournalEntry::Forgotten(..) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use microblog_record::{Database, Replace, Tables as _};

    use super::*;
    use crate::record::{Changes, PostTables, rows::CountChanges};

    const REQUEST: &str = "7c2d9b1e-53a4-4f0e-9a7e-0d5c1b7f2a01";

    /// Returns which entries change something, and writes them but for texts.
    async fn changing(database: &Database, texts: &[String]) -> Vec<String> {
        let entries: Vec<_> = texts.iter().map(|text| JournalEntry::parse(text).unwrap()).collect();
        let mut transaction = database.begin().await.unwrap();
        let unchanged = unchanged(&mut transaction, &entries).await.unwrap();
        let (changes, mut counts) = (Changes::of(&entries), CountChanges::new());
        for list in [ReactionList::Likes, ReactionList::Reposts] {
            let of_list = changes.reactions.values().filter(|reaction| reaction.list == list);
            let of_list: Vec<_> = of_list.copied().collect();
            let written =
                rows::write_reactions(&mut transaction, list, &of_list, Replace::All, &mut counts);
            written.await.unwrap();
        }
        let ends = changes.deleted_comments.iter();
        let ends: Vec<_> = ends.map(|(&(post, id), &stamp)| (post, id, stamp)).collect();
        rows::delete_comments(&mut transaction, &ends, &mut counts).await.unwrap();
        transaction.commit().await.unwrap();
        let texts = texts.iter().enumerate().filter(|(index, _)| !unchanged.contains(index));
        texts.map(|(_, text)| text.clone()).collect()
    }

    #[tokio::test]
    async fn what_is_as_recorded_is_no_change() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/post.db", directory.path().display());
        let config = crate::Config::parse_from(["post", "--database-url", &url]);
        let database = Database::open(&config.database).unwrap().unwrap();
        database.migrate(PostTables::MIGRATIONS).await.unwrap();
        let post = format!("post 4 {REQUEST} 8");
        let comment = format!("comment 8 4 {REQUEST} 9");
        // In each batch, the first entries change something.
        for (batch, count) in [
            (&[&*post, "unlike 8 5 9", "unrepost 8 16 9"][..], 1),
            (&["like 8 5 10", "repost 8 16", "repost 8 16"], 2),
            (&["unlike 8 5 11", "unlike 8 5 12", "repost 8 16"], 1),
            (&["like 8 5 13", "unlike 8 5 14", "like 8 5 15", "unrepost 8 16 15"], 4),
            (&["unlike 8 5 16", "unrepost 8 16 16"], 1),
            // Its row was never there.
            (&[&*comment, "uncomment 8 9 17", "uncomment 8 9 18"], 2),
            (&["uncomment 8 9 19"], 0),
            (&["like 8 5 20", "unpost 8 21", "unlike 8 5 22"], 2),
        ] {
            let batch: Vec<_> = batch.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!(changing(&database, &batch).await, batch[..count], "{batch:?}");
        }
    }
}
