//! The part of the change feed that this service has: posts, reposts, comments and likes.

use microblog_proto::common::{self as pb, ChangeKind};
use microblog_record::{
    Database, Error, ExistingPage, RowKey,
    sql::{existing_page, read},
};
use sqlx::any::AnyRow;

use crate::journal::{JournalEntry, Reaction, ReactionList};

/// The kinds of changes.
pub(crate) const KINDS: [ChangeKind; 4] =
    [ChangeKind::Post, ChangeKind::Repost, ChangeKind::Comment, ChangeKind::Like];

/// Returns what an entry of the journal is in the feed. Moves to the archive are not in it; the
/// deletion of an account has an entry for each thing that it ends.
pub(crate) fn change(entry: &JournalEntry) -> Option<pb::Change> {
    Some(match *entry {
        JournalEntry::Post(post, made) => self::post(post.get(), made.author.get()),
        JournalEntry::Unpost(post, stamp) => end(self::post(post.get(), 0), stamp),
        JournalEntry::Comment(post, id, made) => comment(post.get(), id.get(), made.author.get()),
        JournalEntry::Uncomment(post, id, stamp) => end(comment(post.get(), id.get(), 0), stamp),
        JournalEntry::Reaction(Reaction { list, post, member, since, exists }) => {
            let change = match list {
                ReactionList::Likes => like(post.get(), member, since),
                ReactionList::Reposts => repost(post.get(), member),
            };
            if exists { change } else { end(change, since) }
        }
        JournalEntry::Moved(_) | JournalEntry::Forget(..) | JournalEntry::Forgotten(..) => {
            return None;
        }
    })
}

fn post(post_id: u64, user_id: u64) -> pb::Change {
    let kind = ChangeKind::Post.into();
    pb::Change { kind, post_id, user_id, version: post_id, ..pb::Change::default() }
}

fn repost(post_id: u64, repost_id: u64) -> pb::Change {
    let kind = ChangeKind::Repost.into();
    pb::Change { kind, post_id, repost_id, version: repost_id, ..pb::Change::default() }
}

fn comment(post_id: u64, comment_id: u64, user_id: u64) -> pb::Change {
    let kind = ChangeKind::Comment.into();
    let version = comment_id;
    pb::Change { kind, post_id, comment_id, user_id, version, ..pb::Change::default() }
}

fn like(post_id: u64, user_id: u64, version: u64) -> pb::Change {
    let kind = ChangeKind::Like.into();
    pb::Change { kind, post_id, user_id, version, ..pb::Change::default() }
}

fn end(change: pb::Change, version: u64) -> pb::Change {
    pb::Change { ended: true, version, ..change }
}

/// Returns a page of what exists of a kind.
pub(crate) async fn existing(
    database: &Database,
    kind: ChangeKind,
    [first, second, _]: RowKey,
) -> Result<ExistingPage, Error> {
    // The third column is not 0 if the entry has ended.
    const POSTS: &str = "SELECT id, 0, deleted, author FROM posts WHERE id > $1 + $2 \
        ORDER BY id LIMIT $3";
    const COMMENTS: &str = "SELECT post, id, deleted, author FROM comments \
        WHERE (post, id) > ($1, $2) ORDER BY post, id LIMIT $3";
    const LIKES: &str = "SELECT post, member, ended, since FROM likes \
        WHERE (post, member) > ($1, $2) ORDER BY post, member LIMIT $3";
    const REPOSTS: &str = "SELECT post, member, ended FROM reposts \
        WHERE (post, member) > ($1, $2) ORDER BY post, member LIMIT $3";
    type Decode = fn(&AnyRow) -> Result<Option<pb::Change>, sqlx::Error>;
    let (statement, decode): (_, Decode) = match kind {
        ChangeKind::Post => (POSTS, |row| if_exists(row, post(read(row, 0)?, read(row, 3)?))),
        ChangeKind::Comment => {
            (COMMENTS, |row| if_exists(row, comment(read(row, 0)?, read(row, 1)?, read(row, 3)?)))
        }
        ChangeKind::Like => {
            (LIKES, |row| if_exists(row, like(read(row, 0)?, read(row, 1)?, read(row, 3)?)))
        }
        ChangeKind::Repost => (REPOSTS, |row| if_exists(row, repost(read(row, 0)?, read(row, 1)?))),
        _ => return Ok((Vec::new(), None)),
    };
    let (changes, next) = existing_page(database, statement, [], [first, second], decode).await?;
    Ok((changes, next.map(|[first, second]| [first, second, 0])))
}

fn if_exists(row: &AnyRow, change: pb::Change) -> Result<Option<pb::Change>, sqlx::Error> {
    Ok((read(row, 2)? == 0).then_some(change))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_feed_has_ids_without_request_ids() {
        const REQUEST: &str = "7c2d9b1e-53a4-4f0e-9a7e-0d5c1b7f2a01";
        let change = |entry: String| change(&JournalEntry::parse(&entry).unwrap());
        for (entry, expected) in [
            (format!("post 4 {REQUEST} 8"), Some(post(8, 4))),
            ("unpost 8 9".into(), Some(end(post(8, 0), 9))),
            (format!("comment 8 4 {REQUEST} 9"), Some(comment(8, 9, 4))),
            ("uncomment 8 9 10".into(), Some(end(comment(8, 9, 0), 10))),
            ("like 8 4 9".into(), Some(like(8, 4, 9))),
            ("unlike 8 4 10".into(), Some(end(like(8, 4, 9), 10))),
            ("repost 8 9".into(), Some(repost(8, 9))),
            ("unrepost 8 9 10".into(), Some(end(repost(8, 9), 10))),
            ("evict 8 9".into(), None),
            ("restore 8 9".into(), None),
            ("forget 4 9".into(), None),
            ("forgotten 4 9".into(), None),
        ] {
            assert_eq!(change(entry.clone()), expected, "{entry}");
        }
    }
}
