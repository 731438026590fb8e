//! Bulk creation of follows.

use std::collections::HashSet;

use microblog_storage::Writer;

use crate::{
    error::Error,
    graph::{Edge, EdgeKind},
    group::Steps,
    steps::{Outcome, Step},
};

/// The most follows of a transaction: it takes some tens of milliseconds.
const FOLLOWS: usize = 500;

/// The result of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImportResult {
    /// New follows.
    pub(crate) created: u64,
    /// Existing or duplicate follows.
    pub(crate) unchanged: u64,
    /// Rejected: follows of oneself.
    pub(crate) rejected_self: u64,
    /// Rejected: one account blocks the other.
    pub(crate) rejected_blocked: u64,
    /// Rejected: the follower is at the following limit.
    pub(crate) rejected_limit: u64,
    /// Rejected: one account is deleted.
    pub(crate) rejected_deleted: u64,
}

impl ImportResult {
    fn count(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Done(_) => &mut self.created,
            Outcome::Unchanged(_) => &mut self.unchanged,
            Outcome::BlockedByTarget | Outcome::TargetBlocked => &mut self.rejected_blocked,
            Outcome::Limit => &mut self.rejected_limit,
            Outcome::Deleted => &mut self.rejected_deleted,
        } += 1;
    }
}

/// Follows accounts in bulk, in the order of `follows`.
pub(crate) async fn import(
    writer: &Writer<Steps>,
    follows: Vec<Edge>,
) -> Result<ImportResult, Error> {
    let mut imported = ImportResult::default();
    let mut seen = HashSet::with_capacity(follows.len());
    let mut steps = Vec::with_capacity(follows.len());
    for edge in follows {
        if edge.from == edge.to {
            imported.rejected_self += 1;
        } else if seen.insert(edge) {
            steps.push(Step::Create(EdgeKind::Follow, edge));
        } else {
            imported.unchanged += 1;
        }
    }
    for steps in steps.chunks(FOLLOWS) {
        let outcomes = writer.write(steps.to_vec()).await?;
        outcomes.into_iter().for_each(|outcome| imported.count(outcome));
    }
    Ok(imported)
}
