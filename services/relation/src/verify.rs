//! Checks the invariants of the follow graph. With concurrent writes, a violation may be transient;
//! without, it is a fault.
//!
//! * The lengths in an account's row are the numbers of its edges.
//! * Of two accounts one of which blocks the other, neither follows the other.
//! * What the cache has of a list is what the database has.
//!
//! Reported apart from violations, since they are under way: account deletions.

use futures::{
    StreamExt as _, TryStreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use microblog_domain::{UserId, Violations};
use microblog_record::{
    Database, number_rows,
    sql::{read, statement},
};
use microblog_storage::{Item as _, Part, View as _};

use crate::{
    error::Error,
    graph::{EdgeKind, List},
    items::RECORDS_MAX,
    lists::{Lists, ids},
    tables::{ids_behind, read_edge},
    views::{ListView, SetLength},
};

/// The accounts of a report.
const PAGE: usize = 500;

/// The most entries that are read at the same time.
const CONCURRENCY: usize = 8;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The number of accounts checked.
    pub(crate) users: u64,
    /// The number of follows checked, on the side of the follower.
    pub(crate) follows: u64,
    /// The violations.
    pub(crate) violations: Violations,
    /// What is under way.
    pub(crate) pending: Violations,
}

/// Checks one account, or all of them, some in each report.
pub(crate) fn reports(
    lists: Lists,
    user: Option<UserId>,
) -> BoxStream<'static, Result<Report, Error>> {
    if let Some(user) = user {
        return stream::once(async move { check(&lists, &[user]).await }).boxed();
    }
    let pages = stream::try_unfold(Some(0), move |after| {
        let lists = lists.clone();
        async move {
            let Some(after) = after else { return Ok(None) };
            let database = lists.database().await?;
            let users = ids_behind(database, "accounts", after, PAGE).await?;
            let next = users.last().filter(|_| users.len() == PAGE).map(|last| last.get());
            Ok(Some((check(&lists, &users).await?, next)))
        }
    });
    pages.boxed()
}

async fn check(lists: &Lists, users: &[UserId]) -> Result<Report, Error> {
    let mut report = Report { users: users.len() as u64, ..Report::default() };
    if users.is_empty() {
        return Ok(report);
    }
    let database = lists.database().await?;
    check_lengths(database, users, &mut report).await?;
    check_blocks(database, users, &mut report).await?;
    check_deletions(database, users, &mut report).await?;
    let all = users.iter().flat_map(|user| List::ALL.map(|list| (list, *user)));
    let check = |(list, user)| -> BoxFuture<'_, _> { Box::pin(check_entry(lists, list, user)) };
    let entries: Vec<_> = all.map(check).collect();
    let mut entries = stream::iter(entries).buffer_unordered(CONCURRENCY);
    while let Some(violation) = entries.try_next().await? {
        if let Some(violation) = violation {
            report.violations.check(false, || violation);
        }
    }
    Ok(report)
}

async fn check_lengths(
    database: &Database,
    users: &[UserId],
    report: &mut Report,
) -> Result<(), Error> {
    for list in List::ALL {
        let (name, rows) = (list.name(), list.rows());
        let is_one = number_rows::contains(database.is_embedded(), "id", 1);
        // In one snapshot.
        let text = format!(
            "SELECT id, {name}, (SELECT COUNT(*) FROM {rows} WHERE owner = accounts.id) \
             FROM accounts WHERE {is_one}"
        );
        for row in rows_of(database, text, users).await? {
            let (user, length, edges) = (cell(&row, 0)?, cell(&row, 1)?, cell(&row, 2)?);
            if list == List::Following {
                report.follows += edges;
            }
            report.violations.check(length == edges, || {
                format!("{name} of {user}: the account has {length}, there are {edges}")
            });
        }
    }
    Ok(())
}

async fn check_blocks(
    database: &Database,
    users: &[UserId],
    report: &mut Report,
) -> Result<(), Error> {
    let (follows, blocks) = (EdgeKind::Follow.table(), EdgeKind::Block.table());
    let is_one = number_rows::contains(database.is_embedded(), "b.source", 1);
    let text = format!(
        "SELECT b.source, b.target FROM {blocks} AS b JOIN {follows} AS f \
         ON f.source = b.source AND f.target = b.target OR f.source = b.target AND f.target = b.source \
         WHERE {is_one}"
    );
    for row in rows_of(database, text, users).await? {
        let edge = read_edge(&row, 0).map_err(record_error)?;
        report.violations.check(false, || {
            format!("{} blocks {}, and one follows the other", edge.from, edge.to)
        });
    }
    Ok(())
}

async fn check_deletions(
    database: &Database,
    users: &[UserId],
    report: &mut Report,
) -> Result<(), Error> {
    let is_one = number_rows::contains(database.is_embedded(), "id", 1);
    let text = format!("SELECT id FROM deletions WHERE {is_one}");
    for row in rows_of(database, text, users).await? {
        let user = cell(&row, 0)?;
        report.pending.check(false, || format!("{user}: the deletion is in progress"));
    }
    Ok(())
}

// Compares the entry of a list with the database. Returns a violation.
async fn check_entry(lists: &Lists, list: List, user: UserId) -> Result<Option<String>, Error> {
    let part = Part { item: list, id: user.get(), view: ListView::All };
    let Some(cached) = lists.reader().peek(&[part]).await.pop().flatten() else { return Ok(None) };
    let loaded = list.load(lists.database().await?, user.get()).await?;
    let stored = ListView::All.of_item(&loaded.contents);
    // The entry of a long list may have more of the oldest ones than a load reads.
    let newest = cached.records.len().saturating_sub(RECORDS_MAX);
    let is_same = cached.front == stored.front && cached.records[newest..] == stored.records;
    let accounts = ids(&stored.records);
    let view = ListView::Members(&accounts);
    let members = lists.reader().peek(&[Part { item: list, id: user.get(), view }]).await.pop();
    // Without an answer, the entry has gone, or the next read removes it.
    let members = members.flatten().map(|part| part.members).unwrap_or_default();
    let set =
        lists.reader().peek(&[Part { item: list, id: user.get(), view: SetLength }]).await.pop();
    let has_others = set.flatten().is_some_and(|length| length > cached.records.len());
    if is_same && !has_others && members.iter().all(|&is_member| is_member) {
        return Ok(None);
    }
    // It may have changed between the two reads.
    let again = lists.reader().peek(&[part]).await.pop().flatten();
    Ok((again.as_ref() == Some(&cached)).then(|| {
        let (name, cached, stored) = (list.name(), cached.records.len(), stored.records.len());
        format!(
            "{name} of {user}: the cache differs from the database ({cached} and {stored} entries)"
        )
    }))
}

// Reads the rows of some accounts, the parameter of a statement.
async fn rows_of(
    database: &Database,
    text: String,
    users: &[UserId],
) -> Result<Vec<sqlx::any::AnyRow>, Error> {
    let users = users.iter().map(|user| user.get());
    let query = number_rows::bind_column(statement(text), database.is_embedded(), users);
    // Those of an account with millions of followers take longer than a call may.
    let read = async { query.fetch_all(database.writers()).await };
    Ok(database.write("SELECT edges", read).await?)
}

fn cell(row: &sqlx::any::AnyRow, column: usize) -> Result<u64, Error> {
    read(row, column).map_err(record_error)
}

fn record_error(error: sqlx::Error) -> Error {
    Error::Database(microblog_record::Error::from(error))
}
