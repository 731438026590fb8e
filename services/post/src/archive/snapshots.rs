//! Reads of whole posts, for restores.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use microblog_domain::PostId;
use microblog_keyspace::Entry;
use microblog_record::{
    Error,
    sql::{list, number, read, read_id, statement},
};
use sqlx::{Any, Transaction, any::AnyRow};

use super::{
    Archive,
    posts::{COMMENT_COLUMNS, POST_COLUMNS, comment, post},
};
use crate::post::{Comment, Snapshot};

/// The timeout of reading one page of posts.
const SNAPSHOT_READ_TIMEOUT: Duration = Duration::from_secs(30);

impl Archive {
    /// Returns a post with its lists; `None` if there is none.
    pub async fn read_snapshot(&self, id: PostId) -> Result<Option<Snapshot>, Error> {
        Ok(self.read_snapshots(&[id]).await?.pop())
    }

    /// Returns the existing posts among some with their lists, in the given order.
    pub(crate) async fn read_snapshots(&self, ids: &[PostId]) -> Result<Vec<Snapshot>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.database
            .read_within(SNAPSHOT_READ_TIMEOUT, "SELECT posts likes comments reposts", async move {
                let mut transaction = self.database.writers().begin().await?;
                let posts = format!("SELECT {POST_COLUMNS} FROM posts WHERE deleted = 0 AND id");
                let mut posts: HashMap<PostId, _> = HashMap::from_iter(
                    select(&mut transaction, &posts, ids, |row| {
                        let post = post(row)?;
                        Ok((post.id, post))
                    })
                    .await?,
                );
                let likes = "SELECT post, member, since FROM likes WHERE ended = 0 AND post";
                let likes = select(&mut transaction, likes, ids, |row| {
                    let entry = Entry { member: read(row, 1)?, score: read(row, 2)? };
                    Ok((read_id(row, 0, PostId::new)?, entry))
                });
                let mut likes: BTreeMap<PostId, Vec<Entry>> = by_post(likes.await?);
                let comments =
                    format!("SELECT {COMMENT_COLUMNS} FROM comments WHERE deleted = 0 AND post");
                let comments = select(&mut transaction, &comments, ids, |row| {
                    let comment = comment(row)?;
                    Ok((comment.post, comment))
                });
                let mut comments: BTreeMap<PostId, Vec<Comment>> = by_post(comments.await?);
                let reposts = "SELECT post, member FROM reposts WHERE ended = 0 AND post";
                let reposts = select(&mut transaction, reposts, ids, |row| {
                    Ok((read_id(row, 0, PostId::new)?, read_id(row, 1, PostId::new)?))
                });
                let mut reposts: BTreeMap<PostId, Vec<PostId>> = by_post(reposts.await?);
                let snapshot = |id: &PostId| {
                    Some(Snapshot {
                        post: posts.remove(id)?,
                        likes: likes.remove(id).unwrap_or_default(),
                        comments: comments.remove(id).unwrap_or_default(),
                        reposts: reposts.remove(id).unwrap_or_default(),
                    })
                };
                Ok(ids.iter().filter_map(snapshot).collect())
            })
            .await
    }
}

// Returns the rows of some posts. The statement lacks its end, the ids.
async fn select<T>(
    transaction: &mut Transaction<'static, Any>,
    text: &str,
    ids: &[PostId],
    decode: impl Fn(&AnyRow) -> Result<T, sqlx::Error>,
) -> Result<Vec<T>, sqlx::Error> {
    let text = format!("{text} IN ({})", list(1, ids.len()));
    let query = ids.iter().fold(statement(text), |query, id| query.bind(number(id.get())));
    query.fetch_all(&mut **transaction).await?.iter().map(decode).collect()
}

fn by_post<T>(rows: Vec<(PostId, T)>) -> BTreeMap<PostId, Vec<T>> {
    let mut by_post: BTreeMap<PostId, Vec<T>> = BTreeMap::new();
    for (post, row) in rows {
        by_post.entry(post).or_default().push(row);
    }
    by_post
}
