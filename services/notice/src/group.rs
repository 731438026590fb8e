//! A group of calls as one transaction: locks the rows that its calls need, decides them in order, and
//! writes what has changed. The text of a statement depends at most on the tables that are written: a
//! connection prepares each once.
//!
//! Rows are locked in this order: positions in feeds, then accounts by their ids. Notices and mentions are not
//! locked: whoever changes them has locked their account.

#[cfg(test)]
mod plans;

use std::collections::{BTreeMap, BTreeSet};

use futures::future::{BoxFuture, FutureExt as _};
use microblog_domain::{PostId, UserId};
use microblog_record::{
    json_rows::{self, Type},
    number_rows,
    sql::{number, statement},
};
use microblog_storage::{
    Change, Decided, EntryKeys, FeedRow, Group, Item as _, ItemRevision, Transaction, Writes,
};
use serde_json::Value;
use sqlx::{Row as _, any::AnyRow};

use crate::{
    items::NoticeItem,
    notice::NoticeRow,
    source::{Progress, Source},
    steps::{Call, Item, Locked, MENTIONS_MAX, NOTICES_MAX, NoticeKey, Outcome, State},
    tables::{
        ACCOUNT, NOTICE, account, account_numbers, acts_text, malformed, packed, position_text,
        progress, read_notice, read_packed,
    },
};

/// The calls that write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls;

impl Group for Calls {
    type Call = Call;
    type Outcome = Outcome;

    const ACCOUNT_COLUMNS: usize = ACCOUNT.len();

    fn weight(&self, call: &Call) -> usize {
        call.weight()
    }

    fn accounts(&self, calls: &[Call]) -> BTreeSet<u64> {
        calls.iter().flat_map(Call::new_accounts).map(UserId::get).collect()
    }

    fn run<'a>(
        &'a self,
        transaction: &'a mut Transaction,
        calls: &'a [Call],
    ) -> BoxFuture<'a, Result<Decided<Outcome>, sqlx::Error>> {
        run(self.accounts(calls), transaction, calls).boxed()
    }
}

async fn run(
    needed: BTreeSet<u64>,
    transaction: &mut Transaction,
    calls: &[Call],
) -> Result<Decided<Outcome>, sqlx::Error> {
    let locked = lock(transaction, calls).await?;
    if needed.into_iter().filter_map(UserId::new).any(|id| !locked.accounts.contains_key(&id)) {
        return Err(sqlx::Error::RowNotFound);
    }
    let mut state = State::new(transaction.now_ms(), locked);
    let outcomes = calls.iter().map(|call| state.take(call)).collect();
    let cut = state.cut();
    write(transaction, &state, &cut).await?;
    let history = transaction.history();
    let change = |&(item, user): &Item| {
        let (before, after) = state.revisions((item, user));
        let (partition, id) = (user.partition(), user.get());
        let keys = EntryKeys::new(NoticeItem::PREFIX, item.kind(), history, partition, id);
        Change { keys, before, after, patch: None, limits: item.limits() }
    };
    let revision = |&(item, user): &Item| {
        let (_, revision) = state.revisions((item, user));
        ItemRevision { kind: item.kind().to_owned(), id: user.get(), revision }
    };
    let feed = state.events.iter().map(|items| FeedRow {
        items: items.iter().map(revision).collect(),
        // Nobody follows the feed but the verifier.
        change: String::new(),
    });
    Ok(Decided {
        outcomes,
        changes: state.items.iter().map(change).collect(),
        created: Vec::new(),
        feed: feed.collect(),
        has_others: state.positions.have_changed(),
    })
}

// Locks and reads what the calls need.
async fn lock(transaction: &mut Transaction, calls: &[Call]) -> Result<Locked, sqlx::Error> {
    let sources: BTreeSet<Source> = calls.iter().filter_map(Call::source).collect();
    let mut positions = BTreeMap::new();
    for source in sources {
        let text = format!("{} {}", position_text(), lock_clause(transaction.is_sqlite()));
        let query = statement(text).bind(source.name());
        let row = query.fetch_one(transaction.connection()).await?;
        positions.insert(source, progress(read_packed(&row, 0)?));
    }
    let users: BTreeSet<UserId> = calls.iter().flat_map(Call::accounts).collect();
    let users = users.iter().map(|user| [user.get()]);
    let accounts =
        read_rows(transaction, lock_accounts_text, users, |row| account(read_packed(row, 0)?))
            .await?;
    let notices: BTreeSet<NoticeKey> = calls.iter().flat_map(Call::notices).collect();
    let notices = notices.iter().map(notice_numbers);
    let notices = read_rows(transaction, notices_text, notices, keyed_notice).await?;
    let mentions: BTreeSet<(UserId, PostId)> = calls.iter().flat_map(Call::mentions).collect();
    let mentions = mentions.iter().map(|(user, post)| [user.get(), post.get()]);
    let mentions = read_rows(transaction, mentions_text, mentions, mention).await?;
    Ok(Locked { positions, accounts, notices, mentions })
}

// Reads the rows of some keys.
async fn read_rows<const COLUMNS: usize, K: Ord, R>(
    transaction: &mut Transaction,
    text: fn(bool) -> String,
    keys: impl IntoIterator<Item = [u64; COLUMNS]>,
    read: fn(&AnyRow) -> Result<(K, R), sqlx::Error>,
) -> Result<BTreeMap<K, R>, sqlx::Error> {
    let (keys, is_sqlite): (Vec<_>, _) = (keys.into_iter().collect(), transaction.is_sqlite());
    if keys.is_empty() {
        return Ok(BTreeMap::new());
    }
    let query = number_rows::bind(statement(text(is_sqlite)), is_sqlite, &keys);
    query.fetch_all(transaction.connection()).await?.iter().map(read).collect()
}

// Executes a statement with rows of numbers, if there are any.
async fn execute<const COLUMNS: usize>(
    transaction: &mut Transaction,
    text: fn(bool) -> String,
    rows: impl IntoIterator<Item = [u64; COLUMNS]>,
) -> Result<(), sqlx::Error> {
    let (rows, is_sqlite): (Vec<_>, _) = (rows.into_iter().collect(), transaction.is_sqlite());
    if rows.is_empty() {
        return Ok(());
    }
    let query = number_rows::bind(statement(text(is_sqlite)), is_sqlite, &rows);
    query.execute(transaction.connection()).await.map(drop)
}

const fn lock_clause(is_sqlite: bool) -> &'static str {
    if is_sqlite { "" } else { "FOR NO KEY UPDATE" }
}

fn lock_accounts_text(is_sqlite: bool) -> String {
    let (account, is_one) = (packed(&ACCOUNT), number_rows::contains(is_sqlite, "id", 1));
    let lock = lock_clause(is_sqlite);
    format!("SELECT {account} FROM accounts WHERE {is_one} ORDER BY id {lock}")
}

fn notice_numbers((user, subject): &NoticeKey) -> [u64; 4] {
    let [kind, subject, comment] = subject.numbers();
    [user.get(), kind, subject, comment]
}

// Each is looked up by its key.
fn notices_text(is_sqlite: bool) -> String {
    let keys = number_rows::table(is_sqlite, 1, 4);
    let row = packed(&["column1", "value"]);
    let notice = packed(&NOTICE);
    format!(
        "SELECT {row} FROM (SELECT column1, (SELECT {notice} FROM notices \
         WHERE account = column1 AND kind = column2 AND subject = column3 AND comment = column4) \
         AS value FROM {keys}) AS found WHERE value IS NOT NULL"
    )
}

fn keyed_notice(row: &AnyRow) -> Result<(NoticeKey, NoticeRow), sqlx::Error> {
    let text: String = row.try_get(0)?;
    let (account, notice) = text.split_once(' ').ok_or_else(malformed)?;
    let user = account.parse().ok().and_then(UserId::new).ok_or_else(malformed)?;
    let words: Vec<&str> = notice.split_ascii_whitespace().collect();
    let (subject, row) = read_notice(&words)?;
    Ok(((user, subject), row))
}

fn mentions_text(is_sqlite: bool) -> String {
    let keys = number_rows::table(is_sqlite, 1, 2);
    let row = packed(&["column1", "value"]);
    format!(
        "SELECT {row} FROM (SELECT column1, (SELECT post FROM mentions \
         WHERE account = column1 AND post = column2) AS value FROM {keys}) AS found \
         WHERE value IS NOT NULL"
    )
}

fn mention(row: &AnyRow) -> Result<((UserId, PostId), ()), sqlx::Error> {
    let [user, post] = read_packed(row, 0)?;
    let key = UserId::new(user).zip(PostId::new(post));
    Ok((key.ok_or_else(malformed)?, ()))
}

// Writes what has changed.
async fn write(
    transaction: &mut Transaction,
    state: &State,
    cut: &[Item],
) -> Result<(), sqlx::Error> {
    for (source, to) in state.positions.changed() {
        write_position(transaction, *source, to).await?;
    }
    let emptied = || state.emptied.iter().map(|user| [user.get()]);
    execute(transaction, empty_notices_text, emptied()).await?;
    execute(transaction, empty_mentions_text, emptied()).await?;
    let mut writes = Writes::of(transaction);
    writes.numbers(change_accounts_text, state.accounts.changed().map(account_numbers));
    writes.texts(write_notices_text, state.written_notices().map(notice_values));
    let mentions = state.written_mentions().map(|(user, post)| [user.get(), post.get()]);
    writes.numbers(add_mentions_text, mentions);
    writes.execute(transaction).await?;
    for (item, user) in cut {
        let query = statement(cut_text(*item)).bind(number(user.get()));
        query.execute(transaction.connection()).await?;
    }
    Ok(())
}

async fn write_position(
    transaction: &mut Transaction,
    source: Source,
    to: &Progress,
) -> Result<(), sqlx::Error> {
    let Progress { sequence, token, applied, read_until_ms } = *to;
    let numbers = [sequence, token, applied, read_until_ms];
    let query = numbers
        .into_iter()
        .fold(statement(write_position_text()).bind(source.name()), |query, one| {
            query.bind(number(one))
        });
    query.execute(transaction.connection()).await.map(drop)
}

fn write_position_text() -> String {
    "UPDATE positions SET sequence = $2, token = $3, applied = $4, read_until = $5 WHERE feed = $1"
        .to_owned()
}

fn notice_values((key, row): (&NoticeKey, &NoticeRow)) -> [Value; 8] {
    let [account, kind, subject, comment] = notice_numbers(key);
    let acts = acts_text(&row.acts);
    let counting = row.counting() as u64;
    [
        account.into(),
        kind.into(),
        subject.into(),
        comment.into(),
        row.position().into(),
        counting.into(),
        row.earlier.into(),
        acts.into(),
    ]
}

// A condition tells SQLite that ON is not of a join.
fn write_notices_text(is_sqlite: bool, first: usize) -> String {
    let numbers = ["account", "kind", "subject", "comment", "position", "counting", "earlier"];
    let named: Vec<String> =
        numbers.iter().chain(&["acts"]).map(|column| format!("new_{column}")).collect();
    let column = |(at, name): (usize, &String)| {
        (name.clone(), if at < numbers.len() { Type::Number } else { Type::Text })
    };
    let columns: Vec<(String, Type)> = named.iter().enumerate().map(column).collect();
    let columns: Vec<(&str, Type)> =
        columns.iter().map(|(name, of)| (name.as_str(), *of)).collect();
    let (rows, new) = (json_rows::table(is_sqlite, first, &columns), named.join(", "));
    format!(
        "INSERT INTO notices (account, kind, subject, comment, position, counting, earlier, acts) \
         SELECT {new} FROM {rows} WHERE 1 = 1 ON CONFLICT (account, kind, subject, comment) \
         DO UPDATE SET position = excluded.position, counting = excluded.counting, \
         earlier = excluded.earlier, acts = excluded.acts"
    )
}

fn add_mentions_text(is_sqlite: bool, first: usize) -> String {
    let rows = number_rows::table(is_sqlite, first, 2);
    format!("INSERT INTO mentions (account, post) SELECT column1, column2 FROM {rows}")
}

fn empty_notices_text(is_sqlite: bool) -> String {
    empty_text("notices", is_sqlite)
}

fn empty_mentions_text(is_sqlite: bool) -> String {
    empty_text("mentions", is_sqlite)
}

// Returns the statement that removes all rows of some accounts.
fn empty_text(table: &str, is_sqlite: bool) -> String {
    format!("DELETE FROM {table} WHERE {}", number_rows::contains(is_sqlite, "account", 1))
}

/// Returns the statement that removes what an account, the parameter, has beyond the newest.
fn cut_text(item: NoticeItem) -> String {
    let (table, order, max) = match item {
        NoticeItem::Notices => ("notices", "position", NOTICES_MAX),
        NoticeItem::Mentions => ("mentions", "post", MENTIONS_MAX),
    };
    format!(
        "DELETE FROM {table} WHERE account = $1 AND {order} <= (SELECT {order} FROM {table} \
         WHERE account = $1 ORDER BY {order} DESC LIMIT 1 OFFSET {max})"
    )
}

fn change_accounts_text(is_sqlite: bool, first: usize) -> String {
    let set = ACCOUNT.iter().zip(1..).skip(1);
    let set: Vec<_> = set.map(|(column, at)| format!("{column} = column{at}")).collect();
    let rows = number_rows::table(is_sqlite, first, ACCOUNT.len());
    // With it, PostgreSQL reads no whole index of a table that is small, nor keeps such a plan.
    let bound = match is_sqlite {
        true => String::new(),
        false => format!(" AND {}", number_rows::contains(false, "id", first)),
    };
    format!("UPDATE accounts SET {} FROM {rows} WHERE id = column1{bound}", set.join(", "))
}
