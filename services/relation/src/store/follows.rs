//! The three steps of a follow: source step, projection, acknowledgement.

use std::collections::{BTreeMap, HashMap};

use microblog_domain::{Partition, UserId};
use microblog_keyspace::{Call, Error, decode};

use super::{CHUNK, OutboxEntry, Store, outcome, version};
use crate::{
    graph::{Change, Conflict, Edge, Outcome},
    keys,
};

/// An account with targets: distinct, and without the account itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Targets {
    /// The follower.
    pub user: UserId,
    /// The targets, at most 100.
    pub targets: Vec<UserId>,
}

impl Targets {
    /// Returns a single edge.
    pub fn one(edge: Edge) -> Self {
        Self { user: edge.from, targets: vec![edge.to] }
    }

    /// Groups edges by follower, with at most 100 targets per group. Keeps the order of each
    /// follower's edges.
    pub fn group(edges: impl IntoIterator<Item = Edge>) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        let mut last_of: HashMap<UserId, usize> = HashMap::new();
        for Edge { from, to } in edges {
            match last_of.get(&from) {
                Some(&i) if groups[i].targets.len() < CHUNK => groups[i].targets.push(to),
                _ => {
                    last_of.insert(from, groups.len());
                    groups.push(Self { user: from, targets: vec![to] });
                }
            }
        }
        groups
    }
}

/// The result of the source step of one edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceResult {
    /// The edge.
    pub edge: Edge,
    /// The outcome.
    pub outcome: Outcome,
    /// The version of the edge or of its end; 0 if it was rejected or did not exist.
    pub version: u64,
    /// Whether the target follows the follower.
    pub is_follower: bool,
}

/// The changes of a projection that were not applied.
#[derive(Clone, Debug, Default)]
pub struct ProjectionResult {
    /// Follows of deleted accounts.
    pub rejected: Vec<Change>,
    /// Changes older than the inverse side.
    pub stale: Vec<Conflict>,
    /// Changes whose targets are in partitions that are being recovered.
    pub deferred: Vec<Change>,
}

impl Store {
    /// The source step of one follow.
    pub async fn follow_one(&self, edge: Edge) -> Result<SourceResult, Error> {
        let call = self.follow_call(edge.from).arg(edge.to.get());
        read_source_result(edge, self.keyspace.call(call).await?)
    }

    /// The source step of follows. All groups are sent together.
    pub async fn follow(&self, groups: &[Targets]) -> Result<Vec<SourceResult>, Error> {
        self.source_results(groups, |group| self.follow_call(group.user)).await
    }

    // Without the targets.
    fn follow_call(&self, user: UserId) -> Call {
        let partition = user.partition();
        Call::new("relation_follow")
            .journal(partition, keys::journal(partition))
            .key(keys::clock(partition))
            .key(keys::pending(partition))
            .key(keys::forgotten(partition))
            .key(keys::users(partition))
            .key(keys::following(user))
            .key(keys::following_ids(user))
            .key(keys::followers(user))
            .key(keys::follower_ids(user))
            .key(keys::mutual(user))
            .key(keys::blocks(user))
            .key(keys::blocked_by(user))
            .issuing(partition)
            .arg(user.get())
            .arg(self.following_limit)
    }

    /// The source step of unfollows. All groups are sent together.
    ///
    /// With `force`, adds an end to the outbox even if the edge does not exist, so that the inverse
    /// side is corrected in any case.
    pub async fn unfollow(
        &self,
        groups: &[Targets],
        force: bool,
    ) -> Result<Vec<SourceResult>, Error> {
        let call = |group: &Targets| {
            let (user, partition) = (group.user, group.user.partition());
            Call::new("relation_unfollow")
                .journal(partition, keys::journal(partition))
                .key(keys::clock(partition))
                .key(keys::pending(partition))
                .key(keys::following(user))
                .key(keys::following_ids(user))
                .key(keys::follower_ids(user))
                .key(keys::mutual(user))
                .issuing(partition)
                .arg(user.get())
                .arg(u8::from(force))
        };
        self.source_results(groups, call).await
    }

    async fn source_results(
        &self,
        groups: &[Targets],
        call: impl Fn(&Targets) -> Call,
    ) -> Result<Vec<SourceResult>, Error> {
        let with_targets = |group: &Targets| {
            let call = group.targets.iter().fold(call(group), |call, to| call.arg(to.get()));
            (group.user.partition(), call)
        };
        let answers =
            self.call_in_batches(groups, |group| group.targets.len(), with_targets).await?;
        let mut results = Vec::with_capacity(groups.iter().map(|group| group.targets.len()).sum());
        for (group, answer) in groups.iter().zip(answers) {
            let numbers: Vec<i64> = decode(answer)?;
            for (&to, &fields) in group.targets.iter().zip(numbers.as_chunks::<3>().0) {
                results.push(read_source_result(Edge { from: group.user, to }, fields)?);
            }
        }
        Ok(results)
    }

    /// The projection of changes, each edge once. All are sent together.
    pub async fn project(&self, changes: &[Change]) -> Result<ProjectionResult, Error> {
        let states = self.keyspace.states();
        let is_closed = |change: &Change| states.is_closed(change.edge.to.partition());
        let (deferred, mut changes): (Vec<Change>, Vec<Change>) =
            changes.iter().partition(|change| is_closed(change));
        let mut projected = ProjectionResult { deferred, ..Default::default() };
        changes.sort_by_key(|change| (change.edge.to.partition(), change.edge.to));
        let same_partition =
            |a: &Change, b: &Change| a.edge.to.partition() == b.edge.to.partition();
        let chunks: Vec<&[Change]> =
            changes.chunk_by(same_partition).flat_map(|all| all.chunks(CHUNK)).collect();
        let call = |chunk: &&[Change]| (chunk[0].edge.to.partition(), project(chunk));
        let answers = self.call_in_batches(&chunks, |chunk| chunk.len(), call).await?;
        for (chunk, answer) in chunks.into_iter().zip(answers) {
            let (numbers, known): (Vec<i64>, Vec<i64>) = match decode(answer) {
                // One partition must not stop the others.
                Err(Error::Recovering(_)) => {
                    projected.deferred.extend(chunk);
                    continue;
                }
                answer => answer?,
            };
            let mut known = known.into_iter();
            for (&change, number) in chunk.iter().zip(numbers) {
                match outcome(number)? {
                    Outcome::Forgotten => projected.rejected.push(change),
                    Outcome::Stale => {
                        let known = version(known.next().unwrap_or(0))?;
                        projected.stale.push(Conflict { change, known });
                    }
                    _ => {}
                }
            }
        }
        Ok(projected)
    }

    /// Compares acknowledged changes, each edge once, with the inverse side. All are sent together.
    /// Returns those that differ.
    pub async fn compare(&self, changes: &[Change]) -> Result<Vec<Conflict>, Error> {
        let mut changes = changes.to_vec();
        changes.sort_by_key(|change| change.edge.to);
        let chunks: Vec<&[Change]> = changes
            .chunk_by(|a, b| a.edge.to == b.edge.to)
            .flat_map(|of_target| of_target.chunks(CHUNK))
            .collect();
        let call = |chunk: &&[Change]| (chunk[0].edge.to.partition(), compare(chunk));
        let answers = self.call_in_batches(&chunks, |chunk| chunk.len(), call).await?;
        let mut conflicts = Vec::new();
        for (chunk, answer) in chunks.into_iter().zip(answers) {
            let numbers: Vec<i64> = decode(answer)?;
            let known = chunk.iter().zip(numbers).filter(|&(_, known)| known >= 0);
            for (&change, known) in known {
                conflicts.push(Conflict { change, known: version(known)? });
            }
        }
        Ok(conflicts)
    }

    /// Gives edges versions above both sides: a source step. Skips edges that have changed since
    /// they were read. All are sent together. Returns the changes made.
    pub async fn bump_versions(&self, conflicts: &[Conflict]) -> Result<Vec<Change>, Error> {
        let mut conflicts = conflicts.to_vec();
        conflicts.sort_by_key(|conflict| conflict.change.edge.from);
        let chunks: Vec<&[Conflict]> = conflicts
            .chunk_by(|a, b| a.change.edge.from == b.change.edge.from)
            .flat_map(|of_user| of_user.chunks(CHUNK))
            .collect();
        let call =
            |chunk: &&[Conflict]| (chunk[0].change.edge.from.partition(), bump_versions(chunk));
        let answers = self.call_in_batches(&chunks, |chunk| chunk.len(), call).await?;
        let mut bumped = Vec::new();
        for (chunk, answer) in chunks.into_iter().zip(answers) {
            let versions: Vec<i64> = decode(answer)?;
            for (conflict, number) in chunk.iter().zip(versions).filter(|&(_, n)| n != 0) {
                bumped.push(Change { version: version(number)?, ..conflict.change });
            }
        }
        Ok(bumped)
    }

    /// Acknowledges changes of follows: removes their outbox entries, unless newer changes replaced
    /// them. All are sent together.
    pub async fn acknowledge(&self, changes: &[Change]) -> Result<(), Error> {
        let entries =
            changes.iter().map(|change| (OutboxEntry::Follow(change.edge), change.version));
        self.acknowledge_entries(entries).await
    }

    /// Removes outbox entries, unless they have another version.
    pub(super) async fn acknowledge_entries(
        &self,
        entries: impl Iterator<Item = (OutboxEntry, u64)>,
    ) -> Result<(), Error> {
        let mut by_partition: BTreeMap<Partition, Vec<(String, u64)>> = BTreeMap::new();
        for (pending, version) in entries {
            let partition = pending.edge().from.partition();
            by_partition.entry(partition).or_default().push((pending.member(), version));
        }
        let chunks: Vec<(Partition, &[(String, u64)])> = by_partition
            .iter()
            .flat_map(|(&partition, entries)| {
                entries.chunks(CHUNK).map(move |chunk| (partition, chunk))
            })
            .collect();
        let call = |(partition, chunk): &(Partition, &[(String, u64)])| {
            let call = Call::new("relation_confirm").key(keys::pending(*partition));
            let add = |call: Call, (member, version): &(String, u64)| {
                call.arg(member.as_str()).arg(*version)
            };
            (*partition, chunk.iter().fold(call, add))
        };
        self.call_in_batches(&chunks, |(_, chunk)| chunk.len(), call).await?;
        Ok(())
    }
}

fn read_source_result(edge: Edge, fields: [i64; 3]) -> Result<SourceResult, Error> {
    Ok(SourceResult {
        edge,
        outcome: outcome(fields[0])?,
        version: version(fields[1])?,
        is_follower: fields[2] == 1,
    })
}

// Returns the call for changes of one target.
fn compare(changes: &[Change]) -> Call {
    with_target(Call::new("relation_compare"), changes)
}

// Adds a target's lists, and the changes of its followers, at least one.
fn with_target(call: Call, changes: &[Change]) -> Call {
    let target = changes[0].edge.to;
    let call = call
        .key(keys::followers(target))
        .key(keys::follower_ids(target))
        .key(keys::lost(target))
        .key(keys::following(target))
        .key(keys::following_ids(target))
        .key(keys::mutual(target))
        .arg(target.get())
        .arg(changes.len());
    changes.iter().fold(call, |call, change| {
        call.arg(change.edge.from.get()).arg(change.version).arg(u8::from(change.exists))
    })
}

// Returns the call for edges of one follower.
fn bump_versions(conflicts: &[Conflict]) -> Call {
    let follower = conflicts[0].change.edge.from;
    let partition = follower.partition();
    let call = Call::new("relation_bump_versions")
        .journal(partition, keys::journal(partition))
        .key(keys::clock(partition))
        .key(keys::pending(partition))
        .key(keys::following(follower))
        .key(keys::following_ids(follower))
        .key(keys::followers(follower))
        .key(keys::follower_ids(follower))
        .key(keys::mutual(follower))
        .issuing(partition)
        .arg(follower.get());
    conflicts.iter().fold(call, |call, Conflict { change, known }| {
        let call = call.arg(change.edge.to.get()).arg(change.version);
        call.arg(u8::from(change.exists)).arg(*known)
    })
}

// Returns the call for changes of one partition, ordered by target.
fn project(changes: &[Change]) -> Call {
    let partition = changes[0].edge.to.partition();
    let call = Call::new("relation_project").journal(partition, keys::journal(partition));
    with_targets(call.derived(), partition, changes)
}

/// Adds changes of one partition, ordered by target.
pub(super) fn with_targets(call: Call, partition: Partition, changes: &[Change]) -> Call {
    let call = call.key(keys::forgotten(partition)).key(keys::users(partition));
    changes.chunk_by(|a, b| a.edge.to == b.edge.to).fold(call, with_target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_keep_the_order_of_each_account() {
        let id = |n| UserId::new(n).unwrap();
        let edges = (1..=450).map(|n| Edge { from: id(1 + n % 2), to: id(1000 + n) });
        let groups = Targets::group(edges);
        let sizes: Vec<_> = groups.iter().map(|g| (g.user.get(), g.targets.len())).collect();
        let expected = [(2, 100), (1, 100), (2, 100), (1, 100), (2, 25), (1, 25)];
        assert_eq!(sizes, expected);
        assert!(groups.iter().all(|group| group.targets.is_sorted()));
    }
}
