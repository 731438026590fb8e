//! Reads of a whole partition, for recoveries.

use std::time::Duration;

use microblog_domain::{Partition, PostId, RequestId, UserId};
use microblog_record::{
    Error,
    sql::{list, number, read, read_id, statement},
};
use sqlx::{Any, Row as _, any::AnyArguments, any::AnyRow, query::Query};

use super::Archive;
use crate::post::{Backlink, MadeByRequest};

/// The timeout of reading one page.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

impl Archive {
    /// Returns the greatest id of a post, and of a post or comment, of a partition; 0 if there is
    /// none.
    pub(crate) async fn newest_ids(&self, partition: Partition) -> Result<(u64, u64), Error> {
        const POST: &str = "SELECT COALESCE(MAX(id), 0) FROM posts WHERE id / 4 % 1024 = $1";
        // A join might read all comments.
        const COMMENT: &str = "SELECT COALESCE(MAX((SELECT MAX(id) FROM comments \
            WHERE post = posts.id)), 0) FROM posts WHERE id / 4 % 1024 = $1";
        let newest = |text| self.rows(of(text, partition), |row| read(row, 0));
        let (posts, comments) = futures::try_join!(newest(POST), newest(COMMENT))?;
        let post = posts.into_iter().max().unwrap_or_default();
        Ok((post, comments.into_iter().max().unwrap_or_default().max(post)))
    }

    /// Returns the deleted accounts of a partition, with the stamps of their deletion and whether it
    /// is complete.
    pub(crate) async fn deleted_accounts(
        &self,
        partition: Partition,
    ) -> Result<Vec<(UserId, u64, bool)>, Error> {
        const ALL: &str = "SELECT account, since, complete FROM deleted_accounts \
            WHERE account / 4 % 1024 = $1";
        let deletion =
            |row: &AnyRow| Ok((read_id(row, 0, UserId::new)?, read(row, 1)?, read(row, 2)? == 1));
        self.rows(of(ALL, partition), deletion).await
    }

    /// Returns which of some posts have a row, also as deleted ones.
    pub(crate) async fn known(&self, ids: &[PostId]) -> Result<Vec<PostId>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let text = format!("SELECT id FROM posts WHERE id IN ({})", list(1, ids.len()));
        let query = ids.iter().fold(statement(text), |query, id| query.bind(number(id.get())));
        self.rows(query, |row| read_id(row, 0, PostId::new)).await
    }

    /// Returns a page of the authors of a partition with the numbers of their posts.
    pub(crate) async fn authors(
        &self,
        partition: Partition,
        after: Option<UserId>,
        count: usize,
    ) -> Result<Vec<(UserId, u64)>, Error> {
        const PAGE: &str = "SELECT author, COUNT(*) FROM posts \
            WHERE id / 4 % 1024 = $1 AND deleted = 0 AND author > $2 \
            GROUP BY author ORDER BY author LIMIT $3";
        let after = after.map_or(0, |author| number(author.get()));
        let query = of(PAGE, partition).bind(after).bind(number(count as u64));
        self.rows(query, |row| Ok((read_id(row, 0, UserId::new)?, read(row, 1)?))).await
    }

    /// Returns a page of the requests of a partition, in the order of what they made.
    pub(crate) async fn requests(
        &self,
        partition: Partition,
        after: u64,
        count: usize,
    ) -> Result<Vec<MadeByRequest>, Error> {
        const PAGE: &str = "SELECT id, author, request, post FROM requests \
            WHERE id / 4 % 1024 = $1 AND id > $2 ORDER BY id LIMIT $3";
        let made = |row: &AnyRow| {
            let request = RequestId::parse("request", row.try_get(2)?)
                .map_err(|_| sqlx::Error::Decode("request id".into()))?;
            let (id, author) = (read(row, 0)?, read_id(row, 1, UserId::new)?);
            Ok(MadeByRequest { author, request, id, post: PostId::new(read(row, 3)?) })
        };
        let query = of(PAGE, partition).bind(number(after)).bind(number(count as u64));
        self.rows(query, made).await
    }

    /// Returns the reposts to or from posts of a partition that are on one side only: existing
    /// ones that are not on the list of an existing post, and ones on a list that do not exist.
    pub(crate) async fn one_sided(&self, partition: Partition) -> Result<Vec<Backlink>, Error> {
        // Without the condition of their indexes, the columns would be searched in all posts.
        let unlisted = |column: &str, of: &str| {
            format!(
                "SELECT repost.id, post.id FROM posts AS repost \
                 JOIN posts AS post ON post.id = repost.{column} AND repost.{column} <> 0 \
                 WHERE {of}.id / 4 % 1024 = $1 AND repost.deleted = 0 AND post.deleted = 0 \
                 AND NOT EXISTS (SELECT 1 FROM reposts WHERE reposts.post = post.id \
                 AND reposts.member = repost.id AND reposts.ended = 0)"
            )
        };
        let missing = |of: &str| {
            format!(
                "SELECT reposts.member, reposts.post FROM reposts \
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
                let (repost, target) =
                    (read_id(row, 0, PostId::new)?, read_id(row, 1, PostId::new)?);
                Ok(Backlink { repost, target })
            };
            found.extend(self.rows(query, backlink).await?);
        }
        Ok(found)
    }

    async fn rows<T: Send>(
        &self,
        query: Query<'static, Any, AnyArguments>,
        decode: impl Fn(&AnyRow) -> Result<T, sqlx::Error> + Send,
    ) -> Result<Vec<T>, Error> {
        self.database
            .read_within(READ_TIMEOUT, "SELECT posts", async move {
                let rows = query.fetch_all(self.database.writers()).await?;
                rows.iter().map(decode).collect()
            })
            .await
    }
}

// Returns a statement whose first parameter is a partition.
fn of(text: &'static str, partition: Partition) -> Query<'static, Any, AnyArguments> {
    sqlx::query(text).bind(i64::from(partition.number()))
}
