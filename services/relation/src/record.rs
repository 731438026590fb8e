//! The record of the follow graph in SQL: the source edges of follows and blocks, the mutes, and the
//! deleted accounts. Inverse edges, indexes and mutuals follow from them.
//!
//! An edge that has ended keeps its row: the end is newer than what a copy of Redis may have.
//!
//! The journals of both accounts have the changes of a follow or block, and are recorded in any order:
//! the greatest version wins, and at the same version the end. If Redis loses one side before it was
//! recorded, the row is written from the other one, from which the recovery then restores it. Mutes
//! have one journal, whose order counts: after a clock was set back, versions may be smaller.

mod unchanged;

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    time::SystemTime,
};

use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, future::BoxFuture, stream};
use microblog_domain::{Partition, Stamp, UserId};
use microblog_keyspace::{Journals, Recovery};
use microblog_proto::common::{self as pb, ChangeKind};
use microblog_record::{
    Damaged, Database, Error as DatabaseError, ExistingPage, Migration, POSITIONS, RecordError,
    Recorder, Replace, RowKey, Tables, Work, WriteTransaction, change_feed,
    sql::{
        ROWS_MAX, check_partition, key_behind, next_page, number, read, read_id, read_partition,
        rows, statement,
    },
};
use sqlx::{Row as _, any::AnyRow};

use crate::{
    changes,
    edge_saga::EdgeSaga,
    error::Error,
    graph::{Change, Edge, List},
    journal::JournalEntry,
    keys,
    store::{Store, ids},
};

/// The change journals of the service.
const JOURNALS: Journals = Journals { key: keys::journal };

/// The lists whose entries are edges.
const RECORDED: [List; 3] = [List::Following, List::Blocks, List::Mutes];

/// The most entries of a list that are read at once.
const PAGE: usize = 1_000;

/// The lists that are read at once.
const READ_TOGETHER: usize = 64;

/// The tables of the service.
pub struct GraphTables {
    store: Store,
}

/// Returns the recorder of the service.
pub fn recorder(store: Store, database: Database) -> Recorder<GraphTables> {
    let store = store.ignoring_closed();
    let keyspace = store.keyspace().clone();
    Recorder::new("relation record", database, keyspace, JOURNALS, GraphTables { store })
}

impl Tables for GraphTables {
    const MIGRATIONS: &[Migration] =
        &[POSITIONS, (2, "edges", include_str!("record/0002_edges.sql")), change_feed(3)];

    const READS_SUBJECTS: bool = false;

    fn accounts_key(partition: Partition) -> String {
        keys::users(partition)
    }

    type Entry = JournalEntry;

    fn parse(entry: &str) -> Option<JournalEntry> {
        JournalEntry::parse(entry)
    }

    const CHANGE_KINDS: &[ChangeKind] = &changes::KINDS;

    fn change(entry: &JournalEntry) -> Option<pb::Change> {
        changes::change(entry)
    }

    fn existing<'a>(
        &'a self,
        database: &'a Database,
        kind: ChangeKind,
        after: RowKey,
    ) -> BoxFuture<'a, Result<ExistingPage, DatabaseError>> {
        changes::existing(database, kind, after).boxed()
    }

    fn unchanged<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        changes: &'a [JournalEntry],
    ) -> BoxFuture<'a, Result<BTreeSet<usize>, RecordError>> {
        async move { Ok(unchanged::unchanged(transaction, changes).await?) }.boxed()
    }

    fn apply<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        changes: &'a [JournalEntry],
        replace: Replace,
    ) -> Work<'a> {
        Box::pin(async move { Ok(apply(transaction, changes, replace).await?) })
    }

    fn clear<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        partition: Partition,
    ) -> Work<'a> {
        Box::pin(async move {
            for delete in [
                "DELETE FROM edges WHERE partition = $1",
                "DELETE FROM deleted_accounts WHERE partition = $1",
            ] {
                let delete = sqlx::query(delete).bind(i64::from(partition.number()));
                delete.execute(&mut **transaction).await?;
            }
            Ok(())
        })
    }

    fn restore<'a>(
        &'a self,
        database: &'a Database,
        recovery: Recovery,
        damaged: &'a Damaged,
    ) -> Work<'a> {
        let edges = EdgeSaga::new(self.store.clone());
        let partition = recovery.partition;
        let restore = Restore { store: &self.store, edges, database, recovery, partition, damaged };
        Box::pin(restore.run())
    }

    fn fill<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        partitions: &'a [Partition],
    ) -> Work<'a> {
        Box::pin(async move {
            for &partition in partitions {
                self.fill_partition(transaction, partition).await?;
            }
            Ok(())
        })
    }
}

async fn apply(
    transaction: &mut WriteTransaction,
    changes: &[JournalEntry],
    replace: Replace,
) -> Result<(), sqlx::Error> {
    // A statement writes a row once.
    let (mut edges, mut mutes, mut deletions) =
        (BTreeMap::<_, Change>::new(), BTreeMap::new(), BTreeMap::new());
    for &change in changes {
        match change {
            JournalEntry::Edge(List::Mutes, change) | JournalEntry::Still(List::Mutes, change) => {
                mutes.insert((List::Mutes as i64, change.edge), change);
            }
            JournalEntry::Edge(list, change) | JournalEntry::Still(list, change) => {
                let source = list.source().unwrap_or(list) as i64;
                let newest = edges.entry((source, change.edge)).or_insert(change);
                if (newest.version, !newest.exists) < (change.version, !change.exists) {
                    *newest = change;
                }
            }
            JournalEntry::Forget(user, stamp) => {
                deletions.entry(user).or_insert((stamp, false));
            }
            JournalEntry::Forgotten(user, stamp) => {
                mutes.retain(|&(_, edge): &(i64, Edge), _| edge.from != user);
                deletions.entry(user).or_insert((stamp, true)).1 = true;
            }
        }
    }
    let deletions: Vec<_> = deletions.into_iter().collect();
    upsert_deletions(transaction, &deletions).await?;
    for (user, _) in deletions.iter().filter(|(_, (_, is_done))| *is_done) {
        delete_mutes(transaction, *user).await?;
    }
    let rows = |edges: BTreeMap<(i64, Edge), Change>| -> Vec<_> {
        edges.into_iter().map(|((kind, _), edge)| (kind, edge)).collect()
    };
    upsert_edges(transaction, &rows(mutes), replace).await?;
    upsert_edges(transaction, &rows(edges), Replace::Older).await
}

impl GraphTables {
    async fn fill_partition(
        &self,
        transaction: &mut WriteTransaction,
        partition: Partition,
    ) -> Result<(), RecordError> {
        let mut cursor = 0;
        loop {
            let (next, mut users) = self.store.users(partition, cursor).await?;
            // A scan may return an account twice, but a statement must not write a row twice.
            users.sort_unstable();
            users.dedup();
            self.fill_users(transaction, &users).await?;
            if next == 0 {
                break;
            }
            cursor = next;
        }
        let deletions = self.store.forgotten(partition).await?;
        let deletions: Vec<_> =
            deletions.into_iter().map(|(user, done)| (user, (0, done))).collect();
        Ok(upsert_deletions(transaction, &deletions).await?)
    }

    async fn fill_users(
        &self,
        transaction: &mut WriteTransaction,
        users: &[UserId],
    ) -> Result<(), RecordError> {
        let lists: Vec<_> =
            users.iter().flat_map(|&user| RECORDED.map(|list| (list, user))).collect();
        let read = |(list, user)| self.read_list(list, user);
        let mut lists = pin!(stream::iter(lists).map(read).buffered(READ_TOGETHER));
        let mut edges = Vec::new();
        while let Some(list) = lists.try_next().await? {
            edges.extend(list);
            if edges.len() >= PAGE {
                upsert_edges(transaction, &edges, Replace::Older).await?;
                edges.clear();
            }
        }
        Ok(upsert_edges(transaction, &edges, Replace::Older).await?)
    }

    // Returns a list, which is within the limits of follows, blocks and mutes.
    async fn read_list(&self, list: List, user: UserId) -> Result<Vec<(i64, Change)>, RecordError> {
        let (mut edges, mut after) = (Vec::new(), None);
        loop {
            let page = self.store.page(list, user, after, None, PAGE).await?;
            edges.extend(page.entries.iter().zip(ids(&page.entries)).map(|(entry, to)| {
                let edge = Edge { from: user, to };
                (list as i64, Change { edge, version: entry.score, exists: true })
            }));
            after = page.entries.last().copied();
            if !page.more {
                return Ok(edges);
            }
        }
    }
}

async fn upsert_edges(
    transaction: &mut WriteTransaction,
    edges: &[(i64, Change)],
    replace: Replace,
) -> Result<(), sqlx::Error> {
    let condition = match replace {
        Replace::All => "",
        // An end may have the version of its beginning.
        Replace::Older => {
            "WHERE edges.version < excluded.version \
             OR edges.version = excluded.version AND edges.ended < excluded.ended"
        }
    };
    for edges in edges.chunks(ROWS_MAX) {
        let text = format!(
            "INSERT INTO edges (partition, kind, source, target, target_partition, version, ended) \
             VALUES {} ON CONFLICT (partition, kind, source, target) DO UPDATE \
             SET version = excluded.version, ended = excluded.ended {condition}",
            rows(transaction.backend_name(), edges.len(), 7)
        );
        let query = edges.iter().fold(statement(text), |query, (kind, change)| {
            let Edge { from, to } = change.edge;
            query
                .bind(i64::from(from.partition().number()))
                .bind(*kind)
                .bind(number(from.get()))
                .bind(number(to.get()))
                .bind(i64::from(to.partition().number()))
                .bind(number(change.version))
                .bind(i64::from(!change.exists))
        });
        query.execute(&mut **transaction).await?;
    }
    Ok(())
}

/// Writes deleted accounts, with the stamps of their deletion and whether it is complete.
async fn upsert_deletions(
    transaction: &mut WriteTransaction,
    deletions: &[(UserId, (u64, bool))],
) -> Result<(), sqlx::Error> {
    for deletions in deletions.chunks(ROWS_MAX) {
        let text = format!(
            "INSERT INTO deleted_accounts (account, partition, since, complete) VALUES {} \
             ON CONFLICT (account) DO UPDATE SET complete = excluded.complete \
             WHERE deleted_accounts.complete < excluded.complete",
            rows(transaction.backend_name(), deletions.len(), 4)
        );
        let query = deletions.iter().fold(statement(text), |query, (user, (since, complete))| {
            query
                .bind(number(user.get()))
                .bind(i64::from(user.partition().number()))
                .bind(number(*since))
                .bind(i64::from(*complete))
        });
        query.execute(&mut **transaction).await?;
    }
    Ok(())
}

// The mutes of a deleted account go with it, without ends.
async fn delete_mutes(transaction: &mut WriteTransaction, user: UserId) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM edges WHERE partition = $1 AND kind = $2 AND source = $3")
        .bind(i64::from(user.partition().number()))
        .bind(List::Mutes as i64)
        .bind(number(user.get()))
        .execute(&mut **transaction)
        .await
        .map(|_| ())
}

/// Writes the rows of a partition to Redis: the source edges of its accounts, and the inverse edges
/// of others that end there.
struct Restore<'a> {
    store: &'a Store,
    edges: EdgeSaga,
    database: &'a Database,
    recovery: Recovery,
    partition: Partition,
    damaged: &'a Damaged,
}

/// The start of a page of edges: the kind, the first account and the second one.
type Cursor = [i64; 3];

/// The start of the first page: damaged rows may have negative ids.
const FIRST: Cursor = [i64::MIN; 3];

impl Restore<'_> {
    // Ends come first: nothing that is blocked or has ended must show meanwhile.
    async fn run(self) -> Result<(), RecordError> {
        self.raise_clock().await?;
        self.restore_deletions().await?;
        for ended in [1, 0] {
            let mut next = Some(FIRST);
            while let Some(after) = next {
                let edges: Vec<(List, Change)>;
                (edges, next) = self.page(SOURCES, ended, after).await?;
                for (list, changes) in by_list(edges) {
                    let written = self.store.restore(self.recovery, list, &changes).await?;
                    self.complete(list, &written).await?;
                }
            }
        }
        for ended in [1, 0] {
            let mut next = Some(FIRST);
            while let Some(after) = next {
                let edges: Vec<(List, Change)>;
                (edges, next) = self.page(TARGETS, ended, after).await?;
                for (list, changes) in by_list(edges) {
                    self.project(list, &changes).await?;
                }
            }
        }
        Ok(())
    }

    async fn raise_clock(&self) -> Result<(), RecordError> {
        // Versions of reconciled edges may be far ahead of the clock.
        let newest = "SELECT COALESCE(MAX(version), 0) FROM edges \
                      WHERE partition = $1 AND version BETWEEN 1 AND $2";
        let now = Stamp::first_at(SystemTime::now(), self.partition);
        let work = async {
            let query = sqlx::query(newest).bind(i64::from(self.partition.number()));
            let query = query.bind(number(now.get()));
            read(&query.fetch_one(self.database.writers()).await?, 0)
        };
        let newest = self.database.write("SELECT edges", work).await?;
        Ok(self.store.raise_clock(self.partition, newest).await?)
    }

    async fn restore_deletions(&self) -> Result<(), RecordError> {
        const DELETIONS: &str = "SELECT account, since FROM deleted_accounts \
            WHERE partition = $1 AND account > $2 ORDER BY account LIMIT $3";
        let mut next = Some(i64::MIN);
        while let Some(after) = next {
            let query = sqlx::query(DELETIONS).bind(i64::from(self.partition.number()));
            let query = query.bind(after).bind(PAGE as i64);
            let work = async { query.fetch_all(self.database.writers()).await };
            let rows = self.database.write("SELECT deleted_accounts", work).await?;
            next = next_page(&rows, PAGE);
            let deletion = |row: &AnyRow| {
                let user = read_id(row, 0, UserId::new)?;
                check_partition(self.partition, user.partition())?;
                Ok((user, read_id(row, 1, Stamp::new)?.get()))
            };
            let deletions = self.damaged.decode("deleted_accounts", 1, &rows, deletion);
            self.store.restore_deletions(&deletions).await?;
        }
        Ok(())
    }

    // Returns a page of edges, and the start of the next one, if there may be one.
    async fn page(
        &self,
        (partition, first, second): (&'static str, &'static str, &'static str),
        ended: i64,
        [kind, after_first, after_second]: Cursor,
    ) -> Result<(Vec<(List, Change)>, Option<Cursor>), DatabaseError> {
        let text = format!(
            "SELECT kind, source, target, partition, target_partition, version FROM edges \
             WHERE {partition} = $1 AND ended = $2 \
             AND (kind, {first}, {second}) > ($3, $4, $5) ORDER BY kind, {first}, {second} LIMIT $6"
        );
        let query = statement(text).bind(i64::from(self.partition.number())).bind(ended);
        let query = query.bind(kind).bind(after_first).bind(after_second).bind(PAGE as i64);
        let work = async { query.fetch_all(self.database.writers()).await };
        let rows = self.database.write("SELECT edges", work).await?;
        let last = rows.last().filter(|_| rows.len() == PAGE);
        let next = last.and_then(|last| behind(last, first, second));
        let edge = |row: &AnyRow| edge(row, ended == 0);
        Ok((self.damaged.decode("edges", 3, &rows, edge), next))
    }

    // Completes the sagas of written source edges. What cannot be completed stays in the outbox.
    async fn complete(&self, list: List, written: &[Change]) -> Result<(), RecordError> {
        match list {
            List::Following => later(self.edges.complete(written).await),
            List::Blocks => {
                for block in written {
                    later(self.edges.complete_block(block, 0).await)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    // Corrects the inverse side of edges whose source edges may be intact.
    async fn project(&self, list: List, changes: &[Change]) -> Result<(), RecordError> {
        let Some(inverse) = list.inverse() else { return Ok(()) };
        let entry = |change: &Change| (inverse, change.edge.to, change.edge.from);
        let entries: Vec<_> = changes.iter().map(entry).collect();
        let known = self.store.entries(&entries).await?;
        let differs = |(change, known): &(&Change, u64)| match change.exists {
            true => *known < change.version,
            false => *known > 0 && *known < change.version,
        };
        let differing: Vec<_> = changes.iter().zip(known).filter(differs).collect();
        // The database may lack the newest change of the source edge.
        let entry = |(change, _): &(&Change, u64)| (list, change.edge.from, change.edge.to);
        let sources = self.store.entries(&differing.iter().map(entry).collect::<Vec<_>>()).await?;
        let is_newest = |((change, _), source): &(&(&Change, u64), u64)| {
            *source == if change.exists { change.version } else { 0 }
        };
        let newest =
            differing.iter().zip(sources).filter(is_newest).map(|(differing, _)| differing);
        let newest: Vec<Change> = newest.map(|(change, _)| **change).collect();
        if list == List::Following {
            Ok(self.store.restore_inverse(self.recovery, newest).await?)
        } else {
            // A block also ends follows, which are changes: after the recovery.
            Ok(self.store.restore_blocked(self.recovery, &newest).await?)
        }
    }
}

/// Returns the cursor behind a row.
fn behind(row: &AnyRow, first: &str, second: &str) -> Option<Cursor> {
    let [kind, first, second] =
        ["kind", first, second].map(|column| row.try_get::<i64, _>(column).ok());
    Some(match (kind?, key_behind(first, second)) {
        (kind, Some([first, second])) => [kind, first, second],
        (kind, None) => [kind.saturating_add(1), i64::MIN, i64::MIN],
    })
}

fn edge(row: &AnyRow, exists: bool) -> Result<(List, Change), sqlx::Error> {
    let kind = read(row, 0)?;
    let list = RECORDED.iter().copied().find(|&list| list as u64 == kind);
    let list = list.ok_or_else(|| sqlx::Error::Decode("kind of an edge".into()))?;
    let edge = Edge { from: read_id(row, 1, UserId::new)?, to: read_id(row, 2, UserId::new)? };
    check_partition(read_partition(row, 3)?, edge.from.partition())?;
    check_partition(read_partition(row, 4)?, edge.to.partition())?;
    let version = read_id(row, 5, Stamp::new)?.get();
    Ok((list, Change { edge, version, exists }))
}

/// Returns the edges of each list, in their order.
fn by_list(edges: Vec<(List, Change)>) -> impl Iterator<Item = (List, Vec<Change>)> {
    let of = |list: List| {
        let changes = edges.iter().filter(|(of, _)| *of == list).map(|(_, change)| *change);
        (list, changes.collect::<Vec<_>>())
    };
    RECORDED.map(of).into_iter().filter(|(_, changes)| !changes.is_empty())
}

/// The columns of pages: of the partition, and of the first and second account.
const SOURCES: (&str, &str, &str) = ("partition", "source", "target");
const TARGETS: (&str, &str, &str) = ("target_partition", "target", "source");

// A step in a partition that is being recovered, or one that is not durable yet, is completed by the
// sweeper.
fn later<T>(step: Result<T, Error>) -> Result<(), RecordError> {
    use microblog_keyspace::Error as StoreError;
    match step {
        Ok(_)
        | Err(Error::Store(
            StoreError::Recovering(_) | StoreError::NotReplicated(_) | StoreError::NotRecorded(_),
        )) => Ok(()),
        Err(Error::Store(error)) => Err(error.into()),
        // The other account is deleted: the saga has compensated the edge.
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use proptest::{collection::vec, prelude::*};
    use sqlx::Row as _;

    use super::*;

    type Edges = BTreeSet<(i64, u64, u64)>;

    fn entry() -> impl Strategy<Value = String> {
        const KINDS: [&str; 13] = [
            "follow",
            "unfollow",
            "followed",
            "unfollowed",
            "block",
            "unblock",
            "blocked",
            "unblocked",
            "mute",
            "unmute",
            "still follow",
            "still unblock",
            "forgotten",
        ];
        let ids = (1..4_u64, 1..4_u64, 7..12_u64);
        (prop::sample::select(&KINDS[..]), ids).prop_map(|(kind, (from, to, stamp))| match kind {
            "forgotten" => format!("forgotten {} {stamp}", from * 4),
            _ => format!("{kind} {} {} {stamp}", from * 4, to * 4),
        })
    }

    fn replay<'a>(entries: impl IntoIterator<Item = &'a str>) -> Edges {
        let (mut mutes, mut edges) = (Edges::new(), BTreeMap::new());
        for entry in entries {
            match JournalEntry::parse(entry).unwrap() {
                JournalEntry::Edge(list, Change { edge, version, exists })
                | JournalEntry::Still(list, Change { edge, version, exists }) => {
                    let edge =
                        (list.source().unwrap_or(list) as i64, edge.from.get(), edge.to.get());
                    match (list, exists) {
                        (List::Mutes, true) => _ = mutes.insert(edge),
                        (List::Mutes, false) => _ = mutes.remove(&edge),
                        _ => {
                            let newest = edges.entry(edge).or_default();
                            *newest = (version, !exists).max(*newest);
                        }
                    }
                }
                JournalEntry::Forgotten(user, _) => mutes.retain(|edge| edge.1 != user.get()),
                JournalEntry::Forget(..) => {}
            }
        }
        let current = edges.into_iter().filter(|(_, (_, ended))| !ended).map(|(edge, _)| edge);
        mutes.into_iter().chain(current).collect::<Edges>()
    }

    async fn recorded(batches: &[Vec<String>]) -> Edges {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/relation.db", directory.path().display());
        let config = crate::Config::parse_from(["relation", "--database-url", &url]);
        let database = Database::open(&config.database).unwrap().unwrap();
        database.migrate(GraphTables::MIGRATIONS).await.unwrap();
        for batch in batches {
            let mut transaction = database.begin().await.unwrap();
            let changes: Vec<_> =
                batch.iter().map(|entry| JournalEntry::parse(entry).unwrap()).collect();
            apply(&mut transaction, &changes, Replace::All).await.unwrap();
            transaction.commit().await.unwrap();
        }
        let read = sqlx::query("SELECT kind, source, target FROM edges WHERE ended = 0");
        let rows = read.fetch_all(database.readers()).await.unwrap();
        let number = |row: &sqlx::any::AnyRow, column: usize| row.get::<i64, _>(column);
        rows.iter()
            .map(|row| (number(row, 0), number(row, 1) as u64, number(row, 2) as u64))
            .collect()
    }

    #[tokio::test]
    async fn an_end_stays_where_redis_has_its_beginning() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/relation.db", directory.path().display());
        let config = crate::Config::parse_from(["relation", "--database-url", &url]);
        let database = Database::open(&config.database).unwrap().unwrap();
        database.migrate(GraphTables::MIGRATIONS).await.unwrap();
        let user = |n| UserId::new(n).unwrap();
        let edge = Edge { from: user(4), to: user(8) };
        let mute = |exists| [(List::Mutes as i64, Change { edge, version: 7, exists })];
        let mut transaction = database.begin().await.unwrap();
        upsert_edges(&mut transaction, &mute(false), Replace::All).await.unwrap();
        upsert_edges(&mut transaction, &mute(true), Replace::Older).await.unwrap();
        transaction.commit().await.unwrap();
        let ended = sqlx::query("SELECT ended FROM edges").fetch_one(database.readers()).await;
        assert_eq!(ended.unwrap().get::<i64, _>(0), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn rows_are_what_the_changes_lead_to(batches in vec(vec(entry(), 0..40), 1..4)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let found = runtime.block_on(recorded(&batches));
            let expected = replay(batches.iter().flatten().map(String::as_str));
            prop_assert_eq!(found, expected);
        }
    }
}
