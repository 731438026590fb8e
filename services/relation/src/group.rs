//! A group of calls as one transaction: locks the rows of its accounts, reads the edges between them,
//! takes the steps, and writes what has changed. Each of the three is one message to the database.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write as _,
};

use futures::future::{BoxFuture, FutureExt as _};
use microblog_domain::UserId;
use microblog_record::sql::read;
use microblog_storage::{
    Change, Decided, EntryKeys, FeedRow, Group, History, ItemRevision, Patch, Record, Transaction,
};
use sqlx::any::AnyRow;

use crate::{
    changes,
    graph::{Edge, EdgeKind, List},
    items::{Front, RECORDS_MAX},
    steps::{Account, Event, Graph, ItemChange, Limits, ListRow, Outcome, Step},
    tables::{join, packed, pairs, read_edge, read_packed},
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
        transaction.execute(changes_text(&graph)).await?;
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

/// Makes the rows that are missing of accounts which get edges or are deleted, and then locks those of all
/// accounts of the steps. Both in the order of the ids, and none is locked before all are made: so no group
/// waits for one that waits for it.
async fn lock(
    transaction: &mut Transaction,
    steps: &[Step],
) -> Result<BTreeMap<UserId, Account>, sqlx::Error> {
    let accounts = |steps: &mut dyn Iterator<Item = &Step>| -> BTreeSet<UserId> {
        steps.flat_map(|step| step.accounts()).collect()
    };
    let makes = |step: &&Step| matches!(step, Step::Create(..) | Step::Delete(_));
    let needed = accounts(&mut steps.iter().filter(makes));
    let all = accounts(&mut steps.iter());
    let text = lock_text(&needed, &all, transaction.is_sqlite());
    let rows = transaction.fetch_all(text).await?;
    rows.iter().map(read_account).collect()
}

fn lock_text(needed: &BTreeSet<UserId>, all: &BTreeSet<UserId>, is_sqlite: bool) -> String {
    let make = match needed.is_empty() {
        true => String::new(),
        false => {
            let ids = join(needed.iter().map(|user| format!("({user})")));
            let zeros = ", 0".repeat(columns().len() - 1);
            format!(
                "INSERT INTO accounts SELECT column1{zeros} FROM (VALUES {ids}) AS needed \
                 WHERE NOT EXISTS (SELECT 1 FROM accounts WHERE id = column1) \
                 ORDER BY column1 ON CONFLICT (id) DO NOTHING; "
            )
        }
    };
    let (lock, ids) = (if is_sqlite { "" } else { "FOR NO KEY UPDATE" }, join(all));
    let account = packed(columns());
    format!("{make}SELECT {account} FROM accounts WHERE id IN ({ids}) ORDER BY id {lock}")
}

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
    let mut needed = BTreeMap::<EdgeKind, BTreeSet<Edge>>::new();
    let mut need = |kind, edges: &[Edge]| needed.entry(kind).or_default().extend(edges);
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
    let text = needed.iter().map(|(kind, edges)| edges_text(*kind, edges));
    let text = text.collect::<Vec<_>>().join(" UNION ALL ");
    let rows = transaction.fetch_all(text).await?;
    let edge = |row: &AnyRow| {
        let number = read(row, 0)?;
        let kind = EdgeKind::ALL.into_iter().find(|&kind| kind as u64 == number);
        let kind = kind.ok_or_else(|| sqlx::Error::Decode("unknown kind of edge".into()))?;
        Ok(((kind, read_edge(row, 1)?), read(row, 3)?))
    };
    rows.iter().map(edge).collect()
}

/// Returns the statement that reads those of some edges that are there.
fn edges_text(kind: EdgeKind, edges: &BTreeSet<Edge>) -> String {
    let (number, table, pairs) = (kind as u8, kind.table(), pairs(edges));
    format!(
        "SELECT {number}, source, target, since FROM {table} \
         WHERE (source, target) IN (VALUES {pairs})"
    )
}

/// Returns the statement that ends edges.
fn ends_text(kind: EdgeKind, edges: &[Edge]) -> String {
    format!("DELETE FROM {} WHERE (source, target) IN (VALUES {})", kind.table(), pairs(edges))
}

/// Returns the statements that write what has changed.
fn changes_text(graph: &Graph) -> String {
    let mut statements = Vec::new();
    for kind in EdgeKind::ALL {
        let table = kind.table();
        let (ended, created) = graph.changed_edges(kind);
        if !ended.is_empty() {
            statements.push(ends_text(kind, &ended));
        }
        if !created.is_empty() {
            let row = |(Edge { from, to }, since): &(Edge, u64)| format!("({from}, {to}, {since})");
            let rows = join(created.iter().map(row));
            statements.push(format!("INSERT INTO {table} (source, target, since) VALUES {rows}"));
        }
    }
    for step in &graph.deletions {
        statements.extend(match step {
            Step::Delete(user) => Some(format!("INSERT INTO deletions (id) VALUES ({user})")),
            Step::Deleted(user) => Some(format!("DELETE FROM deletions WHERE id = {user}")),
            Step::Create(..) | Step::End(..) => None,
        });
    }
    let rows = join(graph.changed_accounts().map(|(user, account)| account_row(user, account)));
    if !rows.is_empty() {
        statements.push(update_text(&rows));
    }
    statements.join("; ")
}

/// Returns the statement that updates accounts to rows of their columns.
fn update_text(rows: &str) -> String {
    let columns = columns();
    let set = join(
        columns
            .iter()
            .enumerate()
            .skip(1)
            .map(|(at, column)| format!("{column} = column{}", at + 1)),
    );
    format!("UPDATE accounts SET {set} FROM (VALUES {rows}) AS changed WHERE id = column1")
}

fn account_row(user: UserId, account: &Account) -> String {
    let mut row = format!("({user}, {}, {}", account.newest, account.deleted);
    for list in List::ALL {
        let of_list = account.list(list);
        // Writing to a string does not fail.
        let _ = write!(row, ", {}, {}", of_list.length, of_list.revision);
    }
    row.push(')');
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

        let user = |n: u64| UserId::new(4 * n).unwrap();
        let users: BTreeSet<UserId> = (1..400).map(user).collect();
        let edges: BTreeSet<Edge> =
            (1..400).map(|n| Edge { from: user(n), to: user(n + 1) }).collect();
        let list: Vec<Edge> = edges.iter().copied().collect();
        let peers: Vec<u64> = users.iter().map(|user| user.get()).collect();
        let row = |user| account_row(user, &Account::default());
        let rows = join(users.iter().copied().map(row));
        let mut statements: Vec<String> =
            lock_text(&users, &users, true).split("; ").map(str::to_owned).collect();
        statements.push(update_text(&rows));
        for kind in EdgeKind::ALL {
            statements.extend([edges_text(kind, &edges), ends_text(kind, &list)]);
        }
        for list in List::ALL {
            statements.push(items::among_text(&[list], 4, &peers));
            statements.push(items::load_text(list, true));
            statements.extend([true, false].map(|newest| items::page_text(list, newest)));
        }
        statements.push(items::counts_text(&peers));
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
