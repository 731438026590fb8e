//! The verifier of a service: applies to the cache what the feed tells, a moment after the writers have.
//! It finds what a writer that died after its commit did not apply, and what a primary has lost.
//!
//! In each round, for each primary:
//!
//! 1. It reads the replication id and the mark. From the mark's position on, the primary may lack changes.
//! 2. It applies each item of the feed behind that position, with its last revision: an older entry is
//!    deleted.
//! 3. It writes the mark, unless the primary has become another server meanwhile.
//!
//! A primary without a mark has no entries but those of the last moments, or is empty: it is gone over
//! from where the last round ended, or, if there was none, from the beginning of the feed. Partitions
//! that came from another primary are gone over from the oldest mark.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use microblog_domain::Partition;
use microblog_keyspace::{self as keyspace, Keyspace};
use microblog_record::{self as record, Database};
use tokio::time::Instant;

use crate::{
    cache::{Cache, Change},
    entry::{EntryKeys, History},
    feed::{self, Positioned},
    mark::Primary,
    transaction,
};

/// How long the verifier leaves a change to its writer.
const BEHIND: Duration = Duration::from_millis(300);

/// The most rows of the feed that are read at once.
const ROWS: usize = 2_000;

/// Why a round did not end.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The database failed.
    #[error(transparent)]
    Database(#[from] record::Error),
    /// The cache failed.
    #[error("the cache failed")]
    Cache(#[from] keyspace::Error),
}

/// What a round has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Whether the feed does not reach back to a mark: the history was renewed, which ends all entries.
    pub renewed: bool,
    /// The primaries with a new mark.
    pub marked: usize,
    /// The primaries that were gone over from further back than the last round.
    pub gone_over: usize,
    /// The entries that were deleted.
    pub deleted: usize,
}

/// Verifies the cache of a service. One process at a time needs to, and several may.
pub struct Verifier {
    database: Database,
    keyspace: Keyspace,
    cache: Cache,
    prefix: &'static str,
    /// The newest positions of the last rounds, with the time at which they were read.
    newest: Vec<(Instant, u64)>,
    /// Where the last round ended that verified all primaries, in which history.
    verified: Option<(History, u64)>,
}

impl Verifier {
    /// Returns the verifier of a keyspace, whose keys have a prefix.
    pub fn new(database: Database, keyspace: Keyspace, prefix: &'static str) -> Self {
        let cache = Cache::new(keyspace.clone());
        Self { database, keyspace, cache, prefix, newest: Vec::new(), verified: None }
    }

    /// Does a round. Fails if the database does, or if no primary answers.
    pub async fn round(&mut self) -> Result<Round, VerifyError> {
        // Read before the marks and the feed: what is read later may be of a later history, whose entries
        // have other keys.
        let history = transaction::read_history(&self.database).await?;
        let primaries = Primary::read_all(&self.keyspace, self.prefix).await?;
        let (oldest, newest) = feed::ends(&self.database).await?.unwrap_or_default();
        let Some(end) = self.end_of_round(newest) else { return Ok(Round::default()) };
        let beginning = oldest.saturating_sub(1);
        let starts: Vec<u64> = self.starts(&history, &primaries, beginning);
        if starts.iter().any(|start| *start < beginning) {
            transaction::renew_history(&self.database).await?;
            return Ok(Round { renewed: true, ..Round::default() });
        }
        let mut round = Round::default();
        round.gone_over =
            starts.iter().filter(|start| self.is_further_back(&history, **start)).count();
        let primary_of: HashMap<Partition, usize> = primaries
            .iter()
            .enumerate()
            .flat_map(|(index, primary)| primary.partitions.iter().map(move |&at| (at, index)))
            .collect();
        let mut failed = vec![false; primaries.len()];
        let mut position = starts.iter().copied().min().unwrap_or(end);
        while position < end {
            let rows = feed::read_behind(&self.database, position, ROWS).await?;
            let Some(last) = rows.last().map(|row| row.position) else { break };
            position = last;
            let changes = self.changes(&history, rows, |partition, at| {
                primary_of.get(&partition).is_some_and(|&index| starts[index] < at && at <= end)
            });
            round.deleted += self.apply(&changes, &primary_of, &mut failed).await;
        }
        for (primary, failed) in primaries.iter().zip(failed) {
            // Not confirmed by some: the next round goes over them again.
            if !failed && !primary.replication_id.is_empty() {
                let mark = primary.write_mark(&self.keyspace, self.prefix, &history, end);
                round.marked += usize::from(mark.await.unwrap_or(false));
            }
        }
        let partitions: usize = primaries.iter().map(|primary| primary.partitions.len()).sum();
        if round.marked == primaries.len() && partitions == usize::from(Partition::COUNT) {
            self.verified = Some((history, end));
        }
        Ok(round)
    }

    // Returns the newest position that is old enough; `None` if there is none yet.
    fn end_of_round(&mut self, newest: u64) -> Option<u64> {
        let now = Instant::now();
        self.newest.push((now, newest));
        let is_old = |(read, _): &&(Instant, u64)| now.duration_since(*read) >= BEHIND;
        let end = self.newest.iter().rfind(is_old)?.1;
        self.newest.retain(|(_, position)| *position >= end);
        Some(end)
    }

    // Returns the position behind which each primary may lack changes.
    fn starts(&self, history: &History, primaries: &[Primary], beginning: u64) -> Vec<u64> {
        let last = match &self.verified {
            Some((of, position)) if of == history => *position,
            _ => beginning,
        };
        let mark = |primary: &Primary| {
            primary.mark.as_ref().filter(|mark| mark.history == *history).map(|mark| mark.position)
        };
        let oldest = primaries.iter().map(|primary| mark(primary).unwrap_or(last)).min();
        let start = |primary: &Primary| {
            let is_verified = |at: &Partition| {
                primary.mark.as_ref().is_some_and(|mark| mark.partitions.contains(*at))
            };
            match mark(primary) {
                Some(position) if primary.partitions.iter().all(is_verified) => position,
                _ => oldest.unwrap_or(last),
            }
        };
        primaries.iter().map(start).collect()
    }

    fn is_further_back(&self, history: &History, start: u64) -> bool {
        !self.verified.as_ref().is_some_and(|(of, position)| of == history && start >= *position)
    }

    // Returns the items of rows, each with its last revision, if its primary needs the row.
    fn changes(
        &self,
        history: &History,
        rows: Vec<Positioned>,
        needs: impl Fn(Partition, u64) -> bool,
    ) -> Vec<Change> {
        let mut last = BTreeMap::<(Arc<str>, u64), u64>::new();
        for Positioned { position, row, .. } in rows {
            for item in row.items {
                if needs(Partition::of_id(item.id), position) {
                    let revision = last.entry((item.kind.into(), item.id)).or_default();
                    *revision = item.revision.max(*revision);
                }
            }
        }
        let change = |((kind, id), revision): ((Arc<str>, u64), u64)| Change {
            keys: EntryKeys::new(self.prefix, &kind, history, Partition::of_id(id), id),
            before: revision,
            after: revision,
            contents: None,
            records_max: 0,
        };
        last.into_iter().map(change).collect()
    }

    // Applies changes. Notes the primaries of which one failed. Returns how many entries were deleted.
    async fn apply(
        &self,
        changes: &[Change],
        primary_of: &HashMap<Partition, usize>,
        failed: &mut [bool],
    ) -> usize {
        // Each primary by itself: one that is away holds the others up no longer than its timeout.
        let mut by_primary = BTreeMap::<usize, Vec<Change>>::new();
        for change in changes {
            let index = primary_of.get(&change.keys.partition).copied().unwrap_or_default();
            by_primary.entry(index).or_default().push(change.clone());
        }
        let applied = by_primary.into_iter().map(async |(index, changes)| {
            let results = self.cache.apply(&changes).await.unwrap_or_default();
            let confirmed = results.iter().filter(|result| result.is_ok()).count();
            let deleted = results
                .iter()
                .filter(|result| matches!(result, Ok(crate::Applied::Deleted)))
                .count();
            (index, confirmed == changes.len(), deleted)
        });
        let mut deleted = 0;
        for (index, all, count) in futures::future::join_all(applied).await {
            failed[index] |= !all;
            deleted += count;
        }
        deleted
    }
}
