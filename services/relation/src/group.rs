//! A group of calls as one transaction: locks the rows of its accounts, reads the edges between them,
//! takes the steps, and writes what has changed. Each of the three is one message to the database.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    iter,
};

use futures::future::{BoxFuture, FutureExt as _};
use microblog_domain::UserId;
use microblog_record::{
    number_rows,
    sql::{number, statement},
};
use microblog_storage::{
    Change, Decided, EntryKeys, FeedRow, Group, History, ItemRevision, Patch, Record, Transaction,
};
use sqlx::any::AnyRow;

use crate::{
    changes,
    graph::{Edge, EdgeKind, List},
    items::{Front, RECORDS_MAX},
    steps::{Account, Event, Graph, ItemChange, Limits, ListRow, Outcome, Step},
    tables::{join, packed, read_packed},
};

/// The prefix of the service's keys.
pub(crate) const PREFIX: &str = "rel";

/// The calls that write: each consists of steps, which are taken in order and in one transaction. None of
/// them keeps the others from being taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    pub(crate) limits: Limits,
}

impl Group for Steps {
    type Call = Vec<Step>;
    /// The outcomes of the steps.
    type Outcome = Vec<Outcome>;

    fn weight(&self, steps: &Vec<Step>) -> usize {
        steps.len()
    }

    fn run<'a>(
        &'a self,
        transaction: &'a mut Transaction,
        calls: &'a [Vec<Step>],
    ) -> BoxFuture<'a, Result<Decided<Vec<Outcome>>, sqlx::Error>> {
        run(self.limits, transaction, calls).boxed()
    }
}

async fn run(
    limits: Limits,
    transaction: &mut Transaction,
    calls: &[Vec<Step>],
) -> Result<Decided<Vec<Outcome>>, sqlx::Error> {
    let steps: Vec<Step> = calls.iter().flatten().copied().collect();
    let accounts = lock(transaction, &steps).await?;
    let mut edges = edges(transaction, &steps).await?;
    // The edges were read later. One of an account that was not there when the rows were locked is newer: the
    // steps are taken before it was created.
    edges.retain(|(_, Edge { from, to }), _| {
        [from, to].iter().all(|user| accounts.contains_key(user))
    });
    let mut graph = Graph::new(limits, transaction.now_ms(), accounts, edges);
    let outcomes =
        calls.iter().map(|steps| steps.iter().map(|step| graph.take(*step)).collect()).collect();
    if !graph.events.is_empty() {
        write_changes(transaction, &graph).await?;
    }
    let history = transaction.history();
    let changed = graph.items.iter().map(|(&(list, user), change)| {
        item_change(&graph, history, (list, user), patch(&graph, list, user, change))
    });
    let is_unchanged = |item: &&(List, UserId)| !graph.items.contains_key(item);
    let unchanged = graph.unchanged.iter().filter(is_unchanged);
    let unchanged = unchanged.map(|item| item_change(&graph, history, *item, None));
    let changes = changed.chain(unchanged).collect();
    let feed = graph.events.iter().map(|event| feed_row(&graph, event)).collect();
    Ok(Decided { outcomes, changes, feed })
}

fn patch(graph: &Graph, list: List, user: UserId, change: &ItemChange) -> Option<Patch> {
    let account = graph.accounts.get(&user)?;
    let front = Front::of(list, |list| account.list(list).length).write();
    let added = Record::write_all(change.added.iter().copied());
    Some(Patch { front, added, removed: change.removed.clone() })
}

fn item_change(
    graph: &Graph,
    history: &History,
    (list, user): (List, UserId),
    patch: Option<Patch>,
) -> Change {
    let (before, after) = graph.revisions(list, user);
    let keys = EntryKeys::new(PREFIX, list.name(), history, user.partition(), user.get());
    Change { keys, before, after, patch, records_max: RECORDS_MAX }
}

fn feed_row(graph: &Graph, event: &Event) -> FeedRow {
    let item = |&(list, user): &(List, UserId)| ItemRevision {
        kind: list.name().to_owned(),
        id: user.get(),
        revision: graph.revisions(list, user).1,
    };
    FeedRow { items: event.items.iter().map(item).collect(), change: changes::text(event) }
}

/// Locks the rows of all accounts of the steps, in the order of their ids, and makes those that are missing
/// of accounts which get edges or are deleted.
///
/// No group waits for one that waits for it: a row that another group makes is waited for in the order of the
/// ids, and one that it has made meanwhile is not waited for.
async fn lock(
    transaction: &mut Transaction,
    steps: &[Step],
) -> Result<BTreeMap<UserId, Account>, sqlx::Error> {
    let accounts = |steps: &mut dyn Iterator<Item = &Step>| -> BTreeSet<UserId> {
        steps.flat_map(|step| step.accounts()).collect()
    };
    let makes = |step: &&Step| matches!(step, Step::Create(..) | Step::Delete(_));
    let mut missing = accounts(&mut steps.iter().filter(makes));
    let all = accounts(&mut steps.iter());
    let is_sqlite = transaction.is_sqlite();
    let texts = [lock_text(is_sqlite, false), make_text(is_sqlite), lock_text(is_sqlite, true)];
    let mut locked = BTreeMap::new();
    for (at, text) in texts.into_iter().enumerate() {
        let users = if at == 0 { &all } else { &missing };
        if users.is_empty() {
            break;
        }
        let ids = users.iter().map(|user| user.get());
        let query = number_rows::bind_column(statement(text), is_sqlite, ids);
        let rows = query.fetch_all(transaction.connection()).await?;
        for row in rows {
            let (user, account) = read_account(&row)?;
            missing.remove(&user);
            locked.insert(user, account);
        }
    }
    Ok(locked)
}

/// Returns the statement that locks and reads accounts. Rows that another transaction has locked are waited
/// for, or an error.
fn lock_text(is_sqlite: bool, is_error: bool) -> String {
    let lock = match (is_sqlite, is_error) {
        (true, _) => "",
        (false, false) => "FOR NO KEY UPDATE",
        (false, true) => "FOR NO KEY UPDATE NOWAIT",
    };
    let (account, ids) = (packed(columns()), number_rows::table(is_sqlite, 1, 1));
    format!(
        "SELECT {account} FROM accounts WHERE id IN (SELECT column1 FROM {ids}) ORDER BY id {lock}"
    )
}

/// Returns the statement that makes accounts, but those that another transaction makes meanwhile.
fn make_text(is_sqlite: bool) -> String {
    let (zeros, ids) = (", 0".repeat(COLUMNS - 1), number_rows::table(is_sqlite, 1, 1));
    let account = packed(columns());
    format!(
        "INSERT INTO accounts SELECT column1{zeros} FROM {ids} WHERE 1 = 1 ORDER BY column1 \
         ON CONFLICT (id) DO NOTHING RETURNING {account}"
    )
}

/// The columns of an account.
const COLUMNS: usize = 3 + 2 * List::ALL.len();

/// Returns the columns of an account.
fn columns() -> Vec<String> {
    let of_list = |list: List| [list.name().to_owned(), format!("{}_revision", list.name())];
    let of_account = ["id", "newest", "deleted"].map(str::to_owned);
    of_account.into_iter().chain(List::ALL.into_iter().flat_map(of_list)).collect()
}

fn read_account(row: &AnyRow) -> Result<(UserId, Account), sqlx::Error> {
    let malformed = || sqlx::Error::Decode("malformed account".into());
    let numbers = read_packed(row, 0)?;
    let (&[id, newest, deleted], lists) = numbers.split_first_chunk().ok_or_else(malformed)?;
    let (lists, []) = lists.as_chunks() else { return Err(malformed()) };
    let lists: [[u64; 2]; List::ALL.len()] = lists.try_into().map_err(|_| malformed())?;
    let mut account = Account::default();
    (account.newest, account.deleted) = (newest, deleted);
    for (list, [length, revision]) in List::ALL.into_iter().zip(lists) {
        *account.list_mut(list) = ListRow { length, revision };
    }
    Ok((UserId::new(id).ok_or_else(malformed)?, account))
}

/// Reads the edges on which the steps depend, with their times.
async fn edges(
    transaction: &mut Transaction,
    steps: &[Step],
) -> Result<HashMap<(EdgeKind, Edge), u64>, sqlx::Error> {
    let mut needed = BTreeSet::new();
    let mut need =
        |kind, edges: &[Edge]| needed.extend(edges.iter().map(|edge| (kind as u64, *edge)));
    for step in steps {
        match *step {
            Step::Create(kind @ (EdgeKind::Follow | EdgeKind::Block), edge) => {
                need(EdgeKind::Follow, &[edge, edge.reversed()]);
                need(EdgeKind::Block, &[edge]);
                if kind == EdgeKind::Follow {
                    need(EdgeKind::Block, &[edge.reversed()]);
                }
            }
            Step::End(EdgeKind::Follow, edge) => need(EdgeKind::Follow, &[edge, edge.reversed()]),
            Step::Create(kind, edge) | Step::End(kind, edge) => need(kind, &[edge]),
            Step::Delete(_) | Step::Deleted(_) => {}
        }
    }
    if needed.is_empty() {
        return Ok(HashMap::new());
    }
    let row = |(kind, Edge { from, to }): &(u64, Edge)| [*kind, from.get(), to.get()];
    let rows: Vec<_> = needed.iter().map(row).collect();
    let is_sqlite = transaction.is_sqlite();
    let query = number_rows::bind(statement(edges_text(is_sqlite)), is_sqlite, &rows);
    query.fetch_all(transaction.connection()).await?.iter().map(read_edge).collect()
}

/// Returns the statement that reads those of some edges that are there, each by its primary key: kind,
/// source, target and time.
fn edges_text(is_sqlite: bool) -> String {
    let since = EdgeKind::ALL.map(|kind| {
        let (number, table) = (kind as u8, kind.table());
        format!(
            "WHEN {number} THEN (SELECT since FROM {table} WHERE source = column2 AND target = column3)"
        )
    });
    let (edge, since) = (packed(["column1", "column2", "column3", "since"]), since.join(" "));
    let edges = number_rows::table(is_sqlite, 1, 3);
    format!(
        "SELECT {edge} FROM (SELECT column1, column2, column3, CASE column1 {since} END AS since \
         FROM {edges}) AS edges WHERE since IS NOT NULL"
    )
}

fn read_edge(row: &AnyRow) -> Result<((EdgeKind, Edge), u64), sqlx::Error> {
    let malformed = || sqlx::Error::Decode("malformed edge".into());
    let [kind, from, to, since] = *read_packed(row, 0)? else { return Err(malformed()) };
    let kind = EdgeKind::ALL.into_iter().find(|&of| of as u64 == kind).ok_or_else(malformed)?;
    let user = |id| UserId::new(id).ok_or_else(malformed);
    Ok(((kind, Edge { from: user(from)?, to: user(to)? }), since))
}

/// Writes what has changed: the edges that are not any more what they were, then the new ones, then the
/// accounts.
async fn write_changes(transaction: &mut Transaction, graph: &Graph) -> Result<(), sqlx::Error> {
    let is_sqlite = transaction.is_sqlite();
    for kind in EdgeKind::ALL {
        let (ended, created) = graph.changed_edges(kind);
        if !ended.is_empty() {
            let rows: Vec<_> =
                ended.iter().map(|Edge { from, to }| [from.get(), to.get()]).collect();
            let query = number_rows::bind(statement(end_text(kind, is_sqlite)), is_sqlite, &rows);
            query.execute(transaction.connection()).await?;
        }
        if !created.is_empty() {
            let row = |(Edge { from, to }, since): &(Edge, u64)| [from.get(), to.get(), *since];
            let rows: Vec<_> = created.iter().map(row).collect();
            let query =
                number_rows::bind(statement(create_text(kind, is_sqlite)), is_sqlite, &rows);
            query.execute(transaction.connection()).await?;
        }
    }
    for step in &graph.deletions {
        let (text, user) = match step {
            Step::Delete(user) => ("INSERT INTO deletions (id) VALUES ($1)", user),
            Step::Deleted(user) => ("DELETE FROM deletions WHERE id = $1", user),
            Step::Create(..) | Step::End(..) => continue,
        };
        let query = statement(text.to_owned()).bind(number(user.get()));
        query.execute(transaction.connection()).await?;
    }
    let rows: Vec<_> =
        graph.changed_accounts().map(|(user, account)| account_row(user, account)).collect();
    if !rows.is_empty() {
        let query = number_rows::bind(statement(update_text(is_sqlite)), is_sqlite, &rows);
        query.execute(transaction.connection()).await?;
    }
    Ok(())
}

/// Returns the statement that ends edges.
fn end_text(kind: EdgeKind, is_sqlite: bool) -> String {
    let (table, edges) = (kind.table(), number_rows::table(is_sqlite, 1, 2));
    format!("DELETE FROM {table} WHERE (source, target) IN (SELECT column1, column2 FROM {edges})")
}

/// Returns the statement that creates edges.
fn create_text(kind: EdgeKind, is_sqlite: bool) -> String {
    let (table, edges) = (kind.table(), number_rows::table(is_sqlite, 1, 3));
    format!(
        "INSERT INTO {table} (source, target, since) SELECT column1, column2, column3 FROM {edges}"
    )
}

/// Returns the statement that updates accounts to rows of their columns.
fn update_text(is_sqlite: bool) -> String {
    let set = columns().into_iter().zip(1..).skip(1);
    let set = join(set.map(|(column, at)| format!("{column} = column{at}")));
    let rows = number_rows::table(is_sqlite, 1, COLUMNS);
    format!("UPDATE accounts SET {set} FROM {rows} WHERE id = column1")
}

fn account_row(user: UserId, account: &Account) -> [u64; COLUMNS] {
    let of_list = |list| [account.list(list).length, account.list(list).revision];
    let lists = List::ALL.into_iter().flat_map(of_list);
    let numbers = [user.get(), account.newest, account.deleted].into_iter().chain(lists);
    let mut row = [0; COLUMNS];
    iter::zip(&mut row, numbers).for_each(|(column, number)| *column = number);
    row
}

#[cfg(test)]
mod tests {
    use microblog_record::Database;
    use microblog_storage::Tables;
    use sqlx::{AssertSqlSafe, Row as _};

    use super::*;
    use crate::{items, tables::MIGRATIONS};

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        database: microblog_record::Config,
    }

    /// The plans of SQLite, which has no statistics, so they are those of tables of any size.
    #[tokio::test]
    async fn no_statement_of_a_call_reads_a_whole_table() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("--database-url=sqlite://{}/a.db?mode=rwc", directory.path().display());
        let flags = <Flags as clap::Parser>::parse_from(["test", &url]);
        let database = Database::open_required(&flags.database).unwrap();
        let tables = Tables::new(database.clone(), &MIGRATIONS);
        tables.database().await.unwrap();

        let mut statements =
            vec![lock_text(true, false), make_text(true), edges_text(true), update_text(true)];
        statements.extend(EdgeKind::ALL.map(|kind| end_text(kind, true)));
        statements.extend(EdgeKind::ALL.map(|kind| create_text(kind, true)));
        for list in List::ALL {
            statements.push(items::among_text(&[list], true));
            statements.push(items::load_text(list, true));
            statements.extend([true, false].map(|newest| items::page_text(list, newest)));
        }
        statements.push(items::counts_text(true));
        for statement in statements {
            let explain = format!("EXPLAIN QUERY PLAN {statement}");
            let explain = AssertSqlSafe(
                explain.replace("$1", "4").replace("$2", "9").replace("$3", "9").replace("$4", "9"),
            );
            let plan = sqlx::raw_sql(explain).fetch_all(database.readers()).await.unwrap();
            for step in plan {
                let step: String = step.try_get(3).unwrap();
                let tables = ["accounts", "follows", "blocks", "mutes", "f", "g"];
                let reads_all = tables.iter().any(|table| {
                    step == format!("SCAN {table}") || step.starts_with(&format!("SCAN {table} "))
                });
                assert!(!reads_all, "{step}: {statement}");
            }
        }
    }
}
