//! Reads of whole posts, for restores.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use microblog_domain::{PostId, Stamp, UserId};
use microblog_keyspace::Entry;
use microblog_record::{
    Damaged, Error,
    sql::{list, number, read_id, statement},
};
use sqlx::{Any, Transaction, any::AnyRow};

use super::{
    Archive, RECORD,
    posts::{comment, post},
};
use crate::post::Snapshot;

/// The timeout of reading one page of posts.
const SNAPSHOT_READ_TIMEOUT: Duration = Duration::from_secs(30);

impl Archive {
    /// Returns a post with its lists; `None` if there is none. Without damaged rows.
    pub async fn read_snapshot(&self, id: PostId) -> Result<Option<Snapshot>, Error> {
        Ok(self.read_snapshots(&[id], &Damaged::new(RECORD)).await?.pop())
    }

    /// Returns the existing posts among some with their lists, in the given order. Without damaged
    /// rows.
    pub(crate) async fn read_snapshots(
        &self,
        ids: &[PostId],
        damaged: &Damaged,
    ) -> Result<Vec<Snapshot>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let [post_columns, comment_columns] = [self.post_columns(), self.comment_columns()];
        let texts = [
            format!("SELECT {post_columns} FROM posts WHERE deleted = 0 AND id"),
            "SELECT post, member, since FROM likes WHERE ended = 0 AND post".to_owned(),
            format!("SELECT {comment_columns} FROM comments WHERE deleted = 0 AND post"),
            "SELECT post, member FROM reposts WHERE ended = 0 AND post".to_owned(),
        ];
        let read = async move {
            let mut transaction = self.database.writers().begin().await?;
            let mut rows = Vec::with_capacity(texts.len());
            for text in texts {
                rows.push(select(&mut transaction, &text, ids).await?);
            }
            Ok(rows)
        };
        let name = "SELECT posts likes comments reposts";
        let rows = self.database.read_within(SNAPSHOT_READ_TIMEOUT, name, read).await?;
        let [posts, likes, comments, reposts] = &rows[..] else { return Ok(Vec::new()) };
        let posts = damaged.decode("posts", 1, posts, post);
        let mut posts: HashMap<PostId, _> = posts.into_iter().map(|post| (post.id, post)).collect();
        let mut likes = by_post(damaged.decode("likes", 2, likes, like));
        let mut comments = by_post(damaged.decode("comments", 2, comments, |row| {
            let comment = comment(row)?;
            Ok((comment.post, comment))
        }));
        let mut reposts = by_post(damaged.decode("reposts", 2, reposts, |row| {
            Ok((read_id(row, 0, PostId::new)?, read_id(row, 1, PostId::new)?))
        }));
        let snapshot = |id: &PostId| {
            Some(Snapshot {
                post: posts.remove(id)?,
                likes: likes.remove(id).unwrap_or_default(),
                comments: comments.remove(id).unwrap_or_default(),
                reposts: reposts.remove(id).unwrap_or_default(),
            })
        };
        Ok(ids.iter().filter_map(snapshot).collect())
    }
}

// Returns the rows of some posts. The statement lacks its end, the ids.
async fn select(
    transaction: &mut Transaction<'static, Any>,
    text: &str,
    ids: &[PostId],
) -> Result<Vec<AnyRow>, sqlx::Error> {
    let text = format!("{text} IN ({})", list(1, ids.len()));
    let query = ids.iter().fold(statement(text), |query, id| query.bind(number(id.get())));
    query.fetch_all(&mut **transaction).await
}

fn like(row: &AnyRow) -> Result<(PostId, Entry), sqlx::Error> {
    let member = read_id(row, 1, UserId::new)?.get();
    let score = read_id(row, 2, Stamp::new)?.get();
    Ok((read_id(row, 0, PostId::new)?, Entry { member, score }))
}

fn by_post<T>(rows: Vec<(PostId, T)>) -> BTreeMap<PostId, Vec<T>> {
    let mut by_post: BTreeMap<PostId, Vec<T>> = BTreeMap::new();
    for (post, row) in rows {
        by_post.entry(post).or_default().push(row);
    }
    by_post
}
