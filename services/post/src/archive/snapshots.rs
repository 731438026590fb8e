//! Writes and reads snapshots of posts, for eviction and restore.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use microblog_domain::{CommentId, PostId};
use microblog_keyspace::Entry;
use microblog_record::{
    Error,
    sql::{ROWS_MAX, list, number, read, read_id, rows, statement},
};
use sqlx::{Any, Transaction};

use super::{
    Archive,
    changes::{OlderThanSnapshot, bind_posts, delete_rows, insert_comments},
    posts::{COMMENT_COLUMNS, POST_COLUMNS, comment, post},
};
use crate::post::Snapshot;

/// The timeout of reading one snapshot.
const SNAPSHOT_READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The most list entries of one statement.
const ENTRIES_MAX: usize = 100;

/// A list that changed while it was read may have duplicates. Its post stays in Redis, but must not
/// keep the others there.
const SKIP: &str = "ON CONFLICT DO NOTHING";

impl Archive {
    /// Writes snapshots in one transaction, except those that are older than the stored ones.
    /// Returns the posts that were written: none that is deleted or has no row.
    pub async fn write_snapshots(&self, posts: &[Snapshot]) -> Result<HashSet<PostId>, Error> {
        self.database
            .write("UPDATE posts likes comments reposts", async move {
                let mut transaction = self.begin().await?;
                let mut written = HashSet::with_capacity(posts.len());
                for posts in posts.chunks(ROWS_MAX) {
                    let newer = set_counts(&mut transaction, posts).await?;
                    let posts: Vec<_> =
                        posts.iter().filter(|snapshot| newer.contains(&snapshot.post.id)).collect();
                    if !posts.is_empty() {
                        replace_entries(&mut transaction, &posts).await?;
                        replace_comments(&mut transaction, &posts).await?;
                    }
                    written.extend(newer);
                }
                transaction.commit().await?;
                Ok(written)
            })
            .await
    }

    /// Returns the snapshot of a post as of its eviction; `None` if there is none.
    pub async fn read_snapshot(&self, id: PostId) -> Result<Option<Snapshot>, Error> {
        self.database
            .read_within(SNAPSHOT_READ_TIMEOUT, "SELECT posts likes comments reposts", async move {
                let key = || number(id.get());
                let mut transaction = self.database.writers().begin().await?;
                let text = format!(
                    "SELECT {POST_COLUMNS}, snapshot_mark FROM posts WHERE deleted = 0 AND id = $1"
                );
                let row = statement(text).bind(key()).fetch_optional(&mut *transaction).await?;
                let Some(row) = row else { return Ok(None) };
                let (post, mark) = (post(&row)?, read(&row, 8)?);
                let likes = sqlx::query("SELECT account, since FROM likes WHERE post = $1")
                    .bind(key())
                    .fetch_all(&mut *transaction)
                    .await?;
                let entry = |row| Ok(Entry { member: read(row, 0)?, score: read(row, 1)? });
                let likes = likes.iter().map(entry).collect::<Result<_, sqlx::Error>>()?;
                let text = format!(
                    "SELECT {COMMENT_COLUMNS} FROM comments WHERE deleted = 0 AND post = $1"
                );
                let comments = statement(text).bind(key()).fetch_all(&mut *transaction).await?;
                let comments = comments.iter().map(comment).collect::<Result<_, sqlx::Error>>()?;
                let reposts = sqlx::query("SELECT repost FROM reposts WHERE post = $1")
                    .bind(key())
                    .fetch_all(&mut *transaction)
                    .await?;
                let repost = |row| read_id(row, 0, PostId::new);
                let reposts = reposts.iter().map(repost).collect::<Result<_, sqlx::Error>>()?;
                Ok(Some(Snapshot { post, mark, likes, comments, reposts }))
            })
            .await
    }
}

// Sets the counts of posts. Returns the posts without a later snapshot.
async fn set_counts(
    transaction: &mut Transaction<'_, Any>,
    posts: &[Snapshot],
) -> Result<HashSet<PostId>, sqlx::Error> {
    // Both databases name the columns of VALUES like this.
    let text = format!(
        "UPDATE posts SET likes = moment.column2, comments = moment.column3, reposts = moment.column4, \
         snapshot_mark = moment.column5 FROM (VALUES {}) AS moment \
         WHERE posts.id = moment.column1 AND posts.deleted = 0 AND posts.snapshot_mark < moment.column5 \
         RETURNING posts.id",
        rows(transaction.backend_name(), posts.len(), 5)
    );
    let query = posts.iter().fold(statement(text), |query, snapshot| {
        let query = query.bind(number(snapshot.post.id.get()));
        let query = query.bind(number(snapshot.likes.len() as u64));
        let query = query.bind(number(snapshot.comments.len() as u64));
        query.bind(number(snapshot.reposts.len() as u64)).bind(number(snapshot.mark))
    });
    let rows = query.fetch_all(&mut **transaction).await?;
    rows.iter().map(|row| read_id(row, 0, PostId::new)).collect()
}

async fn replace_entries(
    transaction: &mut Transaction<'_, Any>,
    posts: &[&Snapshot],
) -> Result<(), sqlx::Error> {
    let ids: Vec<_> = posts.iter().map(|snapshot| snapshot.post.id).collect();
    delete_rows(transaction, &["likes", "reposts"], &ids).await?;
    let likes = |snapshot: &&Snapshot| {
        let id = snapshot.post.id;
        snapshot.likes.iter().map(move |like| (id, *like)).collect::<Vec<_>>()
    };
    let likes: Vec<_> = posts.iter().flat_map(likes).collect();
    for likes in likes.chunks(ENTRIES_MAX) {
        let text = format!(
            "INSERT INTO likes (post, account, since) VALUES {} {SKIP}",
            rows(transaction.backend_name(), likes.len(), 3)
        );
        let query = likes.iter().fold(statement(text), |query, (id, like)| {
            query.bind(number(id.get())).bind(number(like.member)).bind(number(like.score))
        });
        query.execute(&mut **transaction).await?;
    }
    let reposts = |snapshot: &&Snapshot| {
        let id = snapshot.post.id;
        snapshot.reposts.iter().map(move |repost| (id, *repost)).collect::<Vec<_>>()
    };
    let reposts: Vec<_> = posts.iter().flat_map(reposts).collect();
    for reposts in reposts.chunks(ENTRIES_MAX) {
        let text = format!(
            "INSERT INTO reposts (post, repost) VALUES {} {SKIP}",
            rows(transaction.backend_name(), reposts.len(), 2)
        );
        let query = reposts.iter().fold(statement(text), |query, (id, repost)| {
            query.bind(number(id.get())).bind(number(repost.get()))
        });
        query.execute(&mut **transaction).await?;
    }
    Ok(())
}

// Inserts the comments of the snapshots, and deletes older ones that are not in them. Without
// tombstones: if the post stays in Redis after all, no comment of it may be lost. A late insert is
// skipped ([`OlderThanSnapshot`]).
async fn replace_comments(
    transaction: &mut Transaction<'_, Any>,
    posts: &[&Snapshot],
) -> Result<(), sqlx::Error> {
    let mut in_snapshots: HashSet<(PostId, CommentId)> = HashSet::new();
    let mut marks: HashMap<PostId, u64> = HashMap::new();
    let mut comments = Vec::new();
    for snapshot in posts {
        marks.insert(snapshot.post.id, snapshot.mark);
        in_snapshots.extend(snapshot.comments.iter().map(|comment| (comment.post, comment.id)));
        comments.extend(snapshot.comments.iter().cloned());
    }
    for comments in comments.chunks(ROWS_MAX) {
        insert_comments(transaction, comments, OlderThanSnapshot::Insert).await?;
    }
    let text = format!(
        "SELECT post, id FROM comments WHERE deleted = 0 AND post IN ({})",
        list(1, posts.len())
    );
    let query = bind_posts(statement(text), posts.iter().map(|snapshot| snapshot.post.id));
    let mut removed = Vec::new();
    for row in query.fetch_all(&mut **transaction).await? {
        let (post, id) = (read_id(&row, 0, PostId::new)?, read_id(&row, 1, CommentId::new)?);
        let is_older = marks.get(&post).is_some_and(|mark| id.get() < *mark);
        if is_older && !in_snapshots.contains(&(post, id)) {
            removed.push((post, id));
        }
    }
    for removed in removed.chunks(ROWS_MAX) {
        let text = format!(
            "DELETE FROM comments WHERE deleted = 0 AND (post, id) IN (VALUES {})",
            rows(transaction.backend_name(), removed.len(), 2)
        );
        let query = removed.iter().fold(statement(text), |query, (post, id)| {
            query.bind(number(post.get())).bind(number(id.get()))
        });
        query.execute(&mut **transaction).await?;
    }
    Ok(())
}
