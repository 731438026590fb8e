//! The recorder: writes the changes of a service's journals to its database, each once, in order.
//!
//! A step locks the positions of some partitions, reads their journals from there, and writes the
//! changes and the new positions in one transaction. Any number of processes may run steps at once:
//! the locks order them. Partitions are locked in ascending order, so that steps do not deadlock.
//!
//! What must hold:
//!   * a change is written exactly once, after all earlier ones of its partition;
//!   * the entry at the position is in the journal, unless Redis has lost it: then nothing is
//!     written.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use microblog_domain::Partition;
use microblog_keyspace::{self as keyspace, BacklogMetrics, Change, Journals, Keyspace, Version};
use opentelemetry::{KeyValue, global, metrics::BoundGauge};
use sqlx::{Any, Row as _, Transaction, any::AnyRow};
use uuid::Uuid;

use crate::{
    Database, Error, Migration,
    sql::{ROWS_MAX, list, number, read, rows, statement},
};

/// The first migration of a database with a recorder.
pub const POSITIONS: Migration = (1, "journal positions", include_str!("positions.sql"));

/// The most entries of a journal that one step records.
const PAGE: usize = 1_000;

/// The most partitions of one transaction.
const RECORDED_TOGETHER: usize = 128;
const FILLED_TOGETHER: usize = 16;

/// How many recorded entries stay in a journal, if the database is restored from a copy.
const RETAINED: u64 = 100;

/// A database transaction.
pub type WriteTransaction = Transaction<'static, Any>;

/// The tables of a service.
pub trait Tables: Send + Sync {
    /// The migrations, beginning with [`POSITIONS`].
    const MIGRATIONS: &[Migration];

    /// Applies changes of any partitions, those of each partition in order.
    fn apply<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        changes: &'a [Change],
    ) -> BoxFuture<'a, Result<(), sqlx::Error>>;

    /// Applies changes of a partition, in order, where the tables have nothing newer.
    fn merge<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        changes: &'a [Change],
    ) -> BoxFuture<'a, Result<(), sqlx::Error>>;

    /// Deletes the rows of a partition.
    fn clear<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        partition: Partition,
    ) -> BoxFuture<'a, Result<(), sqlx::Error>>;

    /// Writes the rows of a partition to Redis, where Redis has nothing newer. May be repeated.
    fn restore<'a>(
        &'a self,
        database: &'a Database,
        partition: Partition,
    ) -> BoxFuture<'a, Result<(), RecordError>>;

    /// Writes what Redis has of some partitions, where the tables have nothing newer.
    fn fill<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        partitions: &'a [Partition],
    ) -> BoxFuture<'a, Result<(), RecordError>>;
}

/// Why changes were not recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The database failed.
    #[error(transparent)]
    Database(#[from] Error),
    /// Redis failed.
    #[error("Redis failed while it was read for the record")]
    Redis(#[from] keyspace::Error),
    /// Redis lacks recorded changes of some partitions.
    #[error("Redis lacks recorded changes of {} partitions, the first is {}", .0.len(), .0[0])]
    Diverged(Vec<Partition>),
    /// Another process recovers the partition.
    #[error("partition {0} is being recovered by another process")]
    Contended(Partition),
}

impl From<sqlx::Error> for RecordError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

/// What a step has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The partitions whose journals have more.
    pub more: Vec<Partition>,
    /// The partitions of which Redis lacks recorded changes. Nothing of them was recorded.
    pub diverged: Vec<Partition>,
    /// Of the others, the entries from the old position to the new one, both included.
    pub pages: BTreeMap<Partition, Vec<Change>>,
}

/// Records the changes of a service.
pub struct Recorder<T> {
    pub(crate) database: Database,
    pub(crate) keyspace: Keyspace,
    pub(crate) journals: Journals,
    tables: T,
    backlog: BacklogMetrics,
    diverged: BoundGauge<u64>,
    is_migrated: AtomicBool,
    // When the last complete run began, and the newest entries that it recorded.
    complete: Mutex<(Instant, Positions)>,
}

impl<T: Tables> Recorder<T> {
    /// Returns a recorder. The name is the service's, for metrics.
    pub fn new(
        name: &'static str,
        database: Database,
        keyspace: Keyspace,
        journals: Journals,
        tables: T,
    ) -> Self {
        let diverged = global::meter("microblog-record")
            .u64_gauge("microblog.record.diverged")
            .with_unit("{partition}")
            .with_description("Partitions of which Redis lacks recorded changes")
            .build();
        let backlog = BacklogMetrics::new(name);
        let diverged = diverged.bind(&[KeyValue::new("backlog", name)]);
        let is_migrated = AtomicBool::new(false);
        let complete = Mutex::new((Instant::now(), Positions::new()));
        Self { database, keyspace, journals, tables, backlog, diverged, is_migrated, complete }
    }

    /// Records the changes of all partitions, after it has filled those that are not yet recorded.
    pub async fn record_all(&self) -> Result<(), RecordError> {
        let begun = Instant::now();
        let all: Vec<_> = Partition::all().collect();
        let newest = self.journals.newest(&self.keyspace, &all).await?;
        let mut newest: Positions =
            all.iter().zip(newest).filter_map(|(&at, newest)| Some((at, newest?))).collect();
        self.note_backlog(&newest);
        if !self.is_migrated.load(Ordering::Relaxed) {
            self.database.migrate(T::MIGRATIONS).await?;
            self.is_migrated.store(true, Ordering::Relaxed);
        }
        let positions = self.positions().await?;
        let new: Vec<_> = all.iter().copied().filter(|at| !positions.contains_key(at)).collect();
        for partitions in new.chunks(FILLED_TOGETHER) {
            self.fill(partitions).await?;
        }
        for (&partition, position) in &positions {
            self.keyspace.require_version(partition, position.version);
        }
        let is_behind = |(at, position): &(&Partition, &Change)| newest.get(at) != Some(*position);
        let mut behind: Vec<_> = positions.iter().filter(is_behind).map(|(&at, _)| at).collect();
        let mut diverged = Vec::new();
        while !behind.is_empty() {
            let mut more = Vec::new();
            for partitions in behind.chunks(RECORDED_TOGETHER) {
                let recorded = self.record(partitions).await?;
                more.extend(recorded.more);
                diverged.extend(recorded.diverged);
            }
            behind = more;
        }
        self.diverged.record(diverged.len() as u64);
        newest.retain(|at, _| !diverged.contains(at));
        *self.complete.lock().unwrap_or_else(PoisonError::into_inner) = (begun, newest);
        if diverged.is_empty() { Ok(()) } else { Err(RecordError::Diverged(diverged)) }
    }

    // Compares the journals with those of the last complete run: also while the database is away.
    fn note_backlog(&self, newest: &Positions) {
        let complete = self.complete.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, recorded) = &*complete;
        let number = |change: Option<&Change>| change.map_or(0, |change| change.version.get());
        let behind = |(at, newest): (&Partition, &Change)| {
            newest.version.get().saturating_sub(number(recorded.get(at)))
        };
        let backlog: u64 = newest.iter().map(behind).sum();
        let age = if backlog > 0 { since.elapsed() } else { Duration::ZERO };
        self.backlog.note(backlog as usize, age, 0);
    }

    /// Records the changes of some partitions, up to a page of each. Partitions that are not filled
    /// are skipped.
    pub async fn record(&self, partitions: &[Partition]) -> Result<Recorded, RecordError> {
        let recorded = self.commit(partitions).await?;
        self.trim(&recorded).await?;
        Ok(recorded)
    }

    /// Records changes like [`Self::record`], and leaves the journals as they are.
    pub(crate) async fn commit(&self, partitions: &[Partition]) -> Result<Recorded, RecordError> {
        let (mut transaction, positions) =
            self.database.write("SELECT journal_positions", self.lock(partitions)).await?;
        let from: Vec<_> =
            positions.iter().map(|(&partition, at)| (partition, at.version)).collect();
        let pages = self.journals.pages(&self.keyspace, &from, PAGE + 1).await?;
        let (mut changes, mut ends, mut recorded) = (Vec::new(), Vec::new(), Recorded::default());
        for ((&partition, position), page) in positions.iter().zip(pages) {
            if page.first() != Some(position) || page.last().is_some_and(is_recovering) {
                recorded.diverged.push(partition);
                continue;
            }
            if page.len() > PAGE {
                recorded.more.push(partition);
            }
            if page.len() > 1 {
                ends.extend(page.last().map(|end| (partition, end.clone())));
                changes.extend_from_slice(&page[1..]);
            }
            recorded.pages.insert(partition, page);
        }
        if changes.is_empty() {
            return Ok(recorded);
        }
        let write = async {
            self.tables.apply(&mut transaction, &changes).await?;
            set_positions(&mut transaction, &ends).await?;
            transaction.commit().await
        };
        self.database.write("INSERT changes", write).await?;
        Ok(recorded)
    }

    // Opens the journals of partitions first: a change that the fill misses has an entry.
    async fn fill(&self, partitions: &[Partition]) -> Result<(), RecordError> {
        let version = Version::default().in_next_epoch(0);
        let opened = Change { version, text: format!("opened {}", Uuid::new_v4()) };
        for &partition in partitions {
            // Nothing is appended to an existing journal.
            self.journals.append(&self.keyspace, partition, &opened).await?;
        }
        let newest = self.journals.newest(&self.keyspace, partitions).await?;
        let positions = partitions.iter().copied().zip(newest);
        let positions: Vec<_> = positions.filter_map(|(at, newest)| Some((at, newest?))).collect();
        let mut transaction = self.database.write("BEGIN", self.database.begin()).await?;
        // The first of several recorders fills a partition; the others wait for it here.
        let new = insert_positions(&mut transaction, &positions).await?;
        self.tables.fill(&mut transaction, &new).await?;
        Ok(self.database.write("INSERT journal_positions", transaction.commit()).await?)
    }

    /// Recovers a partition of which Redis lacks recorded changes, or all of it. Ends with a new
    /// epoch of its journal. Until then, changes of the partition are rejected. May be repeated, also
    /// after a crash. Returns whether there was anything to recover.
    ///
    /// If the database is older than what Redis has, as after it was restored from a copy, the
    /// partition is written to it anew.
    pub async fn recover(&self, partition: Partition) -> Result<bool, RecordError> {
        let alone = [partition];
        // A partition that is behind, or yet to be filled, has lost nothing.
        loop {
            let recorded = self.record(&alone).await?;
            match (recorded.diverged.is_empty(), recorded.more.is_empty()) {
                (false, _) => break,
                (true, true) => return Ok(false),
                (true, false) => {}
            }
        }
        let newest = self.journals.newest(&self.keyspace, &alone).await?;
        let newest = newest.into_iter().flatten().next().unwrap_or_default().version;
        // Held until the database has what only Redis has.
        let (transaction, mut positions) =
            self.database.write("SELECT journal_positions", self.lock(&alone)).await?;
        let position = positions.remove(&partition).unwrap_or_default().version;
        let last = newest.max(position);
        let id = Uuid::new_v4();
        let begin = Change { version: last.in_next_epoch(0), text: format!("recovering {id}") };
        let end = Change { version: last.in_next_epoch(1), text: format!("recovered {id}") };
        let is_database_old = self.is_newer(partition, position).await?;
        if !self.journals.append(&self.keyspace, partition, &begin).await? {
            return Err(RecordError::Contended(partition));
        }
        self.merge(transaction, partition, is_database_old, begin).await?;
        self.tables.restore(&self.database, partition).await?;
        match self.journals.append(&self.keyspace, partition, &end).await? {
            true => Ok(true),
            false => Err(RecordError::Contended(partition)),
        }
    }

    // Returns whether Redis has trimmed the entry at the position, since it had been recorded: then
    // the database is older. A recovery that was not completed does not count.
    async fn is_newer(
        &self,
        partition: Partition,
        position: Version,
    ) -> Result<bool, keyspace::Error> {
        let oldest = [(partition, Version::default())];
        let pages = self.journals.pages(&self.keyspace, &oldest, PAGE).await?;
        let page = pages.into_iter().next().unwrap_or_default();
        Ok(page.first().is_some_and(|oldest| oldest.version > position)
            && !page.iter().all(is_recovering))
    }

    // Writes what only Redis has. Its journal may have changes that took the versions of lost ones.
    // The position becomes the entry that begins the recovery.
    async fn merge(
        &self,
        mut transaction: WriteTransaction,
        partition: Partition,
        is_database_old: bool,
        begin: Change,
    ) -> Result<(), RecordError> {
        if is_database_old {
            self.tables.clear(&mut transaction, partition).await?;
        }
        self.tables.fill(&mut transaction, &[partition]).await?;
        let mut from = Version::default();
        loop {
            let pages = self.journals.pages(&self.keyspace, &[(partition, from)], PAGE + 1).await?;
            let page = pages.into_iter().next().unwrap_or_default();
            let (changes, next) = page.split_at(page.len().min(PAGE));
            self.tables.merge(&mut transaction, changes).await?;
            let Some(next) = next.first() else { break };
            from = next.version;
        }
        let write = async {
            set_positions(&mut transaction, &[(partition, begin)]).await?;
            transaction.commit().await
        };
        Ok(self.database.write("INSERT journal_positions", write).await?)
    }

    async fn positions(&self) -> Result<Positions, Error> {
        let all = "SELECT partition, version, entry FROM journal_positions";
        self.database
            .read("SELECT journal_positions", async {
                let rows = sqlx::query(all).fetch_all(self.database.readers()).await?;
                rows.iter().map(position).collect()
            })
            .await
    }

    async fn lock(
        &self,
        partitions: &[Partition],
    ) -> Result<(WriteTransaction, Positions), sqlx::Error> {
        let mut transaction = self.database.begin().await?;
        let lock = if self.database.is_embedded() { "" } else { "FOR UPDATE" };
        let text = format!(
            "SELECT partition, version, entry FROM journal_positions WHERE partition IN ({}) \
             ORDER BY partition {lock}",
            list(1, partitions.len())
        );
        let query = partitions
            .iter()
            .fold(statement(text), |query, partition| query.bind(i64::from(partition.number())));
        let rows = query.fetch_all(&mut *transaction).await?;
        let positions = rows.iter().map(position).collect::<Result<_, _>>()?;
        Ok((transaction, positions))
    }

    /// Removes what was recorded from the journals, but for the newest entries. The entry at the
    /// position stays: it tells whether Redis has lost recorded changes.
    pub(crate) async fn trim(&self, recorded: &Recorded) -> Result<(), keyspace::Error> {
        // Redis removes whole nodes of a stream: most changes would remove none.
        let part = |change: &Change| change.version.get() / (RETAINED / 2);
        let before = |(&partition, page): (&Partition, &Vec<Change>)| {
            let (old, new) = (page.first()?, page.last()?.version);
            let number = new.number().saturating_sub(RETAINED);
            let is_due = part(old) != part(page.last()?);
            is_due.then(|| (partition, new.with_number(number)))
        };
        let before: Vec<_> = recorded.pages.iter().filter_map(before).collect();
        self.journals.trim(&self.keyspace, &before).await
    }
}

type Positions = BTreeMap<Partition, Change>;

/// Returns whether a change begins a recovery. As the newest one, it makes functions reject changes.
fn is_recovering(change: &Change) -> bool {
    change.text.starts_with("recovering ")
}

/// Inserts positions of partitions that have none, and returns these partitions.
async fn insert_positions(
    transaction: &mut WriteTransaction,
    positions: &[(Partition, Change)],
) -> Result<Vec<Partition>, sqlx::Error> {
    let rows = write_positions(transaction, positions, "NOTHING RETURNING partition").await?;
    rows.iter().map(partition).collect()
}

async fn set_positions(
    transaction: &mut WriteTransaction,
    positions: &[(Partition, Change)],
) -> Result<(), sqlx::Error> {
    let update = "UPDATE SET version = excluded.version, entry = excluded.entry";
    write_positions(transaction, positions, update).await.map(|_| ())
}

async fn write_positions(
    transaction: &mut WriteTransaction,
    positions: &[(Partition, Change)],
    on_conflict: &str,
) -> Result<Vec<AnyRow>, sqlx::Error> {
    let mut written = Vec::new();
    for positions in positions.chunks(ROWS_MAX) {
        let text = format!(
            "INSERT INTO journal_positions (partition, version, entry) VALUES {} \
             ON CONFLICT (partition) DO {on_conflict}",
            rows(transaction.backend_name(), positions.len(), 3)
        );
        let query = positions.iter().fold(statement(text), |query, (partition, at)| {
            query
                .bind(i64::from(partition.number()))
                .bind(number(at.version.get()))
                .bind(at.text.clone())
        });
        written.extend(query.fetch_all(&mut **transaction).await?);
    }
    Ok(written)
}

fn partition(row: &AnyRow) -> Result<Partition, sqlx::Error> {
    let number = u16::try_from(read(row, 0)?);
    Ok(Partition::new(number.map_err(|error| sqlx::Error::Decode(error.into()))?))
}

fn position(row: &AnyRow) -> Result<(Partition, Change), sqlx::Error> {
    let version = Version::from_number(read(row, 1)?);
    Ok((partition(row)?, Change { version, text: row.try_get(2)? }))
}
