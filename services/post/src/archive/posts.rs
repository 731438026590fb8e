//! Reads of posts, their lists, and comments.

use std::collections::{HashMap, HashSet};

use microblog_domain::{CommentId, PostId, UserId};
use microblog_keyspace::{Entry, Order};
use microblog_record::{
    Damaged, Error,
    sql::{
        SQLITE, check_partition, list, number, read, read_id, read_text, rows, statement,
        text_column,
    },
};
use sqlx::any::AnyRow;

use super::{Archive, RECORD};
use crate::post::{Comment, CommentContent, Content, Counts, ListLengths, Origin, Post, Reply};

/// The most authors of one statement.
const AUTHORS_MAX: usize = 50;

impl Archive {
    /// Returns the columns of a post.
    pub(super) fn post_columns(&self) -> String {
        let text = text_column(&self.database, "text");
        format!("id, author, {text}, root, reposted, likes, comments, reposts")
    }

    /// Returns the columns of a comment.
    pub(super) fn comment_columns(&self) -> String {
        let text = text_column(&self.database, "text");
        format!("id, post, author, {text}, in_reply_to, in_reply_to_author")
    }

    /// Returns the existing posts among some, as of their eviction.
    pub async fn posts(&self, ids: &[PostId], viewer: Option<UserId>) -> Result<Vec<Post>, Error> {
        let mut posts = self.newest_first(ids, &Damaged::new(RECORD)).await?;
        if let Some(viewer) = viewer {
            let liked: Vec<_> =
                posts.iter().filter(|post| post.counts.likes > 0).map(|post| post.id).collect();
            let liked = self.liked(viewer, &liked).await?;
            posts.iter_mut().for_each(|post| post.liked = liked.contains(&post.id));
        }
        Ok(posts)
    }

    /// Returns the existing posts among some likewise, newest first.
    pub(crate) async fn newest_first(
        &self,
        ids: &[PostId],
        damaged: &Damaged,
    ) -> Result<Vec<Post>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let columns = self.post_columns();
        let text = format!(
            "SELECT {columns} FROM posts WHERE deleted = 0 AND id IN ({}) ORDER BY id DESC",
            list(1, ids.len())
        );
        let query = ids.iter().fold(statement(text), |query, id| query.bind(number(id.get())));
        let read = async { query.fetch_all(self.database.readers()).await };
        let rows = self.database.read("SELECT posts", read).await?;
        Ok(damaged.decode("posts", 1, &rows, post))
    }

    /// Returns which of some posts have a row that is not a tombstone.
    pub async fn existing(&self, ids: &[PostId]) -> Result<HashSet<PostId>, Error> {
        if ids.is_empty() {
            return Ok(HashSet::new());
        }
        let text =
            format!("SELECT id FROM posts WHERE deleted = 0 AND id IN ({})", list(1, ids.len()));
        let query = ids.iter().fold(statement(text), |query, id| query.bind(number(id.get())));
        self.database
            .read("SELECT posts", async move {
                let rows = query.fetch_all(self.database.readers()).await?;
                rows.iter().map(|row| read_id(row, 0, PostId::new)).collect()
            })
            .await
    }

    /// Returns the newest posts of some authors, newest first, between two cursors.
    pub async fn newest_of(
        &self,
        authors: &[UserId],
        before: Option<PostId>,
        after: Option<PostId>,
        count: usize,
    ) -> Result<Vec<PostId>, Error> {
        let mut newest = Vec::new();
        for authors in authors.chunks(AUTHORS_MAX) {
            newest.extend(self.newest_of_some(authors, before, after, count).await?);
        }
        newest.sort_unstable_by(|a, b| b.cmp(a));
        newest.truncate(count);
        Ok(newest)
    }

    // One subquery for each author: a single one over all authors would scan the posts of others.
    async fn newest_of_some(
        &self,
        authors: &[UserId],
        before: Option<PostId>,
        after: Option<PostId>,
        count: usize,
    ) -> Result<Vec<PostId>, Error> {
        let of_one = |number: usize| {
            format!(
                "SELECT id FROM (SELECT id FROM posts WHERE author = ${number} AND deleted = 0 \
                 AND id < $1 AND id > $2 ORDER BY id DESC LIMIT $3) AS of_{number}"
            )
        };
        let of_each: Vec<_> = (4..4 + authors.len()).map(of_one).collect();
        let below = before.map_or(i64::MAX, |id| number(id.get()));
        let above = after.map_or(0, |id| number(id.get()));
        let query = statement(of_each.join(" UNION ALL "));
        let query = query.bind(below).bind(above).bind(number(count as u64));
        let query = authors.iter().fold(query, |query, author| query.bind(number(author.get())));
        self.database
            .read("SELECT posts", async move {
                let rows = query.fetch_all(self.database.readers()).await?;
                rows.iter().map(|row| read_id(row, 0, PostId::new)).collect()
            })
            .await
    }

    /// Returns which of some posts an account liked, as of their eviction.
    pub async fn liked(&self, user: UserId, ids: &[PostId]) -> Result<HashSet<PostId>, Error> {
        if ids.is_empty() {
            return Ok(HashSet::new());
        }
        let text = format!(
            "SELECT post FROM likes WHERE member = $1 AND ended = 0 AND post IN ({})",
            list(2, ids.len())
        );
        let query = statement(text).bind(number(user.get()));
        let query = ids.iter().fold(query, |query, id| query.bind(number(id.get())));
        self.database
            .read("SELECT likes", async move {
                let rows = query.fetch_all(self.database.readers()).await?;
                rows.iter().map(|row| read_id(row, 0, PostId::new)).collect()
            })
            .await
    }

    /// Returns since when an account liked a post, as of its eviction; `None` if it did not.
    pub async fn liked_since(&self, user: UserId, id: PostId) -> Result<Option<u64>, Error> {
        let query =
            sqlx::query("SELECT since FROM likes WHERE post = $1 AND member = $2 AND ended = 0")
                .bind(number(id.get()))
                .bind(number(user.get()));
        self.database
            .read("SELECT likes", async move {
                query
                    .fetch_optional(self.database.readers())
                    .await?
                    .map(|row| read(&row, 0))
                    .transpose()
            })
            .await
    }

    /// Returns a page of a post's likers as of its eviction, newest first, after a cursor. Likes
    /// with equal stamps are ordered by the account as text, as in Redis.
    pub async fn likers(
        &self,
        id: PostId,
        after: Option<Entry>,
        count: usize,
    ) -> Result<Vec<Entry>, Error> {
        const PAGE: &str = "SELECT member, since FROM likes WHERE post = $1 AND ended = 0 \
            AND since <= $2 AND (since < $2 OR CAST(member AS TEXT) < $3) \
            ORDER BY since DESC, CAST(member AS TEXT) DESC LIMIT $4";
        // Sorts after every account, as text.
        let begin = || (i64::MAX, "~".to_owned());
        let (since, account) =
            after.map_or_else(begin, |entry| (number(entry.score), entry.member.to_string()));
        let query = sqlx::query(PAGE)
            .bind(number(id.get()))
            .bind(since)
            .bind(account)
            .bind(number(count as u64));
        self.database
            .read("SELECT likes", async move {
                let rows = query.fetch_all(self.database.readers()).await?;
                let entry = |row| Ok(Entry { member: read(row, 0)?, score: read(row, 1)? });
                rows.iter().map(entry).collect()
            })
            .await
    }

    /// Returns a page of a post's reposts as of its eviction, newest first, after a cursor.
    pub async fn reposts(
        &self,
        id: PostId,
        after: Option<Entry>,
        count: usize,
    ) -> Result<Vec<Entry>, Error> {
        const PAGE: &str = "SELECT member FROM reposts WHERE post = $1 AND ended = 0 AND member < $2 \
            ORDER BY member DESC LIMIT $3";
        let query = sqlx::query(PAGE)
            .bind(number(id.get()))
            .bind(after.map_or(i64::MAX, |entry| number(entry.member)))
            .bind(number(count as u64));
        self.database
            .read("SELECT reposts", async move {
                query.fetch_all(self.database.readers()).await?.iter().map(id_entry).collect()
            })
            .await
    }

    /// Returns the lengths of the lists of posts, by post.
    pub async fn list_lengths(
        &self,
        ids: &[PostId],
    ) -> Result<HashMap<PostId, ListLengths>, Error> {
        let text = format!(
            "SELECT id, (SELECT COUNT(*) FROM likes WHERE post = posts.id AND ended = 0), \
             (SELECT COUNT(*) FROM comments WHERE post = posts.id AND comments.deleted = 0), \
             (SELECT COUNT(*) FROM reposts WHERE post = posts.id AND ended = 0) \
             FROM posts WHERE id IN ({})",
            list(1, ids.len())
        );
        let query = ids.iter().fold(statement(text), |query, id| query.bind(number(id.get())));
        self.database
            .read("SELECT posts likes comments reposts", async move {
                let rows = query.fetch_all(self.database.readers()).await?;
                let list_lengths = |row| {
                    let (likes, comments, reposts) = (read(row, 1)?, read(row, 2)?, read(row, 3)?);
                    let counts = Counts { likes, comments, reposts };
                    let list_lengths = ListLengths { counts, comment_bodies: comments };
                    Ok((read_id(row, 0, PostId::new)?, list_lengths))
                };
                rows.iter().map(list_lengths).collect()
            })
            .await
    }

    /// Returns whether a repost was on a post's list, as of its eviction.
    pub async fn is_listed(&self, (repost, post): (PostId, PostId)) -> Result<bool, Error> {
        const IS_LISTED: &str =
            "SELECT 1 FROM reposts WHERE post = $1 AND member = $2 AND ended = 0";
        let query = sqlx::query(IS_LISTED).bind(number(post.get())).bind(number(repost.get()));
        self.database
            .read("SELECT reposts", async move {
                Ok(query.fetch_optional(self.database.readers()).await?.is_some())
            })
            .await
    }

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
        self.database
            .read("SELECT comments", async move {
                query.fetch_all(self.database.readers()).await?.iter().map(id_entry).collect()
            })
            .await
    }

    /// Returns the existing comments among some.
    pub async fn comments(&self, keys: &[(PostId, CommentId)]) -> Result<Vec<Comment>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let columns = self.comment_columns();
        let backend = if self.database.is_embedded() { SQLITE } else { "" };
        let text = format!(
            "SELECT {columns} FROM comments WHERE deleted = 0 AND (post, id) IN (VALUES {})",
            rows(backend, keys.len(), 2)
        );
        let query = keys.iter().fold(statement(text), |query, (post, id)| {
            query.bind(number(post.get())).bind(number(id.get()))
        });
        self.database
            .read("SELECT comments", async move {
                let rows = query.fetch_all(self.database.readers()).await?;
                Ok(Damaged::new(RECORD).decode("comments", 2, &rows, comment))
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
        let columns = self.comment_columns();
        let text = format!(
            "SELECT {columns} FROM comments WHERE deleted = 0 AND author = $1 AND id < $2 \
             ORDER BY id DESC LIMIT $3"
        );
        let below = before.map_or(i64::MAX, |id| number(id.get()));
        let query =
            statement(text).bind(number(author.get())).bind(below).bind(number(count as u64));
        self.database
            .read("SELECT comments", async move {
                let rows = query.fetch_all(self.database.readers()).await?;
                Ok(Damaged::new(RECORD).decode("comments", 2, &rows, comment))
            })
            .await
    }
}

/// Decodes an entry whose score is its member.
pub(super) fn id_entry(row: &AnyRow) -> Result<Entry, sqlx::Error> {
    let id = read(row, 0)?;
    Ok(Entry { member: id, score: id })
}

/// Decodes a post from [`Archive::post_columns`].
pub(super) fn post(row: &AnyRow) -> Result<Post, sqlx::Error> {
    let origin = PostId::new(read(row, 3)?).zip(PostId::new(read(row, 4)?));
    let content = Content {
        author: read_id(row, 1, UserId::new)?,
        text: read_text(row, 2)?,
        origin: origin.map(|(root, reposted)| Origin { root, reposted }),
    };
    let counts = Counts { likes: read(row, 5)?, comments: read(row, 6)?, reposts: read(row, 7)? };
    let id = read_id(row, 0, PostId::new)?;
    check_partition(id.partition(), content.author.partition())?;
    Ok(Post { id, content, counts, liked: false })
}

/// Decodes a comment from [`Archive::comment_columns`].
pub(super) fn comment(row: &AnyRow) -> Result<Comment, sqlx::Error> {
    let in_reply_to = CommentId::new(read(row, 4)?)
        .zip(UserId::new(read(row, 5)?))
        .map(|(to, author)| Reply { to, author });
    let content = CommentContent {
        author: read_id(row, 2, UserId::new)?,
        text: read_text(row, 3)?,
        in_reply_to,
    };
    let (id, post) = (read_id(row, 0, CommentId::new)?, read_id(row, 1, PostId::new)?);
    check_partition(post.partition(), id.partition())?;
    Ok(Comment { id, post, content })
}
