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
    Stream, StreamExt as _, TryStreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use microblog_domain::{UserId, Violations};
use microblog_record::{
    Database, Error as DatabaseError,
    sql::{number, read, statement},
};
use microblog_storage::Item as _;
use sqlx::{Row as _, any::AnyRow};

use crate::{
    accounts::{Accounts, part, unix_ms},
    error::Error,
    identifier::{Identifier, IdentifierKind},
    items::{AccountItem, Sessions, read_name},
    steps::{AccountRow, IdentifierRow},
    tables::{ACCOUNT, identified, read_account},
};

/// The rows of a report.
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

/// Checks all accounts, some in each report, then what is of accounts, and lists deletions.
pub(crate) fn reports(accounts: Accounts) -> BoxStream<'static, Result<Report, Error>> {
    let (owner, others) = (accounts.clone(), accounts.clone());
    let pages = stream::try_unfold(Some(0), move |after| {
        let accounts = accounts.clone();
        async move {
            let Some(after) = after else { return Ok(None) };
            let page = page(accounts.tables.database().await?, after).await?;
            let next = page.last().filter(|_| page.len() == PAGE).map(|last| last.user.id.get());
            Ok(Some((check(&accounts, &page).await?, next)))
        }
    });
    let owned =
        stream::iter(OWNED).flat_map(move |table| check_owned(owner.clone(), table).boxed());
    let deletions = stream::once(async move { list_deletions(&others).await });
    pages.chain(owned).chain(deletions).boxed()
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
    let rows = identified(accounts.tables.database().await?, &identifiers).await?;
    for account in page {
        check_identifiers(account, &rows, &mut report.violations);
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
    rows: &HashMap<String, IdentifierRow>,
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
        match rows.get(identifier.as_str()).and_then(|row| row.account) {
            Some(owner) => {
                violations.check(owner == id, || format!("{owner} has the {what} of account {id}"))
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
    let Some(found) = cached().await else { return Ok(None) };
    let stored = item.load(accounts.tables.database().await?, key).await?.contents;
    if is_same(item, &found.front, &stored.front) {
        return Ok(None);
    }
    // It may have changed between the two reads.
    let again = cached().await;
    let kind = item.kind();
    Ok((again == Some(found))
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

/// A table whose rows are of accounts.
#[derive(Clone, Copy)]
struct Owned {
    what: &'static str,
    /// Reads rows in the order of their keys, from a key on, the parameter: the key, the account, and the
    /// account again if there is such a one.
    text: &'static str,
}

const OWNED: [Owned; 2] = [
    Owned {
        what: "an identifier",
        text: "SELECT digest, account, (SELECT id FROM accounts WHERE id = identifiers.account) \
            FROM identifiers WHERE digest >= $1 ORDER BY digest LIMIT 500",
    },
    // Of an account with sessions on two pages, those of the first one are enough.
    Owned {
        what: "a session",
        text: "SELECT account, account, (SELECT id FROM accounts WHERE id = sessions.account) \
            FROM sessions WHERE account >= $1 ORDER BY account LIMIT 500",
    },
];

// Checks whether the rows of a table are of accounts, some in each report.
fn check_owned(
    accounts: Accounts,
    Owned { what, text }: Owned,
) -> impl Stream<Item = Result<Report, Error>> {
    stream::try_unfold(Some(0), move |from| {
        let accounts = accounts.clone();
        async move {
            let Some(from) = from else { return Ok(None) };
            let database = accounts.tables.database().await?;
            let read = async {
                let query = statement(text.to_owned()).bind(number(from));
                query.fetch_all(database.readers()).await?.iter().map(read_owned).collect()
            };
            let rows: Vec<(u64, u64, bool)> = database.read("SELECT account", read).await?;
            let mut report = Report::default();
            for (_, account, exists) in &rows {
                let of_nobody = || format!("{what} is of {account}, which is no account");
                report.violations.check(*account == 0 || *exists, of_nobody);
            }
            let next = rows.last().filter(|_| rows.len() == PAGE).map(|(key, ..)| key + 1);
            Ok(Some((report, next)))
        }
    })
}

fn read_owned(row: &AnyRow) -> Result<(u64, u64, bool), sqlx::Error> {
    let owner: Option<i64> = row.try_get(2)?;
    Ok((read(row, 0)?, read(row, 1)?, owner.is_some()))
}

// Lists deletions.
async fn list_deletions(accounts: &Accounts) -> Result<Report, Error> {
    let mut report = Report::default();
    for id in accounts.deletions(Violations::MAX).await? {
        report.pending.check(false, || format!("{id}: the deletion is in progress"));
    }
    Ok(report)
}
