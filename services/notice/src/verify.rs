//! Checks the invariants of notices. With concurrent writes, a violation may be transient; without, it is a
//! fault.
//!
//! * An account has as many notices and mentions as its row says, and no notice is newer than its newest act.
//! * What the cache has of them is what the database has.

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
use microblog_storage::{Item as _, Tables};

use crate::{
    error::Error,
    items::{Front, NoticeItem},
    lists::{Notices, part},
    tables::{packed, read_packed},
};

/// The accounts of a report.
const PAGE: usize = 200;

/// The most entries that are read at the same time.
const CONCURRENCY: usize = 8;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The number of accounts checked.
    pub(crate) accounts: u64,
    /// The number of their notices.
    pub(crate) notices: u64,
    /// The violations.
    pub(crate) violations: Violations,
}

/// Checks one account, or all of them, some in each report.
pub(crate) fn reports(
    notices: Notices,
    tables: Tables,
    user: Option<UserId>,
) -> BoxStream<'static, Result<Report, Error>> {
    let first = user.map_or(0, |user| user.get() - 1);
    let last = user.map_or(i64::MAX as u64, UserId::get);
    let pages = stream::try_unfold(Some(first), move |after| {
        let (notices, tables) = (notices.clone(), tables.clone());
        async move {
            let Some(after) = after else { return Ok(None) };
            let report = page(&notices, tables.database().await?, [after, last]).await?;
            Ok::<_, Error>(Some(report))
        }
    });
    pages.boxed()
}

// Checks the accounts between two ids, some of them. Returns the last one, if more may follow.
async fn page(
    notices: &Notices,
    database: &Database,
    range: [u64; 2],
) -> Result<(Report, Option<u64>), Error> {
    let count = |table: &str| format!("(SELECT COUNT(*) FROM {table} WHERE account = accounts.id)");
    let newest = "(SELECT COALESCE(MAX(position), 0) FROM notices WHERE account = accounts.id)";
    let (of_notices, of_mentions) = (count("notices"), count("mentions"));
    let columns = packed(&["id", "notices", &of_notices, "mentions", &of_mentions, "top", newest]);
    // In one snapshot.
    let text = format!(
        "SELECT {columns} FROM accounts WHERE id > $1 AND id <= $2 ORDER BY id LIMIT {PAGE}"
    );
    let read = async {
        let query = range.into_iter().fold(statement(text), |query, id| query.bind(number(id)));
        let rows = query.fetch_all(database.readers()).await?;
        rows.iter().map(|row| read_packed::<7>(row, 0)).collect()
    };
    let rows: Vec<[u64; 7]> = database.read("SELECT check", read).await?;
    let mut report = Report { accounts: rows.len() as u64, ..Report::default() };
    for &[id, notices, of_notices, mentions, of_mentions, top, newest] in &rows {
        report.notices += of_notices;
        for (what, count, rows) in
            [("notices", notices, of_notices), ("mentions", mentions, of_mentions)]
        {
            report.violations.check(count == rows, || {
                format!("{what} of account {id}: it has {count}, there are {rows}")
            });
        }
        report.violations.check(newest <= top, || {
            format!("a notice of account {id} is newer than its newest act")
        });
    }
    let items = [NoticeItem::Notices, NoticeItem::Mentions];
    let users = rows.iter().filter_map(|row| UserId::new(row[0]));
    let items = users.flat_map(|user| items.map(|item| (item, user)));
    let check =
        |(item, user)| -> BoxFuture<'_, _> { Box::pin(check_entry(notices, database, item, user)) };
    let checks: Vec<_> = items.map(check).collect();
    let mut checks = stream::iter(checks).buffer_unordered(CONCURRENCY);
    while let Some(violation) = checks.try_next().await? {
        if let Some(violation) = violation {
            report.violations.check(false, || violation);
        }
    }
    let next = rows.last().filter(|_| rows.len() == PAGE).map(|row| row[0]);
    Ok((report, next))
}

// Compares the entry of an item with the database. Returns a violation.
async fn check_entry(
    notices: &Notices,
    database: &Database,
    item: NoticeItem,
    user: UserId,
) -> Result<Option<String>, Error> {
    let cached = async || notices.reader.peek(&[part(item, user, Front)]).await.pop().flatten();
    let Some(found) = cached().await else { return Ok(None) };
    if item.load(database, user.get()).await?.contents == found {
        return Ok(None);
    }
    // It may have changed between the two reads.
    let again = cached().await;
    let kind = item.kind();
    Ok((again == Some(found))
        .then(|| format!("{kind} of {user}: the cache differs from the database")))
}
