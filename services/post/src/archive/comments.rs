//! Reads of comments.

use microblog_domain::{CommentId, PostId, UserId};
use microblog_keyspace::{Entry, Order};
use sqlx::{Row as _, any::AnyRow};

use super::{
    Archive, Error,
    posts::id_entry,
    sql::{list, number, read, read_id, statement},
};
use crate::comment::{Comment, CommentContent, Reply};

/// The columns of a comment.
pub(super) const COLUMNS: &str = "id, post, author, text, in_reply_to, in_reply_to_author";

impl Archive {
    /// Returns a page of the ids of comments on an archived post, after a cursor.
    pub async fn comment_ids(
        &self,
        post: PostId,
        order: Order,
        after: Option<Entry>,
        count: usize,
    ) -> Result<Vec<Entry>, Error> {
        const NEWEST: &str = "SELECT id FROM comments \
            WHERE deleted = 0 AND post = $1 AND id < $2 ORDER BY id DESC LIMIT $3";
        const OLDEST: &str = "SELECT id FROM comments \
            WHERE deleted = 0 AND post = $1 AND id > $2 ORDER BY id LIMIT $3";
        let (text, begin) = match order {
            Order::Newest => (NEWEST, i64::MAX),
            Order::Oldest => (OLDEST, 0),
        };
        let query = sqlx::query(text)
            .bind(number(post.get()))
            .bind(after.map_or(begin, |entry| number(entry.member)))
            .bind(number(count as u64));
        self.read("SELECT comments", async move {
            query.fetch_all(&self.inner.pools.reading).await?.iter().map(id_entry).collect()
        })
        .await
    }

    /// Returns the existing comments among some on a post.
    pub async fn comments(&self, post: PostId, ids: &[CommentId]) -> Result<Vec<Comment>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let text = format!(
            "SELECT {COLUMNS} FROM comments WHERE deleted = 0 AND post = $1 AND id IN ({})",
            list(2, ids.len())
        );
        let query = statement(text).bind(number(post.get()));
        let query = ids.iter().fold(query, |query, id| query.bind(number(id.get())));
        self.read("SELECT comments", async move {
            query.fetch_all(&self.inner.pools.reading).await?.iter().map(comment).collect()
        })
        .await
    }

    /// Returns a page of an account's comments, newest first, below a cursor.
    pub async fn comments_by(
        &self,
        author: UserId,
        before: Option<CommentId>,
        count: usize,
    ) -> Result<Vec<Comment>, Error> {
        let text = format!(
            "SELECT {COLUMNS} FROM comments WHERE deleted = 0 AND author = $1 AND id < $2 \
             ORDER BY id DESC LIMIT $3"
        );
        let below = before.map_or(i64::MAX, |id| number(id.get()));
        let query =
            statement(text).bind(number(author.get())).bind(below).bind(number(count as u64));
        self.read("SELECT comments", async move {
            query.fetch_all(&self.inner.pools.reading).await?.iter().map(comment).collect()
        })
        .await
    }
}

/// Decodes a comment from [`COLUMNS`].
pub(super) fn comment(row: &AnyRow) -> Result<Comment, sqlx::Error> {
    let in_reply_to = CommentId::new(read(row, 4)?)
        .zip(UserId::new(read(row, 5)?))
        .map(|(to, author)| Reply { to, author });
    let content = CommentContent {
        author: read_id(row, 2, UserId::new)?,
        text: row.try_get(3)?,
        in_reply_to,
    };
    Ok(Comment {
        id: read_id(row, 0, CommentId::new)?,
        post: read_id(row, 1, PostId::new)?,
        content,
    })
}
