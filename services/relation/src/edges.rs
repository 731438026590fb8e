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
//! Blocks are edges of their own. The projection of a block at B's side ends B's follow of A,
//! whose truth lies there: that end is a change like any other, told to A's side in turn.

use std::collections::HashSet;

use crate::{
    error::Error,
    graph::{Change, Edge, Outcome, State},
    store::{Store, Targets, Truth},
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
        if !self.settle(&[truth], true).await?.is_empty() {
            return Err(Error::Forgotten);
        }
        Ok((truth.version, State::of(true, truth.is_follower)))
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
            let refused: HashSet<Edge> = self.settle(&truths, true).await?.into_iter().collect();
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
        let (outcome, version, ended_at) = self.store.block(edge).await?;
        accepted(outcome, Error::ListLimit)?;
        if outcome == Outcome::Unchanged {
            return Ok(());
        }
        if let Some(version) = ended_at {
            self.complete(&[Change { edge, version, exists: false }]).await?;
        }
        if self.complete_block(&Change { edge, version, exists: true }).await? {
            Ok(())
        } else {
            Err(Error::Forgotten)
        }
    }

    /// Makes an account block another no more. `always` tells the other side also where there is
    /// no block.
    pub async fn unblock(&self, edge: Edge, always: bool) -> Result<(), Error> {
        let (outcome, version) = self.store.unblock(edge, always).await?;
        if outcome != Outcome::Nothing {
            self.complete_block(&Change { edge, version, exists: false }).await?;
        }
        Ok(())
    }

    /// Carries out the second and third steps of changes of follows, each edge once. Follows of
    /// deleted accounts are ended again. Returns which those are.
    pub async fn complete(&self, changes: &[Change]) -> Result<Vec<Edge>, Error> {
        let refused = self.store.project(changes).await?;
        if refused.is_empty() {
            self.store.confirm(changes).await?;
            return Ok(Vec::new());
        }
        let refused: Vec<Edge> = refused.iter().map(|change| change.edge).collect();
        let groups = Targets::group(refused.iter().copied());
        let ends: Vec<Change> = self
            .store
            .unfollow(&groups, false)
            .await?
            .iter()
            .filter(|truth| truth.outcome != Outcome::Nothing)
            .map(|truth| change(truth, false))
            .collect();
        self.store.project(&ends).await?;
        // Of a refused follow, the end is pending, with a version of its own.
        self.store.confirm(&[changes, &ends].concat()).await?;
        Ok(refused)
    }

    /// Carries out the second and third steps of a change of a block, and all steps of the end of
    /// a follow that comes of it. A block of a deleted account is taken back; returns false then.
    pub async fn complete_block(&self, block: &Change) -> Result<bool, Error> {
        let (outcome, ended_at) = self.store.project_block(block).await?;
        if outcome == Outcome::Forgotten {
            let (outcome, version) = self.store.unblock(block.edge, false).await?;
            if outcome != Outcome::Nothing {
                let end = Change { version, exists: false, ..*block };
                self.store.project_block(&end).await?;
                self.store.confirm_block(&end).await?;
            }
            return Ok(false);
        }
        if let Some(version) = ended_at {
            let edge = Edge { from: block.edge.to, to: block.edge.from };
            self.complete(&[Change { edge, version, exists: false }]).await?;
        }
        self.store.confirm_block(block).await?;
        Ok(true)
    }

    // Completes what the truths leave to be told. Returns those edges whose targets are deleted.
    async fn settle(&self, truths: &[Truth], exists: bool) -> Result<Vec<Edge>, Error> {
        let open = |truth: &&Truth| matches!(truth.outcome, Outcome::Done | Outcome::Pending);
        let changes: Vec<Change> =
            truths.iter().filter(open).map(|truth| change(truth, exists)).collect();
        if changes.is_empty() { Ok(Vec::new()) } else { self.complete(&changes).await }
    }
}

impl Imported {
    fn count(&mut self, truths: &[Truth]) {
        for truth in truths {
            *match truth.outcome {
                Outcome::Done => &mut self.created,
                Outcome::Unchanged | Outcome::Pending | Outcome::Nothing => &mut self.unchanged,
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
        Outcome::Done | Outcome::Unchanged | Outcome::Pending | Outcome::Nothing => Ok(()),
        Outcome::BlockedByTarget => Err(Error::BlockedByTarget),
        Outcome::TargetBlocked => Err(Error::TargetBlocked),
        Outcome::Limit => Err(limit),
        Outcome::Forgotten => Err(Error::Forgotten),
    }
}

fn change(truth: &Truth, exists: bool) -> Change {
    Change { edge: truth.edge, version: truth.version, exists }
}
