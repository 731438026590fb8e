//! Checks the invariants of accounts. With concurrent writes, a violation may be transient; without, it is
//! a fault. Reports ids, never addresses.
//!
//! * An account has its name and its address; nothing else has them.
//! * Whoever has an identifier, or sessions, is an account.
//! * What the cache has of an account, its sessions and its name is what the database has.
//!
//! Reported apart from violations, since they are under way: account deletions.

use std::{collections::HashMap, time::SystemTime};

use futures::{
    StreamExt as _, TryStreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use microblog_domain::{UserId, Violations};
use microblog_record::{
    Database, Error as DatabaseError,
    sql::{number, read, statement},
};
use microblog_storage::{Contents, Item as _};
use sqlx::any::AnyRow;

use crate::{
    accounts::{Accounts, part, unix_ms},
    error::Error,
    identifier::{Identifier, IdentifierKind},
    items::{AccountItem, Sessions, read_name},
    steps::AccountRow,
    tables::{ACCOUNT, owners, read_account},
};

/// The accounts of a report.
const PAGE: usize = 500;

/// The most entries that are read at the same time.
const CONCURRENCY: usize = 8;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The number of accounts checked.
    pub(crate) checked: u64,
    /// The violations.
    pub(crate) violations: Violations,
    /// What is under way.
    pub(crate) pending: Violations,
}

/// Checks all accounts, some in each report, and then what is of no account.
pub(crate) fn reports(accounts: Accounts) -> BoxStream<'static, Result<Report, Error>> {
    let others = accounts.clone();
    let pages = stream::try_unfold(Some(0), move |after| {
        let accounts = accounts.clone();
        async move {
            let Some(after) = after else { return Ok(None) };
            let page = page(accounts.tables.database().await?, after).await?;
            let next = page.last().filter(|_| page.len() == PAGE).map(|last| last.user.id.get());
            Ok(Some((check(&accounts, &page).await?, next)))
        }
    });
    pages.chain(stream::once(async move { check_others(&others).await })).boxed()
}

async fn page(database: &Database, after: u64) -> Result<Vec<AccountRow>, DatabaseError> {
    let text = format!("SELECT {ACCOUNT} FROM accounts WHERE id > $1 ORDER BY id LIMIT {PAGE}");
    let read = async {
        let rows = statement(text).bind(number(after)).fetch_all(database.readers()).await?;
        rows.iter().map(read_account).collect()
    };
    database.read("SELECT accounts", read).await
}

async fn check(accounts: &Accounts, page: &[AccountRow]) -> Result<Report, Error> {
    let mut report = Report { checked: page.len() as u64, ..Report::default() };
    let identifiers: Vec<Identifier> = page.iter().flat_map(AccountRow::identifiers).collect();
    let owners = owners(accounts.tables.database().await?, &identifiers).await?;
    for account in page {
        check_identifiers(account, &owners, &mut report.violations);
    }
    let items = page.iter().flat_map(|account| {
        let (id, name) = (account.user.id, account.identifiers().next());
        let of_id = [AccountItem::Profile, AccountItem::Sessions].map(|item| (item, id.get(), id));
        of_id.into_iter().chain(name.map(|name| (AccountItem::Name, name.digest(), id)))
    });
    let check =
        |(item, key, id)| -> BoxFuture<'_, _> { Box::pin(check_entry(accounts, item, key, id)) };
    let entries: Vec<_> = items.map(check).collect();
    let mut entries = stream::iter(entries).buffer_unordered(CONCURRENCY);
    while let Some(violation) = entries.try_next().await? {
        if let Some(violation) = violation {
            report.violations.check(false, || violation);
        }
    }
    Ok(report)
}

fn check_identifiers(
    account: &AccountRow,
    owners: &HashMap<String, UserId>,
    violations: &mut Violations,
) {
    let id = account.user.id;
    let kinds = account.identifiers().map(|identifier| identifier.kind);
    violations.check(kinds.count() == 2, || format!("account {id} has an invalid name"));
    for identifier in account.identifiers() {
        let what = match identifier.kind {
            IdentifierKind::Name => "name",
            IdentifierKind::Email | IdentifierKind::External => "address",
        };
        match owners.get(identifier.as_str()) {
            Some(owner) => {
                violations.check(*owner == id, || format!("{owner} has the {what} of account {id}"))
            }
            None => violations.check(false, || format!("nobody has the {what} of account {id}")),
        }
    }
}

// Compares the entry of an item with the database. Returns a violation.
async fn check_entry(
    accounts: &Accounts,
    item: AccountItem,
    key: u64,
    id: UserId,
) -> Result<Option<String>, Error> {
    let cached = async || accounts.reader.peek(&[part(item, key)]).await.pop().flatten();
    let Some(front) = cached().await else { return Ok(None) };
    let Contents { front: stored, .. } =
        item.load(accounts.tables.database().await?, key).await?.contents;
    if is_same(item, &front, &stored) {
        return Ok(None);
    }
    // It may have changed between the two reads.
    let again = cached().await;
    let kind = item.kind();
    Ok((again == Some(front))
        .then(|| format!("{kind} of {id}: the cache differs from the database")))
}

// Rows that have expired may be gone.
fn is_same(item: AccountItem, cached: &[u8], stored: &[u8]) -> bool {
    let now_ms = unix_ms(SystemTime::now());
    match item {
        AccountItem::Profile => cached == stored,
        AccountItem::Sessions => {
            Sessions::of_entry(cached).alive(now_ms) == Sessions::of_entry(stored).alive(now_ms)
        }
        AccountItem::Name => {
            let [cached, stored] = [cached, stored].map(read_name);
            cached == stored || cached.is_free(now_ms) && stored.is_free(now_ms)
        }
    }
}

// Checks what refers to accounts, and lists deletions.
async fn check_others(accounts: &Accounts) -> Result<Report, Error> {
    const WITHOUT_ACCOUNT: [(&str, &str); 2] = [
        (
            "an identifier",
            "SELECT account FROM identifiers WHERE account <> 0 AND NOT EXISTS \
             (SELECT 1 FROM accounts WHERE accounts.id = identifiers.account) LIMIT 100",
        ),
        (
            "a session",
            "SELECT account FROM sessions WHERE NOT EXISTS \
             (SELECT 1 FROM accounts WHERE accounts.id = sessions.account) LIMIT 100",
        ),
    ];
    let database = accounts.tables.database().await?;
    let mut report = Report::default();
    for (what, text) in WITHOUT_ACCOUNT {
        // It reads all rows, which takes longer than a call may.
        let work = async { statement(text.to_owned()).fetch_all(database.writers()).await };
        for row in database.write("SELECT account", work).await? {
            let id: u64 = cell(&row)?;
            report.violations.check(false, || format!("{what} is of {id}, which is no account"));
        }
    }
    for id in accounts.deletions(Violations::MAX).await? {
        report.pending.check(false, || format!("{id}: the deletion is in progress"));
    }
    Ok(report)
}

fn cell(row: &AnyRow) -> Result<u64, Error> {
    read(row, 0).map_err(|error| Error::Database(DatabaseError::from(error)))
}
