//! Keeps the trust in the primaries while the database is away: nothing is committed then, so what was
//! verified stays so.
//!
//! The process that verifies does it, for the marks of its last round, and for no longer than
//! [`KEPT_MAX`]. It never begins trust: a mark that is no longer relied on stays as it is, and so does one
//! that another process has written since, or of a server that has another replication id by now. A process
//! that takes its own lost connection for a database that is away does no harm but beside a failover of
//! Redis: then it may keep the trust in a cut-off primary for as long.
//!
//! Not verified is what was committed in the last second before the database went away. Its writers have
//! applied it, or removed the entries. One that could not reach Redis as well, or was killed, leaves entries
//! that lack it, until the database is back or the trust ends.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use microblog_keyspace::Keyspace;
use tokio::time::{Instant, sleep};

use crate::{
    entry::History,
    mark::{Mark, keep_mark},
};

/// How often marks are kept.
const PERIOD: Duration = Duration::from_secs(1);

/// How long the last round must have ended: several periods of the rounds.
const KEPT_AFTER: Duration = Duration::from_secs(3);

/// How long marks are kept after the last round.
const KEPT_MAX: Duration = Duration::from_secs(300);

/// The marks of the last round, with their keys, and when it ended.
type Round = (Instant, Vec<(String, Mark)>);

/// Keeps marks.
pub(crate) struct Keeper {
    keyspace: Keyspace,
    last: Mutex<Option<Round>>,
}

impl Keeper {
    pub(crate) fn new(keyspace: Keyspace) -> Self {
        Self { keyspace, last: Mutex::default() }
    }

    /// Notes what a round that ended has marked.
    pub(crate) fn note(&self, marks: Vec<(String, Mark)>) {
        *self.last() = Some((Instant::now(), marks));
    }

    /// Keeps nothing of another history than this, which the database has.
    pub(crate) fn forget_others(&self, history: &History) {
        if let Some((_, marks)) = &mut *self.last() {
            marks.retain(|(_, mark)| mark.history == *history);
        }
    }

    /// Keeps nothing, until the next round.
    pub(crate) fn forget(&self) {
        *self.last() = None;
    }

    /// Keeps marks, for ever, while no round ends.
    pub(crate) async fn run(&self) {
        loop {
            sleep(PERIOD).await;
            self.keep().await;
        }
    }

    async fn keep(&self) {
        let Some((ended, marks)) = self.last().clone() else { return };
        if !(KEPT_AFTER..KEPT_MAX).contains(&ended.elapsed()) {
            return;
        }
        let kept = marks.into_iter().map(async |(key, mark)| {
            // Without an answer, it may be kept the next time.
            let is_kept = self.keyspace.call::<u8>(keep_mark(&key, &mark)).await.unwrap_or(1) == 1;
            is_kept.then_some((key, mark))
        });
        let kept = join_all(kept).await.into_iter().flatten().collect();
        if let Some((_, marks)) = self.last().as_mut().filter(|(last, _)| *last == ended) {
            *marks = kept;
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<Round>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
