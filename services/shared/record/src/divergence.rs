//! What to do about partitions of which Redis lacks recorded changes: which ones are recovered at
//! once, and which ones need an operator, since this may be the wrong Redis.

use std::collections::BTreeSet;

use microblog_domain::Partition;
use microblog_keyspace::{Batch, Comparison, ServingState, decode, redis};
use opentelemetry::{KeyValue, global, metrics::BoundGauge};

use crate::{RecordError, Recorder, Tables};

/// How a partition of Redis differs from the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Divergence {
    /// It is the recorded one, and lacks changes, if any: a failover lost them, or it is an older copy.
    Lost,
    /// It has no record: its data are gone, or this is another Redis.
    Unrecorded,
    /// It has another record.
    Foreign,
}

/// The gauges of divergence.
#[derive(Debug)]
pub(crate) struct DivergenceMetrics {
    diverged: BoundGauge<u64>,
    /// Whether Redis, and the database, are not those of the record.
    mismatched: [BoundGauge<u64>; 2],
}

impl DivergenceMetrics {
    /// Returns the gauges of a recorder, by its name.
    pub(crate) fn new(name: &'static str) -> Self {
        let meter = global::meter("microblog-record");
        let diverged = meter
            .u64_gauge("microblog.record.diverged")
            .with_unit("{partition}")
            .with_description("Partitions of which Redis lacks recorded changes")
            .build();
        let mismatched = meter
            .u64_gauge("microblog.record.mismatched")
            .with_unit("{store}")
            .with_description("1 while this store is not the one that belongs to the other")
            .build();
        let name = KeyValue::new("backlog", name);
        let mismatched = ["redis", "database"]
            .map(|store| mismatched.bind(&[name.clone(), KeyValue::new("store", store)]));
        Self { diverged: diverged.bind(&[name]), mismatched }
    }

    /// Records whether the database is not the one of the record.
    pub(crate) fn note_database_mismatch(&self, is_mismatched: bool) {
        self.mismatched[1].record(u64::from(is_mismatched));
    }
}

impl<T: Tables> Recorder<T> {
    /// Closes the partitions that lack changes, and marks them to be recovered; or closes the whole
    /// keyspace, if an operator must decide, as about `unopened` ones: what these had was lost before it
    /// was recorded. The states of partitions that could not be compared stay; if a primary of Redis could
    /// not be read while calls wait for this comparison, its partitions are closed: it may be empty.
    pub(crate) async fn settle(
        &self,
        comparison: Comparison,
        diverged: &[Partition],
        unopened: &[Partition],
        failed: &BTreeSet<Partition>,
        unread: &BTreeSet<Partition>,
    ) -> Result<(), RecordError> {
        let states = self.keyspace.states();
        let compared: Vec<_> = Partition::all().filter(|at| !failed.contains(at)).collect();
        self.divergence.diverged.record(diverged.len() as u64);
        let kinds = self.divergences(diverged).await?;
        let is_any_known = !kinds.contains(&Divergence::Unrecorded)
            || self.divergences(&compared).await?.contains(&Divergence::Lost);
        let needs_operator = |kind: &Divergence| match kind {
            Divergence::Lost => false,
            Divergence::Unrecorded => !is_any_known,
            Divergence::Foreign => true,
        };
        let is_mismatched = !unopened.is_empty() || kinds.iter().any(needs_operator);
        self.divergence.mismatched[0].record(u64::from(is_mismatched));
        let state = if is_mismatched { ServingState::Mismatched } else { ServingState::Open };
        let partitions = compared.iter().map(|&at| (at, diverged.contains(&at)));
        let unread = unread.iter().filter(|_| states.is_unchecked()).map(|&at| (at, true));
        if !states.settle(comparison, state, partitions.chain(unread)) {
            // Another comparison follows.
            return Ok(());
        }
        if is_mismatched {
            return Err(RecordError::RedisMismatch(self.name));
        }
        if !diverged.is_empty() {
            tracing::warn!(
                partitions = diverged.len(),
                first = %diverged[0],
                "redis lacks recorded changes"
            );
        }
        self.lost().extend(diverged);
        Ok(())
    }

    /// Returns how partitions, which lack recorded changes, differ from the record.
    pub(crate) async fn divergences(
        &self,
        partitions: &[Partition],
    ) -> Result<Vec<Divergence>, RecordError> {
        let identity = self.identity().await?;
        let known = self.journals.identities(&self.keyspace, partitions).await?;
        let kind = |known: &Option<String>| match known.as_deref() {
            Some(known) if known == identity => Divergence::Lost,
            Some(_) => Divergence::Foreign,
            None => Divergence::Unrecorded,
        };
        Ok(known.iter().map(kind).collect())
    }

    /// Fails if Redis has data, and is not the one of this record: if no partition has the record's
    /// identity, or one has another. Once some have it, as after an interrupted restore, others may
    /// have data of the restored ones.
    pub(crate) async fn check_restorable(&self) -> Result<(), RecordError> {
        let all: Vec<_> = Partition::all().collect();
        let kinds = self.divergences(&all).await?;
        if kinds.contains(&Divergence::Lost) {
            let foreign = all.iter().zip(kinds).find(|(_, kind)| *kind == Divergence::Foreign);
            return foreign.map_or(Ok(()), |(&at, _)| Err(RecordError::NotEmpty(at)));
        }
        let first = self.first_with_accounts(&all).await?;
        first.map_or(Ok(()), |partition| Err(RecordError::NotEmpty(partition)))
    }

    /// Fails if Redis, of some recorded partitions, is not the one of this record: if the database has
    /// recorded another one, or a part of Redis is gone.
    pub(crate) async fn check_erasable(&self, recorded: &[Partition]) -> Result<(), RecordError> {
        let kinds = self.divergences(recorded).await?;
        let other = recorded.iter().zip(kinds).find(|(_, kind)| *kind != Divergence::Lost);
        other.map_or(Ok(()), |(&at, _)| Err(RecordError::WouldErase(at)))
    }

    /// Returns the first of some partitions that has accounts in Redis, if any has.
    pub(crate) async fn first_with_accounts(
        &self,
        partitions: &[Partition],
    ) -> Result<Option<Partition>, RecordError> {
        let mut batch = Batch::with_capacity(partitions.len());
        for &partition in partitions {
            let mut scan = redis::cmd("SSCAN");
            batch.query(partition, scan.arg(T::accounts_key(partition)).arg(0).take());
        }
        for (reply, &partition) in self.keyspace.send(batch).await?.into_iter().zip(partitions) {
            // The first page of a large set may be empty.
            let (next, accounts): (u64, Vec<u64>) = decode(reply)?;
            if next != 0 || !accounts.is_empty() {
                return Ok(Some(partition));
            }
        }
        Ok(None)
    }
}
