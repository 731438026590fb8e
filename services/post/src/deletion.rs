//! What is deleted later than the call that deletes it. Jobs of one replica at a time do it, some in each
//! transaction; after a crash, another one continues with what remains.
//!
//! - A **post** is gone at once, with its text. Its likes, comments and reposts are removed later: nobody
//!   reads them without it.
//! - An **account** is marked first, for good: it cannot write any more, so what it has only shrinks. Then its
//!   posts, likes and comments are deleted by the same calls as its own.

use futures::{StreamExt as _, future::BoxFuture, stream};
use microblog_domain::{CommentId, PostId, UserId};
use microblog_record::{
    Database,
    sql::{number, read, read_id, statement},
};
use microblog_storage::{Lease, Tables, Writer};
use sqlx::any::AnyRow;

use crate::{error::Error, group::Calls, metrics::DeletionMetrics, steps::Call};

/// The most calls at the same time, and the most rows that a statement removes.
const PAGE: usize = 200;

/// The most pages of an account or a post in a round, and of accounts and posts.
const PAGES: usize = 20;

/// The most accounts or posts at the same time.
const CONCURRENCY: usize = 4;

/// Deletes what the deleted accounts have, and what the deleted posts have left, if this replica is the one
/// that does. Continues after an error; returns the first one.
pub(crate) async fn delete_rest(
    tables: &Tables,
    writer: &Writer<Calls>,
    lease: &Lease,
    metrics: &DeletionMetrics,
) -> Result<(), Error> {
    let database = tables.database().await?;
    let rest = Rest { database, writer, lease };
    let accounts = rest.all(Kind::Account).await;
    let outcome = accounts.and(rest.all(Kind::Post).await);
    for kind in [Kind::Account, Kind::Post] {
        metrics.note(kind.name(), rest.count(kind.table()).await?);
    }
    outcome
}

/// What was deleted, and has left something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Account,
    Post,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::Post => "post",
        }
    }

    const fn table(self) -> &'static str {
        match self {
            Self::Account => "deletions",
            Self::Post => "deleted_posts",
        }
    }
}

struct Rest<'a> {
    database: &'a Database,
    writer: &'a Writer<Calls>,
    lease: &'a Lease,
}

impl Rest<'_> {
    // Deletes what some pages of a kind have left, some of each: accounts do not wait for posts, nor small ones
    // for large ones.
    async fn all(&self, kind: Kind) -> Result<(), Error> {
        let (mut after, mut outcome) = (0, Ok(()));
        for _ in 0..PAGES {
            if !self.lease.take(self.database).await? {
                break;
            }
            let ids = self.ids(kind, after).await?;
            let Some(&last) = ids.last() else { break };
            let rest = match kind {
                Kind::Account => ids,
                Kind::Post => {
                    self.forget_posts([after, last]).await?;
                    let rest = self.ids(kind, after).await?;
                    rest.into_iter().filter(|id| *id <= last).collect()
                }
            };
            let delete = |id| -> BoxFuture<'_, _> {
                match kind {
                    Kind::Account => Box::pin(self.of_account(id)),
                    Kind::Post => Box::pin(self.of_post(id)),
                }
            };
            let deletions: Vec<_> = rest.into_iter().map(delete).collect();
            let mut deletions = stream::iter(deletions).buffer_unordered(CONCURRENCY);
            while let Some(deleted) = deletions.next().await {
                outcome = outcome.and(deleted);
            }
            after = last;
        }
        outcome
    }

    async fn ids(&self, kind: Kind, after: u64) -> Result<Vec<u64>, Error> {
        let table = kind.table();
        let text = format!("SELECT id FROM {table} WHERE id > $1 ORDER BY id LIMIT {PAGE}");
        self.read(text, after, |row| read(row, 0)).await
    }

    // Forgets the deleted posts between two ids, the last one included, that have nothing left.
    async fn forget_posts(&self, range: [u64; 2]) -> Result<(), Error> {
        self.execute(&forget_posts_text(), &range).await.map(drop)
    }

    async fn of_account(&self, id: u64) -> Result<(), Error> {
        let Some(user) = UserId::new(id) else { return Ok(()) };
        let post = |row: &AnyRow| read_id(row, 0, PostId::new);
        let posts = "SELECT id FROM texts WHERE author = $1 ORDER BY id";
        let likes = "SELECT post FROM likes WHERE account = $1 ORDER BY post";
        let comments = "SELECT post, id FROM comments WHERE author = $1 ORDER BY id";
        let comment =
            |row: &AnyRow| Ok((read_id(row, 0, PostId::new)?, read_id(row, 1, CommentId::new)?));
        let delete = |(post, comment)| Call::DeleteComment(user, post, comment);
        if self.until_empty(posts, id, post, |post| Call::Delete(user, post)).await?
            && self.until_empty(likes, id, post, |post| Call::Unlike(user, post)).await?
            && self.until_empty(comments, id, comment, delete).await?
        {
            self.writer.write(Call::Deleted(user)).await?;
        }
        Ok(())
    }

    async fn of_post(&self, id: u64) -> Result<(), Error> {
        let Some(post) = PostId::new(id) else { return Ok(()) };
        // What an account likes is cached.
        let likes = "SELECT account FROM likes WHERE post = $1";
        let account = |row: &AnyRow| read_id(row, 0, UserId::new);
        if !self.until_empty(likes, id, account, |user| Call::Unlike(user, post)).await? {
            return Ok(());
        }
        for text in LEFTOVERS.map(remove_text) {
            for _ in 0..PAGES {
                if self.execute(&text, &[id]).await? == 0 {
                    break;
                }
            }
        }
        self.forget_posts([id - 1, id]).await
    }

    // Writes a call for each row of a statement, until there are none, but for some pages in a round: others
    // wait. Returns whether there are none.
    async fn until_empty<T: Send>(
        &self,
        rows: &str,
        id: u64,
        read: fn(&AnyRow) -> Result<T, sqlx::Error>,
        call: impl Fn(T) -> Call,
    ) -> Result<bool, Error> {
        for _ in 0..PAGES {
            let rows = self.read(format!("{rows} LIMIT {PAGE}"), id, read).await?;
            if rows.is_empty() {
                return Ok(true);
            }
            if !self.lease.take(self.database).await? {
                return Ok(false);
            }
            let calls = rows.into_iter().map(|row| self.writer.write(call(row)));
            futures::future::try_join_all(calls).await?;
        }
        Ok(false)
    }

    async fn read<T: Send>(
        &self,
        text: String,
        id: u64,
        row: fn(&AnyRow) -> Result<T, sqlx::Error>,
    ) -> Result<Vec<T>, Error> {
        let read = async {
            let query = statement(text).bind(number(id));
            query.fetch_all(self.database.readers()).await?.iter().map(row).collect()
        };
        Ok(self.database.read("SELECT rest", read).await?)
    }

    async fn count(&self, table: &str) -> Result<u64, Error> {
        let query = statement(format!("SELECT COUNT(*) FROM {table}"));
        let count = async { read(&query.fetch_one(self.database.readers()).await?, 0) };
        Ok(self.database.read("SELECT rest", count).await?)
    }

    async fn execute(&self, text: &str, parameters: &[u64]) -> Result<u64, Error> {
        let query = statement(text.to_owned());
        let query = parameters.iter().fold(query, |query, id| query.bind(number(*id)));
        let execute = async { Ok(query.execute(self.database.writers()).await?.rows_affected()) };
        Ok(self.database.write("DELETE rest", execute).await?)
    }
}

/// What is removed without a call: the tables, and in each the columns of the deleted post and of the rest of the
/// key.
const LEFTOVERS: [[&str; 3]; 2] = [["comments", "post", "id"], ["reposts", "target", "repost"]];

/// Returns the statement that removes a page of what a deleted post has left, by a range of keys.
pub(crate) fn remove_text([table, of, key]: [&str; 3]) -> String {
    format!(
        "DELETE FROM {table} WHERE {of} = $1 \
         AND {key} <= COALESCE((SELECT {key} FROM {table} WHERE {of} = $1 \
         ORDER BY {key} LIMIT 1 OFFSET {PAGE}), {}) \
         AND (SELECT id FROM deleted_posts WHERE id = $1) IS NOT NULL",
        i64::MAX
    )
}

/// Returns the statement that forgets the deleted posts between two ids, the last one included, that have nothing
/// left.
pub(crate) fn forget_posts_text() -> String {
    let has_no = |[table, of, key]: [&str; 3]| {
        format!(" AND (SELECT {key} FROM {table} WHERE {of} = deleted_posts.id LIMIT 1) IS NULL")
    };
    let likes = has_no(["likes", "post", "account"]);
    let others = LEFTOVERS.map(has_no).concat();
    format!("DELETE FROM deleted_posts WHERE id > $1 AND id <= $2{likes}{others}")
}
