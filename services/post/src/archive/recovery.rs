//! Reads of a whole partition, for recoveries.

use std::time::{Duration, SystemTime};

use microblog_domain::{Partition, PostId, RequestId, Stamp, UserId};
use microblog_record::{
    Damaged, Error,
    sql::{
        check_partition, list, next_page, number, read, read_id, read_text, statement, text_column,
    },
};
use sqlx::{Any, any::AnyArguments, any::AnyRow, query::Query};

use super::Archive;
use crate::post::{Backlink, MadeByRequest};

/// The timeout of reading one page.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// How far ahead of the time ids may be.
const AHEAD_MAX: Duration = Duration::from_secs(5 * 60);

impl Archive {
    /// Returns the greatest id of a post, and of a post or comment, of a partition; 0 if there is
    /// none.
    pub(crate) async fn newest_ids(&self, partition: Partition) -> Result<(u64, u64), Error> {
        const POST: &str = "SELECT COALESCE(MAX(id), 0) FROM posts \
            WHERE id / 4 % 1024 = $1 AND id BETWEEN 1 AND $2";
        // A join might read all comments.
        const COMMENT: &str = "SELECT COALESCE(MAX((SELECT MAX(id) FROM comments \
            WHERE post = posts.id AND id BETWEEN 1 AND $2)), 0) FROM posts WHERE id / 4 % 1024 = $1";
        // A greater one is damaged: it would stop the clock.
        let limit = number(Stamp::first_at(SystemTime::now() + AHEAD_MAX, partition).get());
        let newest = async |text| {
            let rows = self.rows(of(text, partition).bind(limit)).await?;
            let newest = rows.first().map(|row| read(row, 0)).transpose()?;
            Ok::<_, Error>(newest.unwrap_or_default())
        };
        let (post, comment) = futures::try_join!(newest(POST), newest(COMMENT))?;
        Ok((post, comment.max(post)))
    }

    /// Returns the deleted accounts of a partition, with the stamps of their deletion and whether it
    /// is complete.
    pub(crate) async fn deleted_accounts(
        &self,
        partition: Partition,
        damaged: &Damaged,
    ) -> Result<Vec<(UserId, u64, bool)>, Error> {
        const ALL: &str = "SELECT account, since, complete FROM deleted_accounts \
            WHERE account / 4 % 1024 = $1";
        let deletion = |row: &AnyRow| {
            let since = read_id(row, 1, Stamp::new)?.get();
            Ok((read_id(row, 0, UserId::new)?, since, read(row, 2)? == 1))
        };
        let rows = self.rows(of(ALL, partition)).await?;
        Ok(damaged.decode("deleted_accounts", 1, &rows, deletion))
    }

    /// Returns which of some posts have a row, also as deleted ones.
    pub(crate) async fn known(&self, ids: &[PostId]) -> Result<Vec<PostId>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let text = format!("SELECT id FROM posts WHERE id IN ({})", list(1, ids.len()));
        let query = ids.iter().fold(statement(text), |query, id| query.bind(number(id.get())));
        let rows = self.rows(query).await?;
        Ok(rows.iter().map(|row| read_id(row, 0, PostId::new)).collect::<Result<_, _>>()?)
    }

    /// Returns a page of the authors of a partition with the numbers of their posts, and the start
    /// of the next one, if there may be one.
    pub(crate) async fn authors(
        &self,
        partition: Partition,
        after: i64,
        count: usize,
        damaged: &Damaged,
    ) -> Result<(Vec<(UserId, u64)>, Option<i64>), Error> {
        const PAGE: &str = "SELECT author, COUNT(*) FROM posts \
            WHERE id / 4 % 1024 = $1 AND deleted = 0 AND author > $2 \
            GROUP BY author ORDER BY author LIMIT $3";
        let author = |row: &AnyRow| {
            let author = read_id(row, 0, UserId::new)?;
            check_partition(partition, author.partition())?;
            Ok((author, read(row, 1)?))
        };
        let rows = self.rows(of(PAGE, partition).bind(after).bind(count as i64)).await?;
        Ok((damaged.decode("posts", 1, &rows, author), next_page(&rows, count)))
    }

    /// Returns a page of the requests of a partition, in the order of what they made, and the start
    /// of the next one, if there may be one.
    pub(crate) async fn requests(
        &self,
        partition: Partition,
        after: i64,
        count: usize,
        damaged: &Damaged,
    ) -> Result<(Vec<MadeByRequest>, Option<i64>), Error> {
        let text = format!(
            "SELECT id, author, {}, post FROM requests \
             WHERE id / 4 % 1024 = $1 AND id > $2 ORDER BY id LIMIT $3",
            text_column(&self.database, "request")
        );
        let made = |row: &AnyRow| {
            let request = RequestId::parse("request", &read_text(row, 2)?)
                .map_err(|_| sqlx::Error::Decode("request id".into()))?;
            let (id, author) = (read_id(row, 0, Stamp::new)?.get(), read_id(row, 1, UserId::new)?);
            let post = PostId::new(read(row, 3)?);
            let of = post.map_or(author.partition(), PostId::partition);
            check_partition(partition, of)?;
            Ok(MadeByRequest { author, request, id, post })
        };
        let query = statement(text).bind(i64::from(partition.number()));
        let rows = self.rows(query.bind(after).bind(count as i64)).await?;
        Ok((damaged.decode("requests", 1, &rows, made), next_page(&rows, count)))
    }

    /// Returns the reposts to or from posts of a partition that are on one side only: existing
    /// ones that are not on the list of an existing post, and ones on a list that do not exist.
    pub(crate) async fn one_sided(
        &self,
        partition: Partition,
        damaged: &Damaged,
    ) -> Result<Vec<Backlink>, Error> {
        // Without the condition of their indexes, the columns would be searched in all posts.
        let unlisted = |column: &str, of: &str| {
            format!(
                "SELECT post.id AS post, repost.id AS member FROM posts AS repost \
                 JOIN posts AS post ON post.id = repost.{column} AND repost.{column} <> 0 \
                 WHERE {of}.id / 4 % 1024 = $1 AND repost.deleted = 0 AND post.deleted = 0 \
                 AND NOT EXISTS (SELECT 1 FROM reposts WHERE reposts.post = post.id \
                 AND reposts.member = repost.id AND reposts.ended = 0)"
            )
        };
        let missing = |of: &str| {
            format!(
                "SELECT reposts.post, reposts.member FROM reposts \
                 JOIN posts AS post ON post.id = reposts.post \
                 WHERE {of} / 4 % 1024 = $1 AND reposts.ended = 0 AND NOT EXISTS (SELECT 1 \
                 FROM posts AS repost WHERE repost.id = reposts.member AND repost.deleted = 0)"
            )
        };
        let mut found = Vec::new();
        for text in [
            unlisted("root", "repost"),
            unlisted("reposted", "repost"),
            unlisted("root", "post"),
            unlisted("reposted", "post"),
            missing("reposts.member"),
            missing("post.id"),
        ] {
            let query = statement(text).bind(i64::from(partition.number()));
            let backlink = |row: &AnyRow| {
                let (target, repost) =
                    (read_id(row, 0, PostId::new)?, read_id(row, 1, PostId::new)?);
                Ok(Backlink { repost, target })
            };
            let rows = self.rows(query).await?;
            found.extend(damaged.decode("reposts", 2, &rows, backlink));
        }
        Ok(found)
    }

    /// Returns the rows of a long read.
    pub(super) async fn rows(
        &self,
        query: Query<'static, Any, AnyArguments>,
    ) -> Result<Vec<AnyRow>, Error> {
        let rows = async move { query.fetch_all(self.database.writers()).await };
        self.database.read_within(READ_TIMEOUT, "SELECT posts", rows).await
    }
}

// Returns a statement whose first parameter is a partition.
fn of(text: &'static str, partition: Partition) -> Query<'static, Any, AnyArguments> {
    sqlx::query(text).bind(i64::from(partition.number()))
}
