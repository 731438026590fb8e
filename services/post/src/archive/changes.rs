//! Writes what was created, deleted and erased. Idempotent, in any order: rows are inserted where
//! there are none, and tombstones are final.

use std::time::SystemTime;

use microblog_domain::{CommentId, Partition, PostId, Stamp, UserId};
use microblog_record::{
    Error,
    sql::{ROWS_MAX, list, number, read_id, rows, statement},
};
use sqlx::{Any, Transaction, any::AnyArguments, query::Query};

use super::{Archive, WriteTransaction};
use crate::post::{Comment, Content};

/// Changes to archive.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Created posts.
    pub posts: Vec<(PostId, Content)>,
    /// Deleted posts, with the stamps of their deletion.
    pub deleted_posts: Vec<(PostId, u64)>,
    /// Created comments.
    pub comments: Vec<Comment>,
    /// Deleted comments, with the stamps of their deletion.
    pub deleted_comments: Vec<(PostId, CommentId, u64)>,
}

impl WriteTransaction<'_> {
    /// Adds changes.
    pub async fn add(&mut self, changes: &Changes) -> Result<(), Error> {
        let Self { archive, transaction } = self;
        archive
            .database
            .write("INSERT posts comments", async move {
                for posts in changes.posts.chunks(ROWS_MAX) {
                    insert_posts(transaction, posts).await?;
                }
                for comments in changes.comments.chunks(ROWS_MAX) {
                    insert_comments(transaction, comments, OlderThanSnapshot::Skip).await?;
                }
                for posts in changes.deleted_posts.chunks(ROWS_MAX) {
                    delete_posts(transaction, posts).await?;
                }
                for comments in changes.deleted_comments.chunks(ROWS_MAX) {
                    delete_comments(transaction, comments).await?;
                }
                Ok(())
            })
            .await
    }

    /// Commits the transaction.
    pub async fn commit(self) -> Result<(), Error> {
        self.archive.database.write("COMMIT", self.transaction.commit()).await
    }
}

impl Archive {
    /// Begins a transaction, once the previous one has ended.
    pub async fn begin_write(&self) -> Result<WriteTransaction<'_>, Error> {
        let transaction = self.database.write("BEGIN", self.begin()).await?;
        Ok(WriteTransaction { archive: self, transaction })
    }

    /// Deletes tombstones from before a stamp, up to a thousand of posts and of comments each.
    /// Returns the number of deleted rows.
    pub async fn purge(&self, before: u64) -> Result<u64, Error> {
        // A late writer may have added entries to a deleted post; they are deleted with it.
        const STEPS: [&str; 5] = [
            "DELETE FROM comments WHERE post IN (SELECT id FROM posts \
             WHERE deleted <> 0 AND deleted < $1 ORDER BY deleted LIMIT 1000)",
            "DELETE FROM likes WHERE post IN (SELECT id FROM posts \
             WHERE deleted <> 0 AND deleted < $1 ORDER BY deleted LIMIT 1000)",
            "DELETE FROM reposts WHERE post IN (SELECT id FROM posts \
             WHERE deleted <> 0 AND deleted < $1 ORDER BY deleted LIMIT 1000)",
            "DELETE FROM posts WHERE id IN (SELECT id FROM posts \
             WHERE deleted <> 0 AND deleted < $1 ORDER BY deleted LIMIT 1000)",
            "DELETE FROM comments WHERE (post, id) IN (SELECT post, id FROM comments \
             WHERE deleted <> 0 AND deleted < $1 ORDER BY deleted LIMIT 1000)",
        ];
        self.database
            .write("DELETE posts likes comments reposts", async move {
                let mut transaction = self.begin().await?;
                let mut removed = 0;
                for step in STEPS {
                    let done =
                        sqlx::query(step).bind(number(before)).execute(&mut *transaction).await?;
                    removed += done.rows_affected();
                }
                transaction.commit().await?;
                Ok(removed)
            })
            .await
    }

    /// Deletes up to `count` likes of an account, and updates the counts of the posts. Returns how
    /// many were deleted.
    pub async fn erase_likes(&self, account: UserId, count: usize) -> Result<usize, Error> {
        const LIKES: &str = "DELETE FROM likes WHERE account = $1 AND post IN \
            (SELECT post FROM likes WHERE account = $1 ORDER BY post LIMIT $2) RETURNING post";
        self.database
            .write("DELETE likes", async move {
                let mut transaction = self.begin().await?;
                let rows = sqlx::query(LIKES)
                    .bind(number(account.get()))
                    .bind(number(count as u64))
                    .fetch_all(&mut *transaction)
                    .await?;
                let posts = rows.iter().map(|row| read_id(row, 0, PostId::new));
                let posts: Vec<_> = posts.collect::<Result<_, _>>()?;
                if !posts.is_empty() {
                    let text = format!(
                        "UPDATE posts SET likes = likes - 1 WHERE likes > 0 AND id IN ({})",
                        list(1, posts.len())
                    );
                    let query = bind_posts(statement(text), posts.iter().copied());
                    query.execute(&mut *transaction).await?;
                }
                transaction.commit().await?;
                Ok(posts.len())
            })
            .await
    }

    /// Deletes up to `count` comments of an account, and updates the counts of the archived posts.
    /// Leaves tombstones. Returns how many were deleted.
    pub async fn erase_comments(&self, author: UserId, count: usize) -> Result<usize, Error> {
        const COMMENTS: &str = "UPDATE comments SET author = 0, text = '', in_reply_to = 0, \
            in_reply_to_author = 0, deleted = $2 WHERE author = $1 AND deleted = 0 AND id IN \
            (SELECT id FROM comments WHERE author = $1 AND deleted = 0 ORDER BY id LIMIT $3) \
            RETURNING post, id";
        // A comment that is newer than the snapshot is not in its count.
        const COUNT: &str = "UPDATE posts SET comments = comments - 1 \
            WHERE id = $1 AND comments > 0 AND snapshot_mark > $2";
        let end = Stamp::first_at(SystemTime::now(), Partition::new(0)).get();
        self.database
            .write("UPDATE comments", async move {
                let mut transaction = self.begin().await?;
                let rows = sqlx::query(COMMENTS)
                    .bind(number(author.get()))
                    .bind(number(end))
                    .bind(number(count as u64))
                    .fetch_all(&mut *transaction)
                    .await?;
                for row in &rows {
                    let post = read_id(row, 0, PostId::new)?;
                    let comment = read_id(row, 1, CommentId::new)?;
                    sqlx::query(COUNT)
                        .bind(number(post.get()))
                        .bind(number(comment.get()))
                        .execute(&mut *transaction)
                        .await?;
                }
                transaction.commit().await?;
                Ok(rows.len())
            })
            .await
    }
}

async fn insert_posts(
    transaction: &mut Transaction<'_, Any>,
    posts: &[(PostId, Content)],
) -> Result<(), sqlx::Error> {
    let text = format!(
        "INSERT INTO posts (id, author, text, root, reposted) VALUES {} ON CONFLICT (id) DO NOTHING",
        rows(transaction.backend_name(), posts.len(), 5)
    );
    let query = posts.iter().fold(statement(text), |query, (id, content)| {
        let Content { author, text, origin } = content;
        let (root, reposted) =
            origin.map_or((0, 0), |origin| (origin.root.get(), origin.reposted.get()));
        let query = query.bind(number(id.get())).bind(number(author.get())).bind(text.clone());
        query.bind(number(root)).bind(number(reposted))
    });
    query.execute(&mut **transaction).await?;
    Ok(())
}

/// What to do with comments that are older than the snapshot of their post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OlderThanSnapshot {
    /// Insert them: they are part of the snapshot.
    Insert,
    /// Skip them: they are in the snapshot already, or were deleted before it.
    Skip,
}

/// Inserts comments that have neither a row nor a tombstone.
pub(super) async fn insert_comments(
    transaction: &mut Transaction<'_, Any>,
    comments: &[Comment],
    older: OlderThanSnapshot,
) -> Result<(), sqlx::Error> {
    let condition = match older {
        OlderThanSnapshot::Insert => "1 = 0",
        OlderThanSnapshot::Skip => "posts.snapshot_mark > made.column2",
    };
    let text = format!(
        "INSERT INTO comments (post, id, author, text, in_reply_to, in_reply_to_author) \
         SELECT * FROM (VALUES {}) AS made WHERE NOT EXISTS \
         (SELECT 1 FROM posts WHERE posts.id = made.column1 AND {condition}) \
         ON CONFLICT (post, id) DO NOTHING",
        rows(transaction.backend_name(), comments.len(), 6)
    );
    let query = comments.iter().fold(statement(text), |query, comment| {
        let content = &comment.content;
        let (to, author) =
            content.in_reply_to.map_or((0, 0), |reply| (reply.to.get(), reply.author.get()));
        let query = query.bind(number(comment.post.get())).bind(number(comment.id.get()));
        let query = query.bind(number(content.author.get())).bind(content.text.clone());
        query.bind(number(to)).bind(number(author))
    });
    query.execute(&mut **transaction).await?;
    Ok(())
}

async fn delete_posts(
    transaction: &mut Transaction<'_, Any>,
    posts: &[(PostId, u64)],
) -> Result<(), sqlx::Error> {
    let text = format!(
        "INSERT INTO posts (id, deleted, author, text, root, reposted) VALUES {} \
         ON CONFLICT (id) DO UPDATE SET author = 0, text = '', root = 0, reposted = 0, likes = 0, \
         comments = 0, reposts = 0, deleted = excluded.deleted WHERE posts.deleted = 0",
        rows(transaction.backend_name(), posts.len(), 6)
    );
    let query = posts.iter().fold(statement(text), |query, (id, end)| {
        let query = query.bind(number(id.get())).bind(number(*end));
        query.bind(0_i64).bind("").bind(0_i64).bind(0_i64)
    });
    query.execute(&mut **transaction).await?;
    let ids: Vec<_> = posts.iter().map(|(id, _)| *id).collect();
    delete_rows(transaction, &["comments", "likes", "reposts"], &ids).await
}

/// Deletes the rows of posts from tables.
pub(super) async fn delete_rows(
    transaction: &mut Transaction<'_, Any>,
    tables: &[&str],
    posts: &[PostId],
) -> Result<(), sqlx::Error> {
    for table in tables {
        let text = format!("DELETE FROM {table} WHERE post IN ({})", list(1, posts.len()));
        let query = bind_posts(statement(text), posts.iter().copied());
        query.execute(&mut **transaction).await?;
    }
    Ok(())
}

// Writes tombstones of comments, whether or not they have rows.
async fn delete_comments(
    transaction: &mut Transaction<'_, Any>,
    comments: &[(PostId, CommentId, u64)],
) -> Result<(), sqlx::Error> {
    let text = format!(
        "INSERT INTO comments (post, id, deleted, author, text, in_reply_to, in_reply_to_author) \
         VALUES {} ON CONFLICT (post, id) DO UPDATE SET author = 0, text = '', in_reply_to = 0, \
         in_reply_to_author = 0, deleted = excluded.deleted WHERE comments.deleted = 0",
        rows(transaction.backend_name(), comments.len(), 7)
    );
    let query = comments.iter().fold(statement(text), |query, (post, id, end)| {
        let query = query.bind(number(post.get())).bind(number(id.get())).bind(number(*end));
        query.bind(0_i64).bind("").bind(0_i64).bind(0_i64)
    });
    query.execute(&mut **transaction).await?;
    Ok(())
}

/// Binds the ids of posts.
pub(super) fn bind_posts(
    query: Query<'static, Any, AnyArguments>,
    ids: impl Iterator<Item = PostId>,
) -> Query<'static, Any, AnyArguments> {
    ids.fold(query, |query, id| query.bind(number(id.get())))
}
