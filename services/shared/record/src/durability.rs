//! Durability levels: when a write is acknowledged. Configuration, and the group commit of the level
//! `recorded`.
//!
//! The calls of a worker that wait at a moment share a run of the recorder, hence a transaction. The
//! next ones gather meanwhile.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use microblog_keyspace::{
    Durability, Error as KeyspaceError, RelevantChange, Waiter, Waiters, Waits,
};
use tokio::{sync::mpsc::UnboundedReceiver, time::timeout};

use crate::{Error, OpenError, RecordError, Recorded, Recorder, Tables, positions::LockWait};

/// The most changes of a group.
const GROUP_MAX: usize = 256;

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// When Redis has it.
    Local,
    /// When replicas of Redis have it too.
    Replicated,
    /// When the database has it too.
    Recorded,
}

/// Configuration of durability.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct DurabilityConfig {
    /// When a write is acknowledged: as soon as Redis has it (`local`), when replicas of Redis have
    /// it too (`replicated`), or when the database has it too (`recorded`). The latter two need
    /// --database-url
    #[arg(long, env = "MICROBLOG_DURABILITY", value_enum, default_value_t = Level::Local)]
    pub durability: Level,
    /// The number of replicas of each primary that must have a write, with `--durability replicated`
    #[arg(
        long,
        env = "MICROBLOG_DURABILITY_REPLICAS",
        value_name = "COUNT",
        default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(1..)
    )]
    pub durability_replicas: u8,
}

impl DurabilityConfig {
    /// Makes the writes of a service wait until they are durable. Must be called in each worker, with
    /// the recorder of the worker, if there is a database.
    pub fn set_up<T: Tables + 'static>(
        &self,
        recorder: Option<&Arc<Recorder<T>>>,
    ) -> Result<(), OpenError> {
        match (self.durability, recorder) {
            (Level::Local, _) => {}
            (_, None) => return Err(OpenError::Durability),
            (Level::Replicated, Some(recorder)) => {
                recorder.keyspace.require_replicas(self.durability_replicas.into());
            }
            (Level::Recorded, Some(recorder)) => {
                let commit = GroupCommit::start(recorder.clone());
                recorder.keyspace.set_durability(Arc::new(commit));
            }
        }
        Ok(())
    }
}

/// Waits until changes are recorded.
struct GroupCommit {
    waiters: Waiters,
    waits: Waits,
}

impl GroupCommit {
    /// Starts the task that records. Unlike a job, it goes on while the server drains.
    fn start<T: Tables + 'static>(recorder: Arc<Recorder<T>>) -> Self {
        let limit = recorder.database.timeout();
        let (waiters, consumer) = Waiters::new();
        tokio::spawn(run(recorder, consumer, limit));
        Self { waiters, waits: Waits::new("recorded", limit, KeyspaceError::NotRecorded) }
    }
}

impl Durability for GroupCommit {
    fn wait(&self, changes: Vec<RelevantChange>) -> BoxFuture<'_, Result<(), KeyspaceError>> {
        let results: Vec<_> = changes.into_iter().map(|change| self.waiters.add(change)).collect();
        Box::pin(self.waits.all(results))
    }
}

/// Records for calls that wait.
async fn run<T: Tables>(
    recorder: Arc<Recorder<T>>,
    mut waiters: UnboundedReceiver<Waiter>,
    limit: Duration,
) {
    let mut waiting = Vec::new();
    while waiters.recv_many(&mut waiting, GROUP_MAX).await > 0 {
        // More than once only if a journal has more than a page.
        while !waiting.is_empty() {
            let commit = AssertUnwindSafe(commit(&recorder, waiting, limit));
            // A panic drops the waiters, whose calls then fail. The next ones are served.
            waiting = commit.catch_unwind().await.unwrap_or_default();
        }
    }
}

/// Records the partitions of some changes, and ends the waits. Returns those that go on: their
/// partitions have more to record.
async fn commit<T: Tables>(
    recorder: &Recorder<T>,
    mut waiting: Vec<Waiter>,
    limit: Duration,
) -> Vec<Waiter> {
    waiting.retain(|waiter| !waiter.is_abandoned());
    if waiting.is_empty() {
        return waiting;
    }
    let mut partitions: Vec<_> = waiting.iter().map(|waiter| waiter.relevant.partition).collect();
    partitions.sort_unstable();
    partitions.dedup();
    let done = timeout(limit, recorder.commit(&partitions, LockWait::Short)).await;
    let recorded = match done.unwrap_or_else(|_elapsed| Err(Error::timed_out().into())) {
        Ok(recorded) => recorded,
        Err(error) => {
            fail(waiting, error);
            return Vec::new();
        }
    };
    let (mut earlier, mut later) = (Vec::new(), Vec::new());
    for waiter in waiting {
        match state(&recorded, &waiter.relevant) {
            State::Recorded => waiter.end(Ok(())),
            State::Earlier => earlier.push(waiter),
            State::Later => later.push(waiter),
            State::Lost => waiter.end(Err(not_recorded("the journal lacks the change"))),
            State::BehindUnknown => {
                waiter.end(Err(not_recorded("a change of an unknown kind is before the change")));
            }
            State::Unfilled => waiter.end(Err(not_recorded("the partition is not recorded yet"))),
            State::Diverged => {
                let lost = "the partition has lost recorded changes";
                waiter.end(Err(KeyspaceError::Recovering(lost.into())));
            }
        }
    }
    if !earlier.is_empty() {
        check_earlier(recorder, earlier).await;
    }
    if let Err(error) = recorder.trim(&recorded).await {
        // The next run that records these partitions trims their journals.
        tracing::debug!(error = &error as &dyn std::error::Error, "journals were not trimmed");
    }
    later
}

/// What a run of the recorder has found out about a change.
#[derive(Debug, PartialEq, Eq)]
enum State {
    Recorded,
    /// Its version had been recorded before.
    Earlier,
    /// It is behind the page that was recorded.
    Later,
    /// A change of an unknown kind is before it.
    BehindUnknown,
    /// The journal does not have it, or another change took its version.
    Lost,
    /// The database does not have the partition yet.
    Unfilled,
    /// Redis lacks recorded changes of the partition.
    Diverged,
}

fn state(recorded: &Recorded, relevant: &RelevantChange) -> State {
    let RelevantChange { partition, change, .. } = relevant;
    if recorded.diverged.contains(partition) {
        return State::Diverged;
    }
    let Some(page) = recorded.pages.get(partition) else { return State::Unfilled };
    // Made before the journal was opened: the fill, which came later, has read it.
    let Some(change) = change else { return State::Recorded };
    match page.binary_search_by_key(&change.version, |entry| entry.version) {
        Ok(index) if page[index] == *change => State::Recorded,
        Err(0) => State::Earlier,
        Err(index) if index == page.len() && recorded.more.contains(partition) => State::Later,
        Err(index) if index == page.len() && recorded.unknown.contains(partition) => {
            State::BehindUnknown
        }
        _ => State::Lost,
    }
}

/// Ends the waits for changes whose versions had been recorded before. They were recorded if the
/// journal still has them: a position is only moved along a journal that has the entry there.
async fn check_earlier<T: Tables>(recorder: &Recorder<T>, waiting: Vec<Waiter>) {
    let change = |waiter: &Waiter| waiter.relevant.change.clone().unwrap_or_default();
    let from = |waiter: &Waiter| (waiter.relevant.partition, change(waiter).version);
    let from: Vec<_> = waiting.iter().map(from).collect();
    let pages = match recorder.journals.pages(&recorder.keyspace, &from, 1).await {
        Ok(pages) => pages,
        Err(error) => return fail(waiting, error.into()),
    };
    for (waiter, page) in waiting.into_iter().zip(pages) {
        let is_there = page.first() == waiter.relevant.change.as_ref();
        let lost = || not_recorded("the journal lacks the change");
        waiter.end(is_there.then_some(()).ok_or_else(lost));
    }
}

fn fail(waiting: Vec<Waiter>, error: RecordError) {
    let error = Arc::new(error);
    for waiter in waiting {
        waiter.end(Err(KeyspaceError::NotRecorded(error.clone().into())));
    }
}

fn not_recorded(cause: &'static str) -> KeyspaceError {
    KeyspaceError::NotRecorded(cause.into())
}

#[cfg(test)]
mod tests {
    use microblog_domain::Partition;
    use microblog_keyspace::Change;

    use super::*;

    fn change(version: &str, text: &str) -> Change {
        Change { version: version.parse().unwrap(), text: text.into() }
    }

    #[test]
    fn a_change_is_recorded_if_a_run_recorded_this_very_entry() {
        let [partition, full, diverged, unfilled, blocked] = [1, 2, 3, 4, 5].map(Partition::new);
        let page = vec![change("1-4", "a"), change("1-5", "b"), change("2-0", "c")];
        let pages = [(partition, page.clone()), (full, page.clone()), (blocked, page)].into();
        let (more, diverged_ones, unknown) = (vec![full], vec![diverged], vec![blocked]);
        let recorded = Recorded { more, diverged: diverged_ones, unknown, pages };
        let state = |partition, change: Option<Change>| {
            state(&recorded, &RelevantChange { partition, journal: String::new(), change })
        };
        for (version, text, expected) in [
            ("1-4", "a", State::Recorded),
            ("2-0", "c", State::Recorded),
            ("1-5", "of a lost primary", State::Lost),
            ("1-6", "of a lost primary", State::Lost),
            ("2-1", "of a lost primary", State::Lost),
            ("1-3", "x", State::Earlier),
        ] {
            assert_eq!(state(partition, Some(change(version, text))), expected, "{version}");
        }
        assert_eq!(state(full, Some(change("2-1", "d"))), State::Later);
        assert_eq!(state(blocked, Some(change("2-1", "d"))), State::BehindUnknown);
        assert_eq!(state(blocked, Some(change("1-5", "b"))), State::Recorded);
        assert_eq!(state(partition, None), State::Recorded);
        assert_eq!(state(diverged, Some(change("1-4", "a"))), State::Diverged);
        assert_eq!(state(unfilled, None), State::Unfilled);
    }
}
