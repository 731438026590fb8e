//! The recorder: writes the changes of a service's journals to its database, each once, in order.
//!
//! A step locks the positions of some partitions, reads their journals from there, and writes the
//! changes and the new positions in one transaction. Any number of processes may run steps at once:
//! the locks order them. Partitions are locked in ascending order, so that their locks do not
//! deadlock. Rows may: some are written for two partitions. The database then stops a step, which is
//! repeated. A recovery has the lock of its partition for minutes: a step gives up after 1.5 seconds,
//! and the others of its partitions are recorded one by one.
//!
//! What must hold:
//!   * a change is written exactly once, after all earlier ones of its partition;
//!   * the entry at the position is in the journal, unless Redis has lost it: then nothing is
//!     written.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use futures::future::{BoxFuture, join_all};
use microblog_chassis::run_periodically;
use microblog_domain::{Partition, Stamp};
use microblog_keyspace::{
    self as keyspace, BacklogMetrics, Change, Comparison, Journals, Keyspace, ServingState, Version,
};
use tokio::sync::{Mutex as AsyncMutex, OnceCell, Semaphore};
use uuid::Uuid;

use crate::{
    Damaged, Database, Error, RecordError, Replace, Tables, append_changes, change_feed, damaged,
    database::WRITE_TIMEOUT,
    divergence::DivergenceMetrics,
    positions::{self, LockWait, Positions},
    unknown_changes::UnknownChanges,
    wait_limit::limit_waits,
};

/// The period of the recorder and of recoveries: 1,024 small reads in one batch.
const PERIOD: Duration = Duration::from_secs(1);

/// How often old rows of the change feed are removed.
const PURGE_PERIOD: Duration = Duration::from_secs(60);

/// The most entries of a journal that one step records.
pub(crate) const PAGE: usize = 1_000;

/// The most partitions of one transaction.
const RECORDED_TOGETHER: usize = 128;
const FILLED_TOGETHER: usize = 16;

/// How many recorded entries stay in a journal, if the database is restored from a copy.
const RETAINED: u64 = 100;

/// The most entries of a journal that wait for the database: about 60 bytes each. The oldest ones
/// beyond are dropped, and the partition is written anew when the database is back.
pub const WAITING_MAX: u64 = 20_000;

/// How often a step, or a recovery, runs that the database stops for another one.
const ATTEMPTS_MAX: usize = 5;

/// How soon a failed comparison is repeated for the calls that wait for it.
const COMPARISON_RETRY: Duration = Duration::from_millis(200);

/// What a step has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The partitions whose journals have more.
    pub more: Vec<Partition>,
    /// The partitions of which Redis lacks recorded changes. Nothing of them was recorded.
    pub diverged: Vec<Partition>,
    /// The partitions whose next change is of an unknown kind, and waits.
    pub unknown: Vec<Partition>,
    /// Of the others, the entries from the old position to the new one, both included.
    pub pages: BTreeMap<Partition, Vec<Change>>,
}

/// The partitions that could not be compared or recorded, and why the first one could not.
#[derive(Debug, Default)]
struct Failures {
    partitions: BTreeSet<Partition>,
    // Those of which Redis could not be read.
    unread: BTreeSet<Partition>,
    first: Option<RecordError>,
}

impl Failures {
    fn add(&mut self, partitions: &[Partition], error: RecordError) {
        self.partitions.extend(partitions);
        if matches!(error, RecordError::Redis(_)) {
            self.unread.extend(partitions);
        }
        self.first.get_or_insert(error);
    }

    fn is_database_away(&self) -> bool {
        let error = self.first.as_ref().and_then(RecordError::of_database);
        error.is_some_and(Error::is_unavailable)
    }
}

/// Records the changes of a service.
pub struct Recorder<T> {
    /// For logs and metrics.
    pub(crate) name: &'static str,
    pub(crate) database: Database,
    pub(crate) keyspace: Keyspace,
    pub(crate) journals: Journals,
    pub(crate) tables: T,
    pub(crate) divergence: DivergenceMetrics,
    backlog: BacklogMetrics,
    unknown: UnknownChanges,
    // Held while a new system is filled.
    filling: AsyncMutex<()>,
    // The identity of the record, known once the tables are there.
    identity: OnceCell<String>,
    // The partitions that the next run of the recovery recovers.
    lost: Mutex<BTreeSet<Partition>>,
    // Recoveries leave a connection of the pool to the recording.
    pub(crate) recoveries: Semaphore,
    // When the last complete run began, and the newest recorded entries, once known.
    complete: Mutex<(Instant, Option<Positions>)>,
}

impl<T: Tables> Recorder<T> {
    /// Returns a recorder. The name is the service's, for metrics. Calls to the keyspace are rejected
    /// until the first run, unless the database is unavailable then.
    pub fn new(
        name: &'static str,
        database: Database,
        keyspace: Keyspace,
        journals: Journals,
        tables: T,
    ) -> Self {
        keyspace.states().await_check();
        // The counter exists from the start, so that the first increment shows as a rate.
        damaged::count(name, 0);
        let recoveries = Semaphore::new(database.connections().saturating_sub(1).max(1));
        Self {
            name,
            database,
            keyspace: keyspace.ignoring_closed(),
            journals,
            tables,
            divergence: DivergenceMetrics::new(name),
            backlog: BacklogMetrics::new(name),
            unknown: UnknownChanges::default(),
            filling: AsyncMutex::default(),
            identity: OnceCell::new(),
            lost: Mutex::default(),
            recoveries,
            complete: Mutex::new((Instant::now(), None)),
        }
    }

    /// Returns the background jobs of a recorder. They never complete.
    pub fn jobs(self: &Arc<Self>) -> Vec<BoxFuture<'static, ()>>
    where
        T: 'static,
    {
        let [recording, recovering, purging, comparing] = [(); 4].map(|()| self.clone());
        let record = async move || recording.run().await;
        let recover = async move || recovering.recover_lost().await;
        let purge = async move || {
            purging.identity().await?;
            purging.database.purge_change_feed().await
        };
        vec![
            Box::pin(run_periodically("recording", PERIOD, record)),
            Box::pin(run_periodically("recovering", PERIOD, recover)),
            Box::pin(run_periodically("purging the change feed", PURGE_PERIOD, purge)),
            Box::pin(async move { comparing.compare_after_connecting().await }),
        ]
    }

    /// Records the changes of all partitions, after it has filled those that are not yet recorded.
    /// Finds the partitions of which Redis lacks recorded changes, for [`Self::recover_lost`]. Rejects
    /// all calls while Redis is not the one that the database records.
    pub async fn run(&self) -> Result<(), RecordError> {
        let comparison = self.keyspace.states().comparison();
        let done = self.record_all(comparison).await;
        if let Some(error) = done.as_ref().err().and_then(RecordError::of_database)
            && error.is_unavailable()
            // The database is there if another run of the process is filling it.
            && self.filling.try_lock().is_ok()
            && self.keyspace.states().serve_unchecked(comparison)
        {
            let error = error as &dyn std::error::Error;
            tracing::warn!(error, "serving Redis without a comparison with the database");
        }
        done
    }

    /// Compares Redis with the database after each new connection to Redis: calls wait for that. Never
    /// ends.
    pub async fn compare_after_connecting(&self) {
        loop {
            self.keyspace.states().until_unchecked().await;
            if self.run().await.is_err() {
                // The periodic run reports it.
                tokio::time::sleep(COMPARISON_RETRY).await;
            }
        }
    }

    async fn record_all(&self, comparison: Comparison) -> Result<(), RecordError> {
        let begun = Instant::now();
        let all: Vec<_> = Partition::all().collect();
        let (mut newest, mut failures) = self.newest(&all).await;
        if failures.unread.len() == all.len()
            && self.keyspace.states().is_unchecked()
            && let Some(error) = failures.first
        {
            // Redis does not answer yet.
            return Err(error);
        }
        let too_long = self.note_backlog(&newest);
        self.journals.cap(&self.keyspace, &too_long, WAITING_MAX).await?;
        self.identity().await?;
        let positions = positions::all(&self.database).await?;
        self.complete().1 = Some(positions.clone());
        let is_new =
            |at: &&Partition| !positions.contains_key(at) && !failures.partitions.contains(at);
        let mut new: Vec<_> = all.iter().filter(is_new).copied().collect();
        self.check_database(comparison, &new).await?;
        if positions.is_empty() {
            if let Some(error) = failures.first {
                // All journals are opened before the first partition is filled.
                return Err(error);
            }
            self.open_journals(&new).await?;
            if self.fill_new_system(&new).await? {
                new.clear();
            }
            // Filling takes long, and there is nothing to compare Redis with.
            self.keyspace.states().serve(comparison, ServingState::Open);
        }
        let states = self.keyspace.states();
        for (&partition, position) in &positions {
            states.require(partition, position.version);
        }
        // A recovery that was interrupted may be recorded up to its beginning.
        let is_behind = |(at, position): &(&Partition, &Change)| {
            let differs = newest.get(at) != Some(*position)
                || is_recovering(position)
                || states.newest(**at) > position.version;
            differs && !failures.partitions.contains(at)
        };
        let behind: Vec<_> = positions.iter().filter(is_behind).map(|(&at, _)| at).collect();
        let diverged = self.record_behind(behind, &mut failures).await;
        newest.retain(|at, _| !diverged.contains(at));
        let unopened = self.unopened(&new).await?;
        let Failures { partitions: failed, unread, .. } = &failures;
        self.settle(comparison, &diverged, &unopened, failed, unread).await?;
        for partitions in new.chunks(FILLED_TOGETHER) {
            self.fill(partitions).await?;
        }
        if failures.first.is_none() {
            *self.complete() = (begun, Some(newest));
        }
        failures.first.map_or(Ok(()), Err)
    }

    // Returns the partitions of which Redis lacks recorded changes.
    async fn record_behind(
        &self,
        mut behind: Vec<Partition>,
        failures: &mut Failures,
    ) -> Vec<Partition> {
        let mut diverged = Vec::new();
        while !behind.is_empty() {
            let mut more = Vec::new();
            for partitions in behind.chunks(RECORDED_TOGETHER) {
                if failures.is_database_away() {
                    failures.partitions.extend(partitions);
                    continue;
                }
                for (partitions, done) in self.record_apart(partitions).await {
                    match done {
                        Ok(recorded) => {
                            for at in recorded.unknown {
                                failures.add(&[at], RecordError::UnknownChange(at));
                            }
                            more.extend(recorded.more);
                            diverged.extend(recorded.diverged);
                        }
                        Err(error) => failures.add(partitions, error),
                    }
                }
            }
            behind = more;
        }
        diverged
    }

    // Records partitions together, or one by one if one of them fails: it must not stop the others.
    async fn record_apart<'a>(
        &self,
        partitions: &'a [Partition],
    ) -> Vec<(&'a [Partition], Result<Recorded, RecordError>)> {
        let done = self.record(partitions).await;
        let is_one = partitions.len() == 1;
        if is_one || done.as_ref().err().is_none_or(RecordError::is_store_away) {
            return vec![(partitions, done)];
        }
        let mut each = Vec::with_capacity(partitions.len());
        for partition in partitions.chunks(1) {
            each.push((partition, self.record(partition).await));
        }
        each
    }

    // Returns the newest entries, and the partitions whose primary failed: it must not stop the others.
    async fn newest(&self, all: &[Partition]) -> (Positions, Failures) {
        let (mut newest, mut failures) = (Positions::new(), Failures::default());
        if let Ok(entries) = self.journals.newest(&self.keyspace, all).await {
            newest.extend(all.iter().zip(entries).filter_map(|(&at, entry)| Some((at, entry?))));
            return (newest, failures);
        }
        let each =
            all.iter().map(async |&at| (at, self.journals.newest(&self.keyspace, &[at]).await));
        for (at, entry) in join_all(each).await {
            match entry {
                Ok(entry) => newest.extend(entry.into_iter().flatten().map(|entry| (at, entry))),
                Err(error) => failures.add(&[at], error.into()),
            }
        }
        (newest, failures)
    }

    /// Returns the identity of the record, after it has created the tables.
    pub(crate) async fn identity(&self) -> Result<&str, Error> {
        let prepare = async {
            self.database.migrate(T::MIGRATIONS).await?;
            positions::identity(&self.database, &Uuid::new_v4().to_string()).await
        };
        self.identity.get_or_try_init(|| prepare).await.map(String::as_str)
    }

    // Compares the journals with those of the last complete run: also while the database is away.
    // Returns the partitions whose journals are too long.
    fn note_backlog(&self, newest: &Positions) -> Vec<Partition> {
        let mut complete = self.complete();
        let (since, recorded) = &mut *complete;
        // If the database is away from the start, what comes now waits.
        let recorded = recorded.get_or_insert_with(|| newest.clone());
        let waiting = |(at, newest): (&Partition, &Change)| {
            let recorded = recorded.get(at).map(|change| change.version);
            let recorded = recorded.filter(|recorded| recorded.epoch() == newest.version.epoch());
            let recorded = recorded.map_or(0, Version::number);
            let count = newest.version.number().saturating_sub(recorded);
            (*at, count)
        };
        let waiting: Vec<_> = newest.iter().map(waiting).collect();
        let backlog: u64 = waiting.iter().map(|(_, count)| count).sum();
        let age = if backlog > 0 { since.elapsed() } else { Duration::ZERO };
        self.backlog.note(backlog as usize, age, 0);
        let too_long = waiting.into_iter().filter(|&(_, count)| count > WAITING_MAX);
        too_long.map(|(at, _)| at).collect()
    }

    fn complete(&self) -> MutexGuard<'_, (Instant, Option<Positions>)> {
        self.complete.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the partitions to recover.
    pub(crate) fn lost(&self) -> MutexGuard<'_, BTreeSet<Partition>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the changes of some partitions, up to a page of each. Partitions that are not filled
    /// are skipped.
    pub async fn record(&self, partitions: &[Partition]) -> Result<Recorded, RecordError> {
        self.record_waiting(partitions, LockWait::Short).await
    }

    /// Records changes like [`Self::record`].
    pub(crate) async fn record_waiting(
        &self,
        partitions: &[Partition],
        wait: LockWait,
    ) -> Result<Recorded, RecordError> {
        let recorded = self.commit(partitions, wait).await?;
        self.trim(&recorded).await?;
        Ok(recorded)
    }

    /// Records changes like [`Self::record`], and leaves the journals as they are. Repeats what another
    /// transaction stopped.
    pub(crate) async fn commit(
        &self,
        partitions: &[Partition],
        wait: LockWait,
    ) -> Result<Recorded, RecordError> {
        repeat_stopped(|| self.try_commit(partitions, wait)).await
    }

    async fn try_commit(
        &self,
        partitions: &[Partition],
        wait: LockWait,
    ) -> Result<Recorded, RecordError> {
        let (mut transaction, positions) =
            positions::lock(&self.database, partitions, wait).await?;
        let from: Vec<_> =
            positions.iter().map(|(&partition, at)| (partition, at.version)).collect();
        // Before the journals are read: one that ends earlier has lost what the process has seen.
        let states = self.keyspace.states();
        let seen: Vec<_> = positions.keys().map(|&at| states.newest(at)).collect();
        let pages = self.journals.pages(&self.keyspace, &from, PAGE + 1).await?;
        let (mut changes, mut ends, mut recorded) = (Vec::new(), Vec::new(), Recorded::default());
        let (mut fed, mut left_out) = (Vec::new(), Vec::new());
        for (((&partition, position), mut page), seen) in positions.iter().zip(pages).zip(seen) {
            let is_lacking = |newest: &Change| page.len() <= PAGE && newest.version < seen;
            let is_diverged = |newest| is_recovering(newest) || is_lacking(newest);
            if page.first() != Some(position) || page.last().is_some_and(is_diverged) {
                recorded.diverged.push(partition);
                continue;
            }
            let mut decoded: Vec<_> = page[1..].iter().map(decode::<T>).collect();
            if let Some(known) = decoded.iter().position(Option::is_none)
                && !self.unknown.is_due(partition, page[1 + known].version)
            {
                page.truncate(1 + known);
                decoded.truncate(known);
                recorded.unknown.push(partition);
            } else if page.len() > PAGE {
                recorded.more.push(partition);
            }
            if page.len() > 1 {
                ends.extend(page.last().map(|end| (partition, end.clone())));
                fed.extend(feed_texts::<T>(&page[1..], &decoded));
                let damaged = Damaged::new(self.name);
                changes.extend(known::<T>(&page[1..], decoded, &damaged));
                left_out.push((partition, damaged));
            }
            recorded.pages.insert(partition, page);
        }
        if ends.is_empty() {
            return Ok(recorded);
        }
        let write = async {
            let unchanged = self.tables.unchanged(&mut transaction, &changes).await?;
            unchanged.into_iter().for_each(|index| fed[index] = None);
            self.tables.apply(&mut transaction, &changes, Replace::All).await?;
            for (partition, damaged) in left_out {
                damaged::add(&mut transaction, partition, damaged.into_rows()).await?;
            }
            Ok(positions::set(&mut transaction, &ends).await?)
        };
        self.database.write_from_redis("INSERT changes", write).await?;
        self.check_not_lost(&ends).await?;
        let commit = async {
            let fed: Vec<_> = fed.into_iter().flatten().collect();
            append_changes(&mut transaction, &fed).await?;
            transaction.commit().await
        };
        self.database.write("COMMIT", commit).await?;
        Ok(recorded)
    }

    /// What was read of Redis is that of some changes only if Redis still has these.
    pub(crate) async fn check_not_lost(
        &self,
        ends: &[(Partition, Change)],
    ) -> Result<(), RecordError> {
        let from: Vec<_> = ends.iter().map(|(partition, end)| (*partition, end.version)).collect();
        let pages = self.journals.pages(&self.keyspace, &from, 1).await?;
        let lost = ends.iter().zip(pages).find(|((_, end), page)| page.first() != Some(end));
        lost.map_or(Ok(()), |(&(partition, _), _)| Err(RecordError::Lost(partition)))
    }

    // Fails if another database records partitions that this one does not.
    async fn check_database(
        &self,
        comparison: Comparison,
        new: &[Partition],
    ) -> Result<(), RecordError> {
        let identity = self.identity().await?;
        let known = self.journals.identities(&self.keyspace, new).await?;
        let is_others = |known: &Option<String>| known.as_deref().is_some_and(|id| id != identity);
        let is_mismatched = known.iter().any(is_others);
        self.divergence.note_database_mismatch(is_mismatched);
        self.keyspace.states().trust_database(!is_mismatched);
        if is_mismatched {
            // Redis serves what it has.
            self.keyspace.states().serve(comparison, ServingState::Open);
            return Err(RecordError::DatabaseMismatch(self.name));
        }
        Ok(())
    }

    // Opens the journals of partitions, all before the first one is filled. So a partition that is
    // neither filled nor opened, beside filled ones, has lost its data.
    async fn open_journals(&self, partitions: &[Partition]) -> Result<(), RecordError> {
        let version = Version::default().in_next_epoch(0);
        for &partition in partitions {
            let opened = Change { version, text: about_the_journal("opened", partition) };
            // Nothing is appended to an existing journal.
            self.journals.append(&self.keyspace, partition, &opened).await?;
        }
        let identity = self.identity().await?;
        Ok(self.journals.set_identity(&self.keyspace, partitions, identity).await?)
    }

    // Returns those of some partitions that have no journal.
    async fn unopened(&self, partitions: &[Partition]) -> Result<Vec<Partition>, keyspace::Error> {
        let newest = self.journals.newest(&self.keyspace, partitions).await?;
        let unopened = partitions.iter().zip(newest).filter(|(_, newest)| newest.is_none());
        Ok(unopened.map(|(&at, _)| at).collect())
    }

    /// Opens and fills a partition that was never recorded, with what Redis has.
    pub(crate) async fn fill_unrecorded(&self, partition: Partition) -> Result<(), RecordError> {
        self.open_journals(&[partition]).await?;
        self.fill(&[partition]).await
    }

    // Fills all partitions if they have no accounts, and returns whether it has. The change feed begins
    // with the last fill. A new system serves after that, so that the feed has all its changes.
    async fn fill_new_system(&self, partitions: &[Partition]) -> Result<bool, RecordError> {
        let _filling = self.filling.lock().await;
        let is_new = self.first_with_accounts(partitions).await?.is_none();
        if is_new {
            self.fill(partitions).await?;
        }
        Ok(is_new)
    }

    // Fills partitions whose journals are open: a change that the fill misses has an entry.
    async fn fill(&self, partitions: &[Partition]) -> Result<(), RecordError> {
        let newest = self.journals.newest(&self.keyspace, partitions).await?;
        let newest = partitions.iter().zip(newest);
        let positions: Vec<_> = newest
            .map(|(&at, newest)| Ok((at, newest.ok_or(RecordError::Lost(at))?)))
            .collect::<Result<_, RecordError>>()?;
        let mut transaction = self.database.write("BEGIN", self.database.begin()).await?;
        let mut filled = Vec::new();
        // Reading Redis between statements must not take long: PostgreSQL ends idle transactions.
        for positions in positions.chunks(FILLED_TOGETHER) {
            let fill = async {
                // The first of several recorders fills a partition; the others wait for it here.
                let new = positions::insert(&mut transaction, positions).await?;
                self.tables.fill(&mut transaction, &new).await?;
                Ok(new)
            };
            let new = limit_waits(WRITE_TIMEOUT, fill).await?;
            filled.extend(positions.iter().filter(|(at, _)| new.contains(at)).cloned());
        }
        self.check_not_lost(&filled).await?;
        let commit = async {
            if !filled.is_empty() {
                change_feed::restart(&mut transaction).await?;
            }
            transaction.commit().await
        };
        Ok(self.database.write("INSERT journal_positions", commit).await?)
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

/// Runs a step, and repeats it if the database has stopped it for another one.
pub(crate) async fn repeat_stopped<R, F: Future<Output = Result<R, RecordError>>>(
    step: impl Fn() -> F,
) -> Result<R, RecordError> {
    for _ in 1..ATTEMPTS_MAX {
        match step().await {
            Err(RecordError::Database(error)) if error.is_conflict() => {}
            done => return done,
        }
    }
    step().await
}

/// Returns the entries of changes that change rows. The unknown ones are added to the damaged rows.
pub(crate) fn known<T: Tables>(
    changes: &[Change],
    decoded: impl IntoIterator<Item = Option<Option<T::Entry>>>,
    damaged: &Damaged,
) -> Vec<T::Entry> {
    let mut known = Vec::with_capacity(changes.len());
    for (change, decoded) in changes.iter().zip(decoded) {
        match decoded {
            Some(entry) => known.extend(entry),
            None => {
                let key = format!("version={}", change.version);
                damaged.add("journal", key, "a change of an unknown kind");
            }
        }
    }
    known
}

/// Returns the texts of changes that change rows; `None` for those that the change feed does not have.
fn feed_texts<T: Tables>(
    changes: &[Change],
    decoded: &[Option<Option<T::Entry>>],
) -> Vec<Option<String>> {
    let text = |(change, decoded): (&Change, &Option<Option<T::Entry>>)| {
        let entry = decoded.as_ref()?.as_ref()?;
        Some(T::change(entry).is_some().then(|| change.text.clone()))
    };
    changes.iter().zip(decoded).filter_map(text).collect()
}

/// Decodes a change: `None` if it is unknown, `Some(None)` if it is about the journal itself.
pub(crate) fn decode<T: Tables>(change: &Change) -> Option<Option<T::Entry>> {
    let is_about_the_journal =
        ["opened ", "recovering ", "recovered "].iter().any(|kind| change.text.starts_with(kind));
    if is_about_the_journal { Some(None) } else { T::parse(&change.text).map(Some) }
}

/// Returns whether a change begins a recovery. As the newest one, it makes functions reject changes.
pub(crate) fn is_recovering(change: &Change) -> bool {
    change.text.starts_with("recovering ")
}

/// Returns the text of an entry about the journal itself: with a random identity, and a stamp.
pub(crate) fn about_the_journal(kind: &str, partition: Partition) -> String {
    format!("{kind} {} {}", Uuid::new_v4(), Stamp::first_at(SystemTime::now(), partition).get())
}
