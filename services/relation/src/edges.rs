//! Two-sided edges: how a follow survives a crash.
//!
//! An edge A→B is stored twice: with A, who owns it (the *truth*), and with B (a *projection*).
//! They may lie on different nodes of the store, so no transaction spans them. Each change goes
//! through three atomic steps:
//!
//! 1. *truth*, in A's partition: make or end the edge with a new version, and note it as pending;
//! 2. *projection*, in B's partition: apply it if its version is newer than what B's side knows;
//! 3. *confirmation*, in A's partition: strike it from the pending ones if it is still the newest.
//!
//! A caller hears "done" after step 3. A crash in between leaves the change pending, and the
//! [`Sweeper`](crate::Sweeper) of any replica takes it up from the truth as it then is. Steps 2
//! and 3 change nothing when repeated, and any order of any number of replays ends in the same
//! state. (The commutative, time-ordered operations of FlockDB; the inverse edges of TAO.)
//!
//! Every change ends with both sides in agreement, whatever either said before, also where one of
//! them was lost in part or whole:
//!
//! * Step 2 answers which version B's side knows if that is newer. Where the truth is still the one
//!   that step 1 saw, nobody has changed the edge since, so B's side knows of a change that A's side
//!   has lost: the truth takes a version above both (`raise`, atomic with that comparison), and steps
//!   2 and 3 follow with it. Where the truth has changed, the other change ends in agreement itself.
//! * Where step 1 finds that nothing is to be done, since the edge exists and is confirmed, or does
//!   not exist and nothing is pending, B's side is compared with that. Where it differs, the truth
//!   takes a version above both. Where it agrees, nothing is written: no version, nothing pending.
//! * Within one side, the sorted sets of following and followers are right; id sets and mutuals are
//!   derived from them. A follow that only the follower's id set has is no follow for `Unfollow` to
//!   keep, and one for `Follow` to make anew.
//! * A version of a repair is newer for readers of home timelines as well: they fill in what was not
//!   pushed while the follower was missing on B's side.
//!
//! Blocks are edges of their own. The projection of a block at B's side ends B's follow of A,
//! whose truth lies there: that end is a change like any other, told to A's side in turn. Both sides
//! tell as well whether they have the other one as a follower, of whose follow there is no truth.

use std::collections::HashSet;

use crate::{
    error::Error,
    graph::{Change, Conflict, Edge, List, Outcome, State},
    store::{Blocked, Store, Targets, Truth},
};

/// What became of an import's follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// New follows.
    pub created: u64,
    /// Follows that were there already, or came twice.
    pub unchanged: u64,
    /// Refused: of oneself.
    pub refused_self: u64,
    /// Refused: one of the two blocks the other.
    pub refused_blocked: u64,
    /// Refused: the follower follows as many accounts as one may.
    pub refused_limit: u64,
    /// Refused: one of the two is a deleted account.
    pub refused_forgotten: u64,
}

/// How often a change is told that the other side refuses: more than once only where that side knows
/// what the truth does not.
const ATTEMPTS: usize = 4;

/// What became of changes, beside what was to be expected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// Follows that ended again, since their targets are deleted.
    pub refused: Vec<Edge>,
    /// Changes that were made to bring the sides to agree, each with its new version.
    pub raised: Vec<Change>,
}

/// Changes the follow graph, each change on both of its sides. The two ends of an edge must be
/// different accounts; only an import may have others, and refuses them.
#[derive(Clone)]
pub struct Edges {
    store: Store,
}

impl Edges {
    /// Returns the means to change what is in a store.
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// Makes an account follow another. Returns since which version, which is the first one if
    /// it did already, and how the target stands to the follower.
    pub async fn follow(&self, edge: Edge) -> Result<(u64, State), Error> {
        let truth = self.store.follow_one(edge).await?;
        accepted(truth.outcome, Error::FollowingLimit)?;
        let completed = self.settle(&[truth], true).await?;
        if !completed.refused.is_empty() {
            return Err(Error::Forgotten);
        }
        let version = completed.raised.last().map_or(truth.version, |change| change.version);
        Ok((version, State::of(true, truth.is_follower)))
    }

    /// Makes an account follow another no more. Returns how the target stands to it.
    pub async fn unfollow(&self, edge: Edge) -> Result<State, Error> {
        let truths = self.store.unfollow(&[Targets::one(edge)], false).await?;
        self.settle(&truths, false).await?;
        Ok(State::of(false, truths.first().is_some_and(|truth| truth.is_follower)))
    }

    /// Makes accounts follow their targets, those of one account in the order given.
    pub async fn import(&self, follows: Vec<Edge>) -> Result<Imported, Error> {
        let mut imported = Imported::default();
        let mut seen = HashSet::with_capacity(follows.len());
        let mut edges = Vec::with_capacity(follows.len());
        for edge in follows {
            if edge.from == edge.to {
                imported.refused_self += 1;
            } else if seen.insert(edge) {
                edges.push(edge);
            } else {
                imported.unchanged += 1;
            }
        }
        let mut groups = Targets::group(edges);
        while !groups.is_empty() {
            // Groups of one account go out one after the other, so that their order holds.
            let mut in_this_round = HashSet::new();
            let (round, later): (Vec<_>, Vec<_>) =
                groups.into_iter().partition(|group| in_this_round.insert(group.user));
            let mut truths = self.store.follow(&round).await?;
            let completed = self.settle(&truths, true).await?;
            let refused: HashSet<Edge> = completed.refused.into_iter().collect();
            for truth in truths.iter_mut().filter(|truth| refused.contains(&truth.edge)) {
                truth.outcome = Outcome::Forgotten;
            }
            imported.count(&truths);
            groups = later;
        }
        Ok(imported)
    }

    /// Ends edges on behalf of either side, as if by their owners, and also where the owner's
    /// side knows of none: whatever the target's side believes, it is set right.
    pub async fn end_all(&self, edges: impl IntoIterator<Item = Edge>) -> Result<(), Error> {
        let truths = self.store.unfollow(&Targets::group(edges), true).await?;
        self.settle(&truths, false).await?;
        Ok(())
    }

    /// Makes an account block another, and ends the follows between them.
    pub async fn block(&self, edge: Edge) -> Result<(), Error> {
        let truth = self.store.block(edge).await?;
        self.complete_truth(edge, truth).await
    }

    /// Makes both sides agree on a block, and ends the follows between the two. Does nothing where
    /// there is no block.
    pub async fn mend_block(&self, edge: Edge) -> Result<(), Error> {
        let truth = self.store.block_again(edge).await?;
        if truth.outcome == Outcome::Limit {
            return Ok(());
        }
        match self.complete_truth(edge, truth).await {
            Err(Error::Forgotten) => Ok(()),
            mended => mended,
        }
    }

    async fn complete_truth(&self, edge: Edge, truth: Blocked) -> Result<(), Error> {
        accepted(truth.outcome, Error::ListLimit)?;
        if let Some(version) = truth.ended_at {
            self.complete(&[Change { edge, version, exists: false }]).await?;
        }
        let block = Change { edge, version: truth.version, exists: true };
        if self.complete_block(&block, truth.follower_since).await? {
            Ok(())
        } else {
            Err(Error::Forgotten)
        }
    }

    /// Makes an account block another no more. `always` tells the other side also where there is
    /// no block.
    pub async fn unblock(&self, edge: Edge, always: bool) -> Result<(), Error> {
        let (outcome, version) = self.store.unblock(edge, always).await?;
        let mut end = Some(Change { edge, version, exists: false });
        if outcome == Outcome::Nothing {
            let known = self.store.entries(&[(List::BlockedBy, edge.to, edge.from)]).await?;
            end = match known.first() {
                Some(&known) if known > 0 => {
                    let change = Change { edge, version: 0, exists: false };
                    self.store.raise_block(&Conflict { change, known }).await?
                }
                _ => None,
            };
        }
        if let Some(end) = end {
            self.complete_block(&end, 0).await?;
        }
        Ok(())
    }

    /// Carries out the second and third steps of changes of follows, each edge once. Follows of
    /// deleted accounts are ended again. Changes that the other side refuses, although they are the
    /// newest, get a newer version.
    pub async fn complete(&self, changes: &[Change]) -> Result<Completed, Error> {
        let mut completed = Completed::default();
        let (mut open, mut told) = (changes.to_vec(), Vec::new());
        for _ in 0..ATTEMPTS {
            let projected = self.store.project(&open).await?;
            told.append(&mut open);
            if !projected.refused.is_empty() {
                let refused = || projected.refused.iter().map(|change| change.edge);
                completed.refused.extend(refused());
                let groups = Targets::group(refused());
                let ends = self.store.unfollow(&groups, false).await?;
                let ends = ends.iter().filter(|truth| truth.outcome != Outcome::Nothing);
                open.extend(ends.map(|truth| change(truth, false)));
            }
            if !projected.stale.is_empty() {
                let raised = self.store.raise(&projected.stale).await?;
                completed.raised.extend(&raised);
                open.extend(raised);
            }
            if open.is_empty() {
                break;
            }
        }
        // What is still open is pending, for a sweeper to go on with.
        self.store.confirm(&told).await?;
        Ok(completed)
    }

    /// Makes both sides agree on edges of which they do not, unless the truth has changed since it
    /// was seen. Returns what became of those.
    pub async fn mend(&self, conflicts: &[Conflict]) -> Result<Completed, Error> {
        if conflicts.is_empty() {
            return Ok(Completed::default());
        }
        let raised = self.store.raise(conflicts).await?;
        if raised.is_empty() {
            return Ok(Completed::default());
        }
        let mut completed = self.complete(&raised).await?;
        completed.raised.splice(0..0, raised);
        Ok(completed)
    }

    /// Carries out the second and third steps of a change of a block, and all steps of the ends of
    /// follows that come of it. `follower_since` is since when the blocker's side has the blocked
    /// account as a follower, 0 if it has not. A block of a deleted account is taken back; returns
    /// false then.
    pub async fn complete_block(&self, block: &Change, follower_since: u64) -> Result<bool, Error> {
        let mut block = *block;
        let mut told = self.store.project_block(&block).await?;
        for _ in 1..ATTEMPTS {
            let conflict = Conflict { change: block, known: told.known };
            let raised = match told.outcome {
                Outcome::Stale => self.store.raise_block(&conflict).await?,
                _ => None,
            };
            let Some(raised) = raised else { break };
            block = raised;
            told = self.store.project_block(&block).await?;
        }
        if told.outcome == Outcome::Forgotten {
            let (outcome, version) = self.store.unblock(block.edge, false).await?;
            if outcome != Outcome::Nothing {
                let end = Change { version, exists: false, ..block };
                self.store.project_block(&end).await?;
                self.store.confirm_block(&end).await?;
            }
            return Ok(false);
        }
        let back = Edge { from: block.edge.to, to: block.edge.from };
        if let Some(version) = told.ended_at {
            self.complete(&[Change { edge: back, version, exists: false }]).await?;
        }
        let follower_since = if told.ended_at.is_none() { follower_since } else { 0 };
        let ghost = |(edge, known)| {
            let change = Change { edge, version: 0, exists: false };
            (known > 0).then_some(Conflict { change, known })
        };
        let ghosts = [(back, follower_since), (block.edge, told.follower_since)];
        let ghosts: Vec<Conflict> = ghosts.into_iter().filter_map(ghost).collect();
        self.mend(&ghosts).await?;
        self.store.confirm_block(&block).await?;
        Ok(true)
    }

    // Completes what the truths leave to be told, and makes the other sides agree with the rest.
    async fn settle(&self, truths: &[Truth], exists: bool) -> Result<Completed, Error> {
        let with = |outcomes: [Outcome; 2]| -> Vec<Change> {
            let truths = truths.iter().filter(|truth| outcomes.contains(&truth.outcome));
            truths.map(|truth| change(truth, exists)).collect()
        };
        let changes = with([Outcome::Done, Outcome::Pending]);
        let settled = with([Outcome::Unchanged, Outcome::Nothing]);
        let mut completed = Completed::default();
        if !changes.is_empty() {
            completed = self.complete(&changes).await?;
        }
        if !settled.is_empty() {
            let mended = self.mend(&self.store.compare(&settled).await?).await?;
            completed.refused.extend(mended.refused);
            completed.raised.extend(mended.raised);
        }
        Ok(completed)
    }
}

impl Imported {
    fn count(&mut self, truths: &[Truth]) {
        for truth in truths {
            *match truth.outcome {
                Outcome::Done => &mut self.created,
                Outcome::Unchanged | Outcome::Pending | Outcome::Nothing | Outcome::Stale => {
                    &mut self.unchanged
                }
                Outcome::BlockedByTarget | Outcome::TargetBlocked => &mut self.refused_blocked,
                Outcome::Limit => &mut self.refused_limit,
                Outcome::Forgotten => &mut self.refused_forgotten,
            } += 1;
        }
    }
}

/// Turns a refusal into its error.
pub(crate) fn accepted(outcome: Outcome, limit: Error) -> Result<(), Error> {
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

fn change(truth: &Truth, exists: bool) -> Change {
    Change { edge: truth.edge, version: truth.version, exists }
}
