//! The three steps of a follow: truth, projection, confirmation.

use std::collections::{BTreeMap, HashMap};

use microblog_domain::{Partition, UserId};
use microblog_keyspace::{Call, Error, decode};

use super::{CHUNK, Store, Waiting, outcome, version};
use crate::{
    graph::{Change, Conflict, Edge, Outcome},
    keys,
};

/// One account, and targets of its: each once, and not the account itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Targets {
    /// Who is to follow, or to follow no more.
    pub user: UserId,
    /// Whom, at most 100.
    pub targets: Vec<UserId>,
}

impl Targets {
    /// Returns the sole edge from one account to another.
    pub fn one(edge: Edge) -> Self {
        Self { user: edge.from, targets: vec![edge.to] }
    }

    /// Groups edges by who they start from, in their order, at most 100 a group; groups of the
    /// same account stand in the order of their edges.
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

/// What the follower's side says of one edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truth {
    /// Which edge.
    pub edge: Edge,
    /// What was done.
    pub outcome: Outcome,
    /// The version of the edge, or of its end; 0 if it was refused or nothing was there.
    pub version: u64,
    /// Whether the target follows the follower.
    pub is_follower: bool,
}

/// What the targets' sides did not take.
#[derive(Clone, Debug, Default)]
pub struct Projected {
    /// Follows of accounts that are deleted.
    pub refused: Vec<Change>,
    /// Changes older than what the target's side knows.
    pub stale: Vec<Conflict>,
}

impl Store {
    /// Makes an account follow a target: the truth alone.
    pub async fn follow_one(&self, edge: Edge) -> Result<Truth, Error> {
        let call = self.follow_call(edge.from).arg(edge.to.get());
        read_truth(edge, self.keyspace.call(call).await?)
    }

    /// Makes accounts follow their targets: the truth alone. All groups go out together.
    pub async fn follow(&self, groups: &[Targets]) -> Result<Vec<Truth>, Error> {
        self.truths(groups, |group| self.follow_call(group.user)).await
    }

    // Lacks the targets.
    fn follow_call(&self, user: UserId) -> Call {
        let partition = user.partition();
        Call::new("relation_follow")
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

    /// Makes accounts follow their targets no more: the truth alone. All groups go out together.
    ///
    /// `always` notes an end also of an edge that is not there, so that the target's side hears
    /// of it whatever it believes.
    pub async fn unfollow(&self, groups: &[Targets], always: bool) -> Result<Vec<Truth>, Error> {
        let call = |group: &Targets| {
            let (user, partition) = (group.user, group.user.partition());
            Call::new("relation_unfollow")
                .key(keys::clock(partition))
                .key(keys::pending(partition))
                .key(keys::following(user))
                .key(keys::following_ids(user))
                .key(keys::follower_ids(user))
                .key(keys::mutual(user))
                .issuing(partition)
                .arg(user.get())
                .arg(u8::from(always))
        };
        self.truths(groups, call).await
    }

    async fn truths(
        &self,
        groups: &[Targets],
        call: impl Fn(&Targets) -> Call,
    ) -> Result<Vec<Truth>, Error> {
        let with_targets = |group: &Targets| {
            let call = group.targets.iter().fold(call(group), |call, to| call.arg(to.get()));
            (group.user.partition(), call)
        };
        let answers = self.in_windows(groups, |group| group.targets.len(), with_targets).await?;
        let mut truths = Vec::with_capacity(groups.iter().map(|group| group.targets.len()).sum());
        for (group, answer) in groups.iter().zip(answers) {
            let numbers: Vec<i64> = decode(answer)?;
            for (&to, &fields) in group.targets.iter().zip(numbers.as_chunks::<3>().0) {
                truths.push(read_truth(Edge { from: group.user, to }, fields)?);
            }
        }
        Ok(truths)
    }

    /// Tells the targets' sides of changes, each edge once. All go out together.
    pub async fn project(&self, changes: &[Change]) -> Result<Projected, Error> {
        let mut changes = changes.to_vec();
        changes.sort_by_key(|change| (change.edge.to.partition(), change.edge.to));
        let same_partition =
            |a: &Change, b: &Change| a.edge.to.partition() == b.edge.to.partition();
        let chunks: Vec<&[Change]> =
            changes.chunk_by(same_partition).flat_map(|all| all.chunks(CHUNK)).collect();
        let call = |chunk: &&[Change]| (chunk[0].edge.to.partition(), project(chunk));
        let answers = self.in_windows(&chunks, |chunk| chunk.len(), call).await?;
        let mut projected = Projected::default();
        for (chunk, answer) in chunks.into_iter().zip(answers) {
            let (numbers, known): (Vec<i64>, Vec<i64>) = decode(answer)?;
            let mut known = known.into_iter();
            for (&change, number) in chunk.iter().zip(numbers) {
                match outcome(number)? {
                    Outcome::Forgotten => projected.refused.push(change),
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

    /// Compares changes that the targets' sides were told before, each edge once, with what these
    /// sides say. All go out together. Returns those that differ.
    pub async fn compare(&self, changes: &[Change]) -> Result<Vec<Conflict>, Error> {
        let mut changes = changes.to_vec();
        changes.sort_by_key(|change| change.edge.to);
        let chunks: Vec<&[Change]> = changes
            .chunk_by(|a, b| a.edge.to == b.edge.to)
            .flat_map(|of_target| of_target.chunks(CHUNK))
            .collect();
        let call = |chunk: &&[Change]| (chunk[0].edge.to.partition(), compare(chunk));
        let answers = self.in_windows(&chunks, |chunk| chunk.len(), call).await?;
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

    /// Gives edges new versions above what both sides know: the truth alone. Leaves edges alone that
    /// have changed since they were seen. All go out together. Returns the changes that it made.
    pub async fn raise(&self, conflicts: &[Conflict]) -> Result<Vec<Change>, Error> {
        let mut conflicts = conflicts.to_vec();
        conflicts.sort_by_key(|conflict| conflict.change.edge.from);
        let chunks: Vec<&[Conflict]> = conflicts
            .chunk_by(|a, b| a.change.edge.from == b.change.edge.from)
            .flat_map(|of_user| of_user.chunks(CHUNK))
            .collect();
        let call = |chunk: &&[Conflict]| (chunk[0].change.edge.from.partition(), raise(chunk));
        let answers = self.in_windows(&chunks, |chunk| chunk.len(), call).await?;
        let mut raised = Vec::new();
        for (chunk, answer) in chunks.into_iter().zip(answers) {
            let versions: Vec<i64> = decode(answer)?;
            for (conflict, number) in chunk.iter().zip(versions).filter(|&(_, n)| n != 0) {
                raised.push(Change { version: version(number)?, ..conflict.change });
            }
        }
        Ok(raised)
    }

    /// Takes changes of follows off the list of those that the other side may not know, unless
    /// newer ones of the same edges have come in. All go out together.
    pub async fn confirm(&self, changes: &[Change]) -> Result<(), Error> {
        let entries = changes.iter().map(|change| (Waiting::Follow(change.edge), change.version));
        self.confirm_entries(entries).await
    }

    /// Takes entries out of `pending`, each unless it has another version by now.
    pub(super) async fn confirm_entries(
        &self,
        entries: impl Iterator<Item = (Waiting, u64)>,
    ) -> Result<(), Error> {
        let mut by_partition: BTreeMap<Partition, Vec<(String, u64)>> = BTreeMap::new();
        for (waiting, version) in entries {
            let partition = waiting.edge().from.partition();
            by_partition.entry(partition).or_default().push((waiting.member(), version));
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
        self.in_windows(&chunks, |(_, chunk)| chunk.len(), call).await?;
        Ok(())
    }
}

fn read_truth(edge: Edge, fields: [i64; 3]) -> Result<Truth, Error> {
    Ok(Truth {
        edge,
        outcome: outcome(fields[0])?,
        version: version(fields[1])?,
        is_follower: fields[2] == 1,
    })
}

// Compares changes of one target.
fn compare(changes: &[Change]) -> Call {
    with_target(Call::new("relation_compare"), changes)
}

// Adds a target's lists, and changes of its followers, of which there is at least one.
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

// Raises edges of one follower.
fn raise(conflicts: &[Conflict]) -> Call {
    let follower = conflicts[0].change.edge.from;
    let partition = follower.partition();
    let call = Call::new("relation_raise")
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

// Projects changes of targets of one partition, ordered by target.
fn project(changes: &[Change]) -> Call {
    let partition = changes[0].edge.to.partition();
    let call =
        Call::new("relation_project").key(keys::forgotten(partition)).key(keys::users(partition));
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
