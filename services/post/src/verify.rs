//! Checks the invariants of posts. With concurrent writes, a violation may be transient; without, it is a
//! fault.
//!
//! * Each count of a post is the length of its list, and an account has as many posts as its row says.
//! * A post has a text, and is on the list of each post that counts it.
//! * What the cache has of a post, a list or an account's likes is what the database has.
//!
//! Reported apart from violations, since they are under way: deletions, and deliveries.

use std::iter;

use futures::{
    StreamExt as _, TryStreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use microblog_domain::{UserId, Violations};
use microblog_record::{
    Database,
    sql::{number, statement},
};
use microblog_storage::{Contents, Item as _};
use sqlx::any::AnyRow;

use crate::{
    error::Error,
    items::{CommentsEntry, LikedEntry, ListEntry, PostItem, read_post},
    posts::{Posts, part},
    tables::{packed, read_packed},
};

/// The rows of a report.
const PAGE: usize = 200;

/// The most entries that are read at the same time.
const CONCURRENCY: usize = 8;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The number of checked posts.
    pub(crate) posts: u64,
    /// The number of likes, comments and reposts that were counted.
    pub(crate) entries: u64,
    /// The violations.
    pub(crate) violations: Violations,
    /// What is under way.
    pub(crate) pending: Violations,
}

/// Checks the posts of one account, or all posts and accounts, some in each report, and lists what is under way.
pub(crate) fn reports(
    posts: Posts,
    user: Option<UserId>,
) -> BoxStream<'static, Result<Report, Error>> {
    let checks: Vec<Check> = match user {
        Some(user) => vec![Check::PostsOf(user), Check::Account(user)],
        None => vec![Check::Posts, Check::Accounts, Check::Pending],
    };
    let reports = stream::iter(checks).flat_map(move |check| {
        let posts = posts.clone();
        let pages = stream::try_unfold(Some(0), move |after| {
            let posts = posts.clone();
            async move {
                let Some(after) = after else { return Ok(None) };
                check.page(&posts, after).await.map(Some)
            }
        });
        pages.boxed()
    });
    reports.boxed()
}

/// What is checked, in pages.
#[derive(Clone, Copy)]
enum Check {
    Posts,
    PostsOf(UserId),
    Accounts,
    Account(UserId),
    Pending,
}

impl Check {
    // Returns the report of the rows behind an id, and the last one, if more may follow.
    async fn page(self, posts: &Posts, after: u64) -> Result<(Report, Option<u64>), Error> {
        let database = posts.tables.database().await?;
        match self {
            Self::Posts => check_posts(posts, database, "id > $1 AND $2 = 0", [after, 0]).await,
            Self::PostsOf(user) => {
                let of_user = format!(
                    "id IN (SELECT id FROM texts WHERE author = $2 AND id > $1 ORDER BY id LIMIT {PAGE})"
                );
                check_posts(posts, database, &of_user, [after, user.get()]).await
            }
            Self::Accounts => check_accounts(posts, database, "id > $1", after).await,
            Self::Account(user) => {
                let (report, _) = check_accounts(posts, database, "id = $1", user.get()).await?;
                Ok((report, None))
            }
            Self::Pending => Ok((pending(database).await?, None)),
        }
    }
}

async fn check_posts(
    posts: &Posts,
    database: &Database,
    condition: &str,
    parameters: [u64; 2],
) -> Result<(Report, Option<u64>), Error> {
    let count =
        |table: &str, key: &str| format!("(SELECT COUNT(*) FROM {table} WHERE {key} = posts.id)");
    let (likes, comments, reposts, texts) = (
        count("likes", "post"),
        count("comments", "post"),
        count("reposts", "target"),
        count("texts", "id"),
    );
    // Of a post that counts this one, whether this one is on its list; 1 if it is not there any more.
    let is_on_list = |target: &str| {
        format!(
            "(SELECT CASE WHEN {target} = 0 OR NOT EXISTS (SELECT 1 FROM posts AS p WHERE p.id = {target}) \
             OR EXISTS (SELECT 1 FROM reposts WHERE target = {target} AND repost = posts.id) \
             THEN 1 ELSE 0 END)"
        )
    };
    let (of_root, of_reposted) = (is_on_list("posts.root"), is_on_list("posts.reposted"));
    let columns = packed(&[
        "id",
        "likes",
        &likes,
        "comments",
        &comments,
        "reposts",
        &reposts,
        &texts,
        &of_root,
        &of_reposted,
    ]);
    // In one snapshot.
    let text = format!("SELECT {columns} FROM posts WHERE {condition} ORDER BY id LIMIT {PAGE}");
    let rows = rows(database, text, &parameters, read_packed::<10>).await?;
    let mut report = Report { posts: rows.len() as u64, ..Report::default() };
    for &[id, likes, liked, comments, commented, reposts, reposted, texts, of_root, of_reposted] in
        &rows
    {
        report.entries += liked + commented + reposted;
        for (what, count, entries) in [
            ("likes", likes, liked),
            ("comments", comments, commented),
            ("reposts", reposts, reposted),
        ] {
            report.violations.check(count == entries, || {
                format!("{what} of post {id}: it has {count}, there are {entries}")
            });
        }
        report.violations.check(texts == 1, || format!("post {id} has no text"));
        report.violations.check(of_root + of_reposted == 2, || {
            format!("post {id} is not on the list of a post that counts it")
        });
    }
    let items = [PostItem::Post, PostItem::Comments, PostItem::Reposts];
    let items = rows.iter().flat_map(|row| items.map(|item| (item, row[0])));
    check_entries(posts, database, items, &mut report).await?;
    let next = rows.last().filter(|_| rows.len() == PAGE).map(|row| row[0]);
    Ok((report, next))
}

async fn check_accounts(
    posts: &Posts,
    database: &Database,
    condition: &str,
    id: u64,
) -> Result<(Report, Option<u64>), Error> {
    let texts = "(SELECT COUNT(*) FROM texts WHERE author = accounts.id)";
    let columns = packed(&["id", "posts", texts]);
    let text = format!("SELECT {columns} FROM accounts WHERE {condition} ORDER BY id LIMIT {PAGE}");
    let rows = rows(database, text, &[id], read_packed::<3>).await?;
    let mut report = Report::default();
    for &[id, posts, texts] in &rows {
        report.violations.check(posts == texts, || {
            format!("posts of account {id}: it has {posts}, there are {texts}")
        });
    }
    let items = [PostItem::Author, PostItem::Liked];
    let items = rows.iter().flat_map(|row| items.map(|item| (item, row[0])));
    check_entries(posts, database, items, &mut report).await?;
    let next = rows.last().filter(|_| rows.len() == PAGE).map(|row| row[0]);
    Ok((report, next))
}

async fn rows<T: Send>(
    database: &Database,
    text: String,
    parameters: &[u64],
    row: fn(&AnyRow, usize) -> Result<T, sqlx::Error>,
) -> Result<Vec<T>, Error> {
    let read = async {
        let query = parameters
            .iter()
            .fold(statement(text), |query, parameter| query.bind(number(*parameter)));
        query.fetch_all(database.writers()).await?.iter().map(|of| row(of, 0)).collect()
    };
    // A post may have millions of likes: within the time of a write, and no concern of the calls.
    Ok(database.write("SELECT check", read).await?)
}

async fn check_entries(
    posts: &Posts,
    database: &Database,
    items: impl Iterator<Item = (PostItem, u64)>,
    report: &mut Report,
) -> Result<(), Error> {
    let check =
        |(item, id)| -> BoxFuture<'_, _> { Box::pin(check_entry(posts, database, item, id)) };
    let checks: Vec<_> = items.map(check).collect();
    let mut checks = stream::iter(checks).buffer_unordered(CONCURRENCY);
    while let Some(violation) = checks.try_next().await? {
        if let Some(violation) = violation {
            report.violations.check(false, || violation);
        }
    }
    Ok(())
}

// Compares the entry of an item with the database. Returns a violation.
async fn check_entry(
    posts: &Posts,
    database: &Database,
    item: PostItem,
    id: u64,
) -> Result<Option<String>, Error> {
    let cached = async || posts.reader.peek(&[part(item, id)]).await.pop().flatten();
    let Some(found) = cached().await else { return Ok(None) };
    let stored = item.load(database, id).await?.contents;
    if is_same(item, &found, &stored) {
        return Ok(None);
    }
    // It may have changed between the two reads.
    let again = cached().await;
    let kind = item.kind();
    Ok((again == Some(found))
        .then(|| format!("{kind} of {id}: the cache differs from the database")))
}

fn is_same(item: PostItem, cached: &Contents, stored: &Contents) -> bool {
    match item {
        PostItem::Post => {
            read_post(&cached.front) == read_post(&stored.front) && is_same_list(cached, stored)
        }
        PostItem::Comments => {
            CommentsEntry::read(&cached.front) == CommentsEntry::read(&stored.front)
        }
        // An entry may say for a while that there is no such post.
        PostItem::Reposts => ListEntry::read(cached).is_none() || is_same_list(cached, stored),
        PostItem::Author => is_same_list(cached, stored),
        PostItem::Liked => LikedEntry::read(cached).agrees(&LikedEntry::read(stored)),
    }
}

// A list that changed in place may have more or fewer entries than one that is loaded.
fn is_same_list(cached: &Contents, stored: &Contents) -> bool {
    match [cached, stored].map(ListEntry::read) {
        [Some(cached), Some(stored)] => {
            let newest = iter::zip(cached.records.iter().rev(), stored.records.iter().rev());
            cached.length == stored.length && newest.into_iter().all(|(a, b)| a == b)
        }
        [cached, stored] => cached == stored,
    }
}

// Lists what is under way.
async fn pending(database: &Database) -> Result<Report, Error> {
    let mut report = Report::default();
    for (table, key, what) in [
        ("deletions", "id", "the deletion of the account is in progress"),
        ("deleted_posts", "id", "what belonged to the post is being deleted"),
        // Before what the job takes from it.
        ("redeliveries", "since", "posts delivered since then are to be delivered again"),
        ("undelivered", "id", "the post is not delivered"),
    ] {
        let text = format!(
            "SELECT CAST({key} AS VARCHAR(20)) FROM {table} ORDER BY {key} LIMIT {}",
            Violations::MAX
        );
        for [id] in rows(database, text, &[], read_packed::<1>).await? {
            report.pending.check(false, || format!("{id}: {what}"));
        }
    }
    Ok(report)
}
