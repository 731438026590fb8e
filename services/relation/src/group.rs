//! A group of calls as one transaction: locks the rows of its accounts, reads the edges between them,
//! takes the steps, and writes what has changed. The text of a statement depends at most on the tables that
//! are written: a connection prepares each once.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    iter,
};

use futures::future::{BoxFuture, FutureExt as _};
use microblog_domain::UserId;
use microblog_record::{number_rows, sql::statement};
use microblog_storage::{
    Change, Decided, EntryKeys, FeedRow, Group, History, Item as _, ItemRevision, Patch, Record,
    Transaction, Writes,
};
use sqlx::any::AnyRow;

use crate::{
    changes,
    graph::{Edge, EdgeKind, List},
    items::Front,
    steps::{Account, Event, Graph, ItemChange, Limits, ListRow, Outcome, Step},
    tables::{join, packed, read_packed},
};

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

    const ACCOUNT_COLUMNS: usize = COLUMNS;

    fn weight(&self, steps: &Vec<Step>) -> usize {
        steps.len()
    }

    fn accounts(&self, calls: &[Vec<Step>]) -> BTreeSet<u64> {
        let makes = |step: &&Step| matches!(step, Step::Create(..) | Step::Delete(_));
        accounts(calls.iter().flatten().filter(makes))
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
    Ok(Decided { outcomes, changes, created: Vec::new(), feed, has_others: false })
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
    let keys = EntryKeys::new(List::PREFIX, list.name(), history, user.partition(), user.get());
    Change { keys, before, after, patch, limits: list.limits() }
}

fn feed_row(graph: &Graph, event: &Event) -> FeedRow {
    let item = |&(list, user): &(List, UserId)| ItemRevision {
        kind: list.name().to_owned(),
        id: user.get(),
        revision: graph.revisions(list, user).1,
    };
    FeedRow { items: event.items.iter().map(item).collect(), change: changes::text(event) }
}

/// Returns the accounts of some steps.
fn accounts<'a>(steps: impl Iterator<Item = &'a Step>) -> BTreeSet<u64> {
    steps.flat_map(|step| step.accounts()).map(UserId::get).collect()
}

/// Locks the rows of all accounts of the steps, in the order of the ids.
async fn lock(
    transaction: &mut Transaction,
    steps: &[Step],
) -> Result<BTreeMap<UserId, Account>, sqlx::Error> {
    let is_sqlite = transaction.is_sqlite();
    let lock = statement(lock_text(is_sqlite));
    let lock = number_rows::bind_column(lock, is_sqlite, accounts(steps.iter()));
    let rows = lock.fetch_all(transaction.connection()).await?;
    rows.iter().map(read_account).collect()
}

/// Returns the statement that locks and reads accounts.
fn lock_text(is_sqlite: bool) -> String {
    let lock = if is_sqlite { "" } else { "FOR NO KEY UPDATE" };
    let (account, is_one) = (packed(columns()), number_rows::contains(is_sqlite, "id", 1));
    format!("SELECT {account} FROM accounts WHERE {is_one} ORDER BY id {lock}")
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

/// Writes what has changed: the edges that are not any more what they were, then the new ones and the accounts.
async fn write_changes(transaction: &mut Transaction, graph: &Graph) -> Result<(), sqlx::Error> {
    let is_sqlite = transaction.is_sqlite();
    let mut writes = Writes::of(transaction);
    for kind in EdgeKind::ALL {
        let (ended, created) = graph.changed_edges(kind);
        let ended = ended.iter().map(|Edge { from, to }| [from.get(), to.get()]);
        write(transaction, end_text(kind, is_sqlite), ended).await?;
        let row = |(Edge { from, to }, since): &(Edge, u64)| [from.get(), to.get(), *since];
        let create = |is_sqlite, first| create_text(kind, is_sqlite, first);
        writes.numbers(create, created.iter().map(row));
    }
    let begun = |step: &Step| if let Step::Delete(user) = step { Some([user.get()]) } else { None };
    let ended =
        |step: &Step| if let Step::Deleted(user) = step { Some([user.get()]) } else { None };
    let deletions = graph.deletions.iter();
    writes.numbers(begin_deletions_text, deletions.clone().filter_map(begun));
    let accounts = graph.changed_accounts().map(|(user, account)| account_row(user, account));
    writes.numbers(update_text, accounts);
    writes.execute(transaction).await?;
    write(transaction, end_deletions_text(is_sqlite), deletions.filter_map(ended)).await
}

/// Executes a statement with rows, if there are any.
async fn write<const COLUMNS: usize>(
    transaction: &mut Transaction,
    text: String,
    rows: impl Iterator<Item = [u64; COLUMNS]>,
) -> Result<(), sqlx::Error> {
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return Ok(());
    }
    let query = number_rows::bind(statement(text), transaction.is_sqlite(), &rows);
    query.execute(transaction.connection()).await.map(drop)
}

/// Returns the statement that ends edges.
fn end_text(kind: EdgeKind, is_sqlite: bool) -> String {
    let (table, edges) = (kind.table(), number_rows::table(is_sqlite, 1, 2));
    let bound = bound(is_sqlite, 1, &["source", "target"]);
    format!(
        "DELETE FROM {table} WHERE (source, target) IN (SELECT column1, column2 FROM {edges}){bound}"
    )
}

/// Returns a condition that follows from a join with rows on their first columns. With it, PostgreSQL reads
/// no whole index of a table that is small, nor keeps such a plan when the table has grown.
fn bound(is_sqlite: bool, first: usize, columns: &[&str]) -> String {
    let columns = if is_sqlite { &[] } else { columns };
    let condition =
        |(column, at): (&&str, usize)| format!(" AND {}", number_rows::contains(false, column, at));
    columns.iter().zip(first..).map(condition).collect()
}

fn begin_deletions_text(is_sqlite: bool, first: usize) -> String {
    let ids = number_rows::table(is_sqlite, first, 1);
    format!("INSERT INTO deletions (id) SELECT column1 FROM {ids}")
}

fn end_deletions_text(is_sqlite: bool) -> String {
    format!("DELETE FROM deletions WHERE {}", number_rows::contains(is_sqlite, "id", 1))
}

/// Returns the statement that creates edges.
fn create_text(kind: EdgeKind, is_sqlite: bool, first: usize) -> String {
    let (table, edges) = (kind.table(), number_rows::table(is_sqlite, first, 3));
    format!(
        "INSERT INTO {table} (source, target, since) SELECT column1, column2, column3 FROM {edges}"
    )
}

/// Returns the statement that updates accounts to rows of their columns.
fn update_text(is_sqlite: bool, first: usize) -> String {
    let set = columns().into_iter().zip(1..).skip(1);
    let set = join(set.map(|(column, at)| format!("{column} = column{at}")));
    let (rows, bound) =
        (number_rows::table(is_sqlite, first, COLUMNS), bound(is_sqlite, first, &["id"]));
    format!("UPDATE accounts SET {set} FROM {rows} WHERE id = column1{bound}")
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
    use microblog_storage::{Tables, transaction::make_accounts_text};
    use sqlx::{AssertSqlSafe, Row as _};

    use super::*;
    use crate::{items, tables::MIGRATIONS};

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        database: microblog_record::Config,
    }

    /// The statements that find rows by their keys.
    fn statements(is_sqlite: bool) -> Vec<String> {
        let mut statements = vec![
            make_accounts_text(is_sqlite, COLUMNS),
            lock_text(is_sqlite),
            edges_text(is_sqlite),
            update_text(is_sqlite, 1),
            end_deletions_text(is_sqlite),
            items::counts_text(is_sqlite),
        ];
        for kind in EdgeKind::ALL {
            statements.extend([end_text(kind, is_sqlite), create_text(kind, is_sqlite, 1)]);
        }
        for list in List::ALL {
            statements.push(items::among_text(&[list], is_sqlite));
            statements.push(items::load_text(list, is_sqlite));
            statements.extend([true, false].map(|newest| items::page_text(list, newest)));
        }
        statements
    }

    async fn open(url: &str) -> Database {
        let flags = <Flags as clap::Parser>::parse_from(["test", "--database-url", url]);
        let database = Database::open(&flags.database).unwrap();
        Tables::new(database.clone(), &MIGRATIONS).database().await.unwrap();
        database
    }

    /// The plans of SQLite, which has no statistics, so they are those of tables of any size.
    #[tokio::test]
    async fn no_statement_of_a_call_reads_a_whole_table() {
        let directory = tempfile::tempdir().unwrap();
        let database =
            open(&format!("sqlite://{}/a.db?mode=rwc", directory.path().display())).await;
        for statement in statements(true) {
            let explain = format!("EXPLAIN QUERY PLAN {statement}");
            let explain = AssertSqlSafe(
                explain.replace("$1", "4").replace("$2", "9").replace("$3", "9").replace("$4", "9"),
            );
            let plan = sqlx::raw_sql(explain).fetch_all(database.readers()).await.unwrap();
            for step in plan {
                let step: String = step.try_get(3).unwrap();
                let tables = ["accounts", "follows", "blocks", "mutes", "deletions", "f", "g"];
                let reads_all = tables.iter().any(|table| {
                    step == format!("SCAN {table}") || step.starts_with(&format!("SCAN {table} "))
                });
                assert!(!reads_all, "{step}: {statement}");
            }
        }
    }

    /// PostgreSQL keeps the plan of a statement while its tables grow.
    #[tokio::test]
    async fn a_plan_is_good_for_tables_of_any_size() {
        let server = microblog_testkit::PostgresServer::start().await;
        let database = open(&server.url()).await;
        for (size, accounts) in [("empty", 0), ("small", 5), ("large", 5_000)] {
            let zeros = ", 0".repeat(COLUMNS - 1);
            server.sql(&format!(
                "TRUNCATE accounts, follows; \
                 INSERT INTO accounts SELECT n{zeros} FROM generate_series(1, {accounts}) AS n; \
                 INSERT INTO follows SELECT a, a + b, 1 FROM generate_series(1, {accounts}) AS a, \
                 generate_series(1, 5) AS b"
            ));
            if accounts > 0 {
                server.sql("ANALYZE");
            }
            for statement in statements(false) {
                let parameters = (1..=COLUMNS).filter(|at| statement.contains(&format!("${at}")));
                let nulls = join(parameters.map(|_| "NULL"));
                let mut transaction = database.begin().await.unwrap();
                let prepare = AssertSqlSafe(format!("PREPARE explained AS {statement}"));
                sqlx::raw_sql(prepare).execute(&mut *transaction).await.unwrap();
                let explain = AssertSqlSafe(format!("EXPLAIN EXECUTE explained({nulls})"));
                let plan = sqlx::raw_sql(explain).fetch_all(&mut *transaction).await.unwrap();
                let plan: Vec<String> = plan.iter().map(|row| row.try_get(0).unwrap()).collect();
                sqlx::raw_sql("DEALLOCATE explained").execute(&mut *transaction).await.unwrap();
                for (at, line) in plan.iter().enumerate() {
                    let is_of_table = line.contains("Scan ")
                        && ["accounts", "follows", "blocks", "mutes", "deletions", "history"]
                            .iter()
                            .any(|table| line.contains(&format!(" on {table}")));
                    let condition = plan.get(at + 1).map_or("", String::as_str);
                    let is_by_key =
                        condition.contains("Index Cond") || condition.contains("Recheck Cond");
                    assert!(!is_of_table || is_by_key, "{size}: {statement}\n{}", plan.join("\n"));
                }
            }
        }
    }
}
