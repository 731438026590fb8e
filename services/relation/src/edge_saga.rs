//! The saga of an edge: a follow or block that survives a crash.
//!
//! An edge A→B is stored twice: the *source edge* in A's partition, which is the source of truth,
//! and the *inverse edge*, its projection, in B's partition. The partitions may be on different
//! nodes, so no transaction spans them. Each change is a saga of three atomic steps, with a
//! transactional outbox:
//!
//! 1. *source step*, in A's partition: create or delete the edge with a new version, and add the
//!    change to the outbox (`pending`);
//! 2. *projection*, in B's partition: apply the change if its version is newer than that of the
//!    inverse edge or its tombstone;
//! 3. *acknowledgement*, in A's partition: remove the outbox entry if no newer change replaced it.
//!
//! A call returns after step 3. After a crash in between, the [`Sweeper`](crate::Sweeper) of any
//! replica relays the outbox entry from the current source edge. Steps 2 and 3 are idempotent and
//! commutative: any order of any number of replays converges. (The commutative, time-ordered
//! operations of FlockDB; the inverse edges of TAO.)
//!
//! Each call reconciles both sides, also where one of them lost data:
//!
//! * Step 2 returns the version of the inverse side if it is newer. If the source edge has not
//!   changed since step 1, the source side has lost a change. The source edge then gets a version
//!   above both (`bump_versions`, atomic with that comparison), and steps 2 and 3 follow. If it has
//!   changed, the other change completes its own saga.
//! * If step 1 changes nothing, since the edge exists and is acknowledged, or does not exist and
//!   has no outbox entry, the inverse side is compared with the source side. If they differ, the
//!   source edge gets a version above both. If they agree, nothing is written.
//! * Within one side, the sorted sets of following and followers are the source of truth; id sets
//!   and mutuals are indexes of them. For a follow that only the follower's id set has, `Unfollow`
//!   deletes it and `Follow` creates it.
//! * A version from reconciliation is also newer for home timelines. They backfill the posts that
//!   were not pushed while the inverse edge was missing.
//!
//! Blocks are edges too. The projection of a block in B's partition also ends B's follow of A,
//! whose source edge is there. That end is a change with its own saga. Both sides also return
//! whether the other account is on their followers list, to find inverse edges without a source
//! edge.

use std::collections::{BTreeSet, HashSet};

use microblog_domain::{Partition, UserId};
use microblog_keyspace::Error as StoreError;
use microblog_record::WAITING_MAX;

use crate::{
    error::Error,
    graph::{Change, Conflict, Edge, List, Outcome, State},
    store::{BlockSourceResult, SourceResult, Store, Targets},
};

/// The result of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportResult {
    /// New follows.
    pub created: u64,
    /// Existing or duplicate follows.
    pub unchanged: u64,
    /// Rejected: follows of oneself.
    pub rejected_self: u64,
    /// Rejected: one account blocks the other.
    pub rejected_blocked: u64,
    /// Rejected: the follower is at the following limit.
    pub rejected_limit: u64,
    /// Rejected: one account is deleted.
    pub rejected_forgotten: u64,
}

/// The most projections of a stale change. More than one is needed only if the source side has lost
/// a change.
const ATTEMPTS_MAX: usize = 4;

/// The unusual results of a saga.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SagaResult {
    /// Follows that were rejected and compensated, since their targets are deleted.
    pub rejected: Vec<Edge>,
    /// Changes that reconciliation made, with their new versions.
    pub bumped: Vec<Change>,
}

/// Changes the follow graph on both sides. The two accounts of an edge must differ; only imports
/// check it and reject.
#[derive(Clone)]
pub struct EdgeSaga {
    store: Store,
}

impl EdgeSaga {
    /// Returns the saga on a store.
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// Follows an account. Returns the version of the follow, which is the first one if it exists
    /// already, and the relation state.
    pub async fn follow(&self, edge: Edge) -> Result<(u64, State), Error> {
        let result = self.store.follow_one(edge).await?;
        check_outcome(result.outcome, Error::FollowingLimit)?;
        let completed = self.finish(&[result], true).await?;
        if !completed.rejected.is_empty() {
            return Err(Error::Forgotten);
        }
        let version = completed.bumped.last().map_or(result.version, |change| change.version);
        Ok((version, State::of(true, result.is_follower)))
    }

    /// Unfollows an account. Returns the relation state.
    pub async fn unfollow(&self, edge: Edge) -> Result<State, Error> {
        let results = self.store.unfollow(&[Targets::one(edge)], false).await?;
        self.finish(&results, false).await?;
        Ok(State::of(false, results.first().is_some_and(|result| result.is_follower)))
    }

    /// Follows accounts in bulk. Keeps the order of each follower's follows. Rejects the rest while
    /// the database is behind, so that no journal exceeds its limit.
    pub async fn import(&self, follows: Vec<Edge>) -> Result<ImportResult, Error> {
        let mut imported = ImportResult::default();
        let mut seen = HashSet::with_capacity(follows.len());
        let mut edges = Vec::with_capacity(follows.len());
        for edge in follows {
            if edge.from == edge.to {
                imported.rejected_self += 1;
            } else if seen.insert(edge) {
                edges.push(edge);
            } else {
                imported.unchanged += 1;
            }
        }
        let mut groups = Targets::group(edges);
        while !groups.is_empty() {
            // Batches of one account are sent one after the other, to keep their order.
            let mut in_this_round = HashSet::new();
            let (round, later): (Vec<_>, Vec<_>) =
                groups.into_iter().partition(|group| in_this_round.insert(group.user));
            let accounts =
                round.iter().flat_map(|group| group.targets.iter().copied().chain([group.user]));
            let partitions: BTreeSet<Partition> = accounts.map(UserId::partition).collect();
            self.check_recorder(&partitions).await?;
            let mut results = self.store.follow(&round).await?;
            let completed = self.finish(&results, true).await?;
            let rejected: HashSet<Edge> = completed.rejected.into_iter().collect();
            for result in results.iter_mut().filter(|result| rejected.contains(&result.edge)) {
                result.outcome = Outcome::Forgotten;
            }
            imported.count(&results);
            groups = later;
        }
        Ok(imported)
    }

    /// Fails while many changes of some partitions wait for the database. More of a bulk change could
    /// exceed the limit of a journal.
    pub(crate) async fn check_recorder(
        &self,
        partitions: &BTreeSet<Partition>,
    ) -> Result<(), Error> {
        let longest = self.store.longest_journal(partitions).await?;
        if longest > WAITING_MAX / 2 { Err(Error::RecorderBehind) } else { Ok(()) }
    }

    /// Deletes edges on behalf of either side, and also where the source edge does not exist, so
    /// that the inverse side is corrected in any case.
    pub async fn end_all(&self, edges: impl IntoIterator<Item = Edge>) -> Result<(), Error> {
        let results = self.store.unfollow(&Targets::group(edges), true).await?;
        self.finish(&results, false).await?;
        Ok(())
    }

    /// Blocks an account, and ends the follows between the two.
    pub async fn block(&self, edge: Edge) -> Result<(), Error> {
        let result = self.store.block(edge).await?;
        self.complete_block_source(edge, result).await
    }

    /// Reconciles a block, and ends the follows between the two. Does nothing if there is no block.
    pub async fn reconcile_block(&self, edge: Edge) -> Result<(), Error> {
        let result = self.store.reblock(edge).await?;
        if result.outcome == Outcome::Limit {
            return Ok(());
        }
        match self.complete_block_source(edge, result).await {
            Err(Error::Forgotten) => Ok(()),
            reconciled => reconciled,
        }
    }

    async fn complete_block_source(
        &self,
        edge: Edge,
        result: BlockSourceResult,
    ) -> Result<(), Error> {
        check_outcome(result.outcome, Error::ListLimit)?;
        if let Some(version) = result.ended_at {
            self.complete(&[Change { edge, version, exists: false }]).await?;
        }
        let block = Change { edge, version: result.version, exists: true };
        if self.complete_block(&block, result.follower_since).await? {
            Ok(())
        } else {
            Err(Error::Forgotten)
        }
    }

    /// Unblocks an account. With `force`, runs the projection also if there is no block.
    pub async fn unblock(&self, edge: Edge, force: bool) -> Result<(), Error> {
        let (outcome, version) = self.store.unblock(edge, force).await?;
        let mut end = Some(Change { edge, version, exists: false });
        if outcome == Outcome::Nothing {
            let known = self.store.entries(&[(List::BlockedBy, edge.to, edge.from)]).await?;
            end = match known.first() {
                Some(&known) if known > 0 => {
                    let change = Change { edge, version: 0, exists: false };
                    self.store.bump_block_version(&Conflict { change, known }).await?
                }
                _ => None,
            };
        }
        if let Some(end) = end {
            self.complete_block(&end, 0).await?;
        }
        Ok(())
    }

    /// Runs steps 2 and 3 of changes of follows, each edge once. Compensates follows of deleted
    /// accounts. A stale change that is still current gets a newer version. Fails if the partition of a
    /// target is being recovered, after it has completed the other changes.
    pub async fn complete(&self, changes: &[Change]) -> Result<SagaResult, Error> {
        let mut completed = SagaResult::default();
        let (mut remaining, mut applied) = (changes.to_vec(), Vec::new());
        let mut is_any_deferred = false;
        for _ in 0..ATTEMPTS_MAX {
            let projected = self.store.project(&remaining).await?;
            is_any_deferred |= !projected.deferred.is_empty();
            applied.extend(remaining.drain(..).filter(|it| !projected.deferred.contains(it)));
            if !projected.rejected.is_empty() {
                let rejected = || projected.rejected.iter().map(|change| change.edge);
                completed.rejected.extend(rejected());
                let groups = Targets::group(rejected());
                let ends = self.store.unfollow(&groups, false).await?;
                let ends = ends.iter().filter(|result| result.outcome != Outcome::Nothing);
                remaining.extend(ends.map(|result| change(result, false)));
            }
            if !projected.stale.is_empty() {
                let bumped = self.store.bump_versions(&projected.stale).await?;
                completed.bumped.extend(&bumped);
                remaining.extend(bumped);
            }
            if remaining.is_empty() {
                break;
            }
        }
        // The sweeper continues with outbox entries that remain.
        self.store.acknowledge(&applied).await?;
        if is_any_deferred { Err(StoreError::recovering().into()) } else { Ok(completed) }
    }

    /// Reconciles edges whose sides differ, unless the source edge has changed since it was read.
    /// Returns the result.
    pub async fn reconcile(&self, conflicts: &[Conflict]) -> Result<SagaResult, Error> {
        if conflicts.is_empty() {
            return Ok(SagaResult::default());
        }
        let bumped = self.store.bump_versions(conflicts).await?;
        if bumped.is_empty() {
            return Ok(SagaResult::default());
        }
        let mut completed = self.complete(&bumped).await?;
        completed.bumped.splice(0..0, bumped);
        Ok(completed)
    }

    /// Runs steps 2 and 3 of a change of a block, and the sagas of the follows that it ends.
    /// `follower_since` is the version at which the blocker's followers list has the blocked
    /// account, or 0. Compensates a block of a deleted account and returns false.
    pub async fn complete_block(&self, block: &Change, follower_since: u64) -> Result<bool, Error> {
        let mut block = *block;
        let mut applied = self.store.project_block(&block).await?;
        for _ in 1..ATTEMPTS_MAX {
            let conflict = Conflict { change: block, known: applied.known };
            let bumped = match applied.outcome {
                Outcome::Stale => self.store.bump_block_version(&conflict).await?,
                _ => None,
            };
            let Some(bumped) = bumped else { break };
            block = bumped;
            applied = self.store.project_block(&block).await?;
        }
        if applied.outcome == Outcome::Forgotten {
            let (outcome, version) = self.store.unblock(block.edge, false).await?;
            if outcome != Outcome::Nothing {
                let end = Change { version, exists: false, ..block };
                self.store.project_block(&end).await?;
                self.store.acknowledge_block(&end).await?;
            }
            return Ok(false);
        }
        let back = Edge { from: block.edge.to, to: block.edge.from };
        if let Some(version) = applied.ended_at {
            self.complete(&[Change { edge: back, version, exists: false }]).await?;
        }
        let follower_since = if applied.ended_at.is_none() { follower_since } else { 0 };
        let orphan = |(edge, known)| {
            let change = Change { edge, version: 0, exists: false };
            (known > 0).then_some(Conflict { change, known })
        };
        let orphans = [(back, follower_since), (block.edge, applied.follower_since)];
        let orphans: Vec<Conflict> = orphans.into_iter().filter_map(orphan).collect();
        self.reconcile(&orphans).await?;
        self.store.acknowledge_block(&block).await?;
        Ok(true)
    }

    // Completes changed edges, and reconciles unchanged ones.
    async fn finish(&self, results: &[SourceResult], exists: bool) -> Result<SagaResult, Error> {
        let with = |outcomes: [Outcome; 2]| -> Vec<Change> {
            let results = results.iter().filter(|result| outcomes.contains(&result.outcome));
            results.map(|result| change(result, exists)).collect()
        };
        let changes = with([Outcome::Done, Outcome::Pending]);
        let unchanged = with([Outcome::Unchanged, Outcome::Nothing]);
        let mut completed = SagaResult::default();
        if !changes.is_empty() {
            completed = self.complete(&changes).await?;
        }
        if !unchanged.is_empty() {
            let reconciled = self.reconcile(&self.store.compare(&unchanged).await?).await?;
            completed.rejected.extend(reconciled.rejected);
            completed.bumped.extend(reconciled.bumped);
        }
        Ok(completed)
    }
}

impl ImportResult {
    fn count(&mut self, results: &[SourceResult]) {
        for result in results {
            *match result.outcome {
                Outcome::Done => &mut self.created,
                Outcome::Unchanged | Outcome::Pending | Outcome::Nothing | Outcome::Stale => {
                    &mut self.unchanged
                }
                Outcome::BlockedByTarget | Outcome::TargetBlocked => &mut self.rejected_blocked,
                Outcome::Limit => &mut self.rejected_limit,
                Outcome::Forgotten => &mut self.rejected_forgotten,
            } += 1;
        }
    }
}

/// Maps a rejected outcome to its error.
pub(crate) fn check_outcome(outcome: Outcome, limit: Error) -> Result<(), Error> {
    match outcome {
        Outcome::Done
        | Outcome::Unchanged
        | Outcome::Pending
        | Outcome::Nothing
        | Outcome::Stale => Ok(()),
        Outcome::BlockedByTarget => Err(Error::BlockedByTarget),
        Outcome::TargetBlocked => Err(Error::TargetBlocked),
        Outcome::Limit => Err(limit),
        Outcome::Forgotten => Err(Error::Forgotten),
    }
}

fn change(result: &SourceResult, exists: bool) -> Change {
    Change { edge: result.edge, version: result.version, exists }
}
