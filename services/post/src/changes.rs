//! The changes of posts in the feed, and in the part of the change feed that this service has.

use futures::future::{BoxFuture, FutureExt as _};
use microblog_domain::PostId;
use microblog_proto::common::{self as pb, ChangeKind};
use microblog_record::{
    Database, Error, ExistingPage, RowKey,
    sql::{existing_page, read, read_id},
};
use microblog_storage::changes::FeedTexts;
use sqlx::any::AnyRow;

use crate::steps::like_version;

/// The changes of posts, reposts, comments and likes.
pub(crate) struct PostChanges;

impl FeedTexts for PostChanges {
    const KINDS: &'static [ChangeKind] =
        &[ChangeKind::Post, ChangeKind::Repost, ChangeKind::Comment, ChangeKind::Like];

    fn parse(text: &str) -> Option<Option<pb::Change>> {
        let (verb, numbers) = text.split_once(' ')?;
        let numbers: Vec<u64> =
            numbers.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Some(match (verb, &numbers[..]) {
            ("post", &[id, author]) => post(id, author),
            ("import", &[id, author]) => pb::Change { imported: true, ..post(id, author) },
            ("unpost", &[id, version]) => end(post(id, 0), version),
            ("repost", &[target, id]) => repost(target, id),
            ("unrepost", &[target, id, version]) => end(repost(target, id), version),
            ("comment", &[post, id, author]) => comment(post, id, author),
            ("uncomment", &[post, id, version]) => end(comment(post, id, 0), version),
            ("like", &[post, user, version]) => like(post, user, version),
            ("unlike", &[post, user, version]) => end(like(post, user, version), version),
            // Of a deleted post.
            ("forget_like", &[_user]) => return Some(None),
            _ => return None,
        }))
    }

    fn existing(
        database: &Database,
        kind: ChangeKind,
        after: RowKey,
    ) -> BoxFuture<'_, Result<ExistingPage, Error>> {
        existing(database, kind, after).boxed()
    }
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
async fn existing(
    database: &Database,
    kind: ChangeKind,
    [first, second, _]: RowKey,
) -> Result<ExistingPage, Error> {
    // The third column is the post, if it exists: what belongs to a deleted one is removed later.
    const POSTS: &str = "SELECT id, 0, id, author FROM posts WHERE id > $1 + $2 \
        ORDER BY id LIMIT $3";
    const COMMENTS: &str = "SELECT post, comments.id, \
        (SELECT posts.id FROM posts WHERE posts.id = post), author \
        FROM comments WHERE (post, id) > ($1, $2) ORDER BY comments.post, comments.id LIMIT $3";
    // By account: there is no index by post and account.
    const LIKES: &str = "SELECT account, post, (SELECT id FROM posts WHERE posts.id = post), since \
        FROM likes WHERE (account, post) > ($1, $2) ORDER BY account, post LIMIT $3";
    const REPOSTS: &str = "SELECT target, repost, (SELECT id FROM posts WHERE posts.id = target) \
        FROM reposts WHERE (target, repost) > ($1, $2) ORDER BY target, repost LIMIT $3";
    type Decode = fn(&AnyRow) -> Result<Option<pb::Change>, sqlx::Error>;
    let (statement, decode): (_, Decode) = match kind {
        ChangeKind::Post => (POSTS, |row| if_exists(row, post(read(row, 0)?, read(row, 3)?))),
        ChangeKind::Comment => {
            (COMMENTS, |row| if_exists(row, comment(read(row, 0)?, read(row, 1)?, read(row, 3)?)))
        }
        ChangeKind::Like => (LIKES, |row| {
            let version = like_version(read_id(row, 1, PostId::new)?, read(row, 3)?);
            if_exists(row, like(read(row, 1)?, read(row, 0)?, version))
        }),
        ChangeKind::Repost => (REPOSTS, |row| if_exists(row, repost(read(row, 0)?, read(row, 1)?))),
        _ => return Ok((Vec::new(), None)),
    };
    let (changes, next) = existing_page(database, statement, [first, second], decode).await?;
    Ok((changes, next.map(|[first, second]| [first, second, 0])))
}

fn if_exists(row: &AnyRow, change: pb::Change) -> Result<Option<pb::Change>, sqlx::Error> {
    use sqlx::Row as _;
    Ok(row.try_get::<Option<i64>, _>(2)?.map(|_| change))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_change_feed_has_what_callers_see() {
        for (text, expected) in [
            ("post 8 4", post(8, 4)),
            ("unpost 8 9", end(post(8, 0), 9)),
            ("comment 8 9 4", comment(8, 9, 4)),
            ("uncomment 8 9 10", end(comment(8, 9, 0), 10)),
            ("like 8 4 9", like(8, 4, 9)),
            ("unlike 8 4 10", end(like(8, 4, 9), 10)),
            ("repost 8 9", repost(8, 9)),
            ("unrepost 8 9 10", end(repost(8, 9), 10)),
        ] {
            assert_eq!(PostChanges::parse(text), Some(Some(expected)), "{text}");
        }
        assert_eq!(PostChanges::parse("forget_like 4"), Some(None));
        for text in ["", "post", "post 8", "post 8 x", "post 8 4 9", "evict 8 9"] {
            assert_eq!(PostChanges::parse(text), None, "{text}");
        }
    }
}
