//! Erasure of what deleted accounts wrote, and removal of old tombstones.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use microblog_domain::{Partition, PostId, Stamp, UserId};
use microblog_record::{
    Error, WriteTransaction, append_changes,
    sql::{number, read, read_id},
};
use sqlx::Executor as _;

use super::Archive;
use crate::store::REQUEST_TTL;

/// How long rows of what has ended stay: no older copy of Redis may be restored.
const TOMBSTONE_TTL: Duration = Duration::from_secs(30 * 24 * 60 * 60);

impl Archive {
    // Begins a transaction that changes rows of any partition: it locks all positions, in the order
    // of the recorders. SQLite has one writer at a time. Fails if one is not free in time, as during a
    // recovery: the jobs repeat it, and recorders must not wait for the others meanwhile.
    async fn begin(&self) -> Result<WriteTransaction, sqlx::Error> {
        let mut transaction = self.database.begin_with_lock_timeout().await?;
        if !self.database.is_embedded() {
            let lock = "SELECT 1 FROM journal_positions ORDER BY partition FOR UPDATE";
            transaction.execute(lock).await?;
        }
        Ok(transaction)
    }

    /// Deletes expired tombstones and requests, up to a thousand of each table. Returns the number
    /// of deleted rows.
    pub async fn purge(&self) -> Result<u64, Error> {
        let now = SystemTime::now();
        let before = |age| Stamp::first_at(now - age, Partition::new(0)).get();
        self.purge_before(before(TOMBSTONE_TTL), before(REQUEST_TTL)).await
    }

    /// Deletes tombstones and requests from before these stamps likewise.
    pub async fn purge_before(&self, tombstones: u64, requests: u64) -> Result<u64, Error> {
        const TOMBSTONES: [&str; 4] = [
            "DELETE FROM posts WHERE id IN (SELECT id FROM posts \
             WHERE deleted <> 0 AND deleted < $1 ORDER BY deleted LIMIT 1000)",
            "DELETE FROM comments WHERE (post, id) IN (SELECT post, id FROM comments \
             WHERE deleted <> 0 AND deleted < $1 ORDER BY deleted LIMIT 1000)",
            "DELETE FROM likes WHERE (post, member) IN (SELECT post, member FROM likes \
             WHERE ended = 1 AND since < $1 ORDER BY since LIMIT 1000)",
            "DELETE FROM reposts WHERE (post, member) IN (SELECT post, member FROM reposts \
             WHERE ended = 1 AND since < $1 ORDER BY since LIMIT 1000)",
        ];
        const REQUESTS: &str = "DELETE FROM requests WHERE id IN \
             (SELECT id FROM requests WHERE id < $1 ORDER BY id LIMIT 1000)";
        let steps = TOMBSTONES.iter().map(|step| (*step, tombstones));
        self.database
            .write("DELETE posts comments likes reposts requests", async move {
                let mut transaction = self.begin().await?;
                let mut removed = 0;
                for (step, before) in steps.chain([(REQUESTS, requests)]) {
                    let done = sqlx::query(step).bind(number(before));
                    removed += done.execute(&mut *transaction).await?.rows_affected();
                }
                transaction.commit().await?;
                Ok(removed)
            })
            .await
    }

    /// Ends up to `count` likes of an account. Returns how many ended.
    pub async fn erase_likes(&self, account: UserId, count: usize) -> Result<usize, Error> {
        const LIKES: &str = "UPDATE likes SET ended = 1, since = $2 \
            WHERE member = $1 AND ended = 0 AND post IN (SELECT post FROM likes \
            WHERE member = $1 AND ended = 0 ORDER BY post LIMIT $3) \
            RETURNING post, member";
        const COUNT: &str = "UPDATE posts SET likes = likes - $2 WHERE id = $1";
        self.erase("UPDATE likes", [LIKES, COUNT], "unlike", account, count).await
    }

    /// Deletes up to `count` comments of an account. Returns how many were deleted.
    pub async fn erase_comments(&self, author: UserId, count: usize) -> Result<usize, Error> {
        const COMMENTS: &str = "UPDATE comments SET author = 0, text = '', in_reply_to = 0, \
            in_reply_to_author = 0, deleted = $2 WHERE author = $1 AND deleted = 0 AND id IN \
            (SELECT id FROM comments WHERE author = $1 AND deleted = 0 ORDER BY id LIMIT $3) \
            RETURNING post, id";
        const COUNT: &str = "UPDATE posts SET comments = comments - $2 WHERE id = $1";
        self.erase("UPDATE comments", [COMMENTS, COUNT], "uncomment", author, count).await
    }

    // Ends rows, changes the counts of their posts, and appends entries of a kind to the change feed.
    async fn erase(
        &self,
        summary: &'static str,
        [end, change]: [&'static str; 2],
        kind: &'static str,
        account: UserId,
        count: usize,
    ) -> Result<usize, Error> {
        let now = Stamp::first_at(SystemTime::now(), Partition::new(0)).get();
        self.database
            .write(summary, async move {
                let mut transaction = self.begin().await?;
                let rows = sqlx::query(end)
                    .bind(number(account.get()))
                    .bind(number(now))
                    .bind(number(count as u64))
                    .fetch_all(&mut *transaction)
                    .await?;
                let mut posts: BTreeMap<PostId, i64> = BTreeMap::new();
                let mut entries = Vec::with_capacity(rows.len());
                for row in &rows {
                    let post = read_id(row, 0, PostId::new)?;
                    *posts.entry(post).or_default() += 1;
                    entries.push(format!("{kind} {post} {} {now}", read(row, 1)?));
                }
                for (post, ended) in posts {
                    let change = sqlx::query(change).bind(number(post.get())).bind(ended);
                    change.execute(&mut *transaction).await?;
                }
                append_changes(&mut transaction, &entries).await?;
                transaction.commit().await?;
                Ok(rows.len())
            })
            .await
    }
}
