//! Erases the likes and comments of accounts on archived posts.

use microblog_domain::{CommentId, Partition, PostId, Stamp, UserId};

use super::{
    Archive, Error,
    changes::bind_posts,
    sql::{list, number, read_id, statement},
};

impl Archive {
    /// Deletes up to `count` likes of an account, and updates the counts of the posts. Returns how
    /// many were deleted.
    pub async fn erase_likes(&self, account: UserId, count: usize) -> Result<usize, Error> {
        const LIKES: &str = "DELETE FROM likes WHERE account = $1 AND post IN \
            (SELECT post FROM likes WHERE account = $1 ORDER BY post LIMIT $2) RETURNING post";
        self.write("DELETE likes", async move {
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
            WHERE id = $1 AND comments > 0 AND frozen > $2";
        let end = Stamp::first_at(std::time::SystemTime::now(), Partition::new(0)).get();
        self.write("UPDATE comments", async move {
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
