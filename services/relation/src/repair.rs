//! Repairs the violations that [`verify`](crate::verify) finds. The source edge is the source of
//! truth; inverse edges, id sets and mutuals are derived from it.
//!
//! Repairs may run concurrently with writes. Each step compares and changes in one atomic function,
//! and skips what has changed since it was read. If a second repair finds the same violation, it
//! was changed meanwhile or broken again.

use microblog_domain::{Partition, Repairs, UserId};
use microblog_keyspace::Entry;

use crate::{
    edge_saga::EdgeSaga,
    error::Error,
    forget,
    graph::{Change, Conflict, Edge, List},
    store::{Store, ids},
    sweeper,
};

const PAGE: usize = 100;

/// The most pages of the outbox to process, since new entries may arrive.
const ROUNDS_MAX: usize = 1_000;

/// Relays the outbox of a partition, and completes its account deletions.
pub(crate) async fn unfinished(store: &Store, partition: Partition) -> Result<Repairs, Error> {
    let edges = EdgeSaga::new(store.clone());
    let mut repairs = Repairs::default();
    for member in store.discard_malformed(partition).await? {
        repairs.add(format!("partition {partition}: malformed outbox entry {member:?} removed"));
    }
    for _ in 0..ROUNDS_MAX {
        let page = store.outbox_page(&[(partition, 0)]).await?.into_iter().flatten().flatten();
        let pending: Vec<_> = page.collect();
        if pending.is_empty() {
            break;
        }
        sweeper::resume(store, &edges, &pending).await?;
        for (change, _) in pending {
            let Edge { from, to } = change.edge();
            repairs.add(format!("pending change from {from} to {to} completed"));
        }
    }
    for user in store.forgetting_in(partition).await? {
        forget::forget(store, &edges, user).await?;
        repairs.add(format!("{user}: account deletion completed"));
    }
    Ok(repairs)
}

/// Repairs one user's lists and their counterparts.
pub(crate) async fn user(store: &Store, user: UserId) -> Result<Repairs, Error> {
    let edges = EdgeSaga::new(store.clone());
    let mut repair = Repair { store, edges, user, repairs: Repairs::default() };
    for list in [List::Following, List::Followers, List::Mutuals, List::Blocks, List::BlockedBy] {
        let mut after = None;
        loop {
            let page = store.page(list, user, after, None, PAGE).await?;
            match list {
                List::Following => repair.following(&page.entries).await?,
                List::Followers => repair.followers(&page.entries).await?,
                List::Blocks => repair.blocks(&page.entries).await?,
                List::BlockedBy => repair.blocked_by(&page.entries).await?,
                List::Mutuals => repair.index(&ids(&page.entries)).await?,
                List::Mutes => {}
            }
            after = page.entries.last().copied();
            if !page.more {
                break;
            }
        }
    }
    // After the lists, so that missing and surplus ids of equal number do not hide each other.
    repair.id_sets().await?;
    Ok(repair.repairs)
}

struct Repair<'a> {
    store: &'a Store,
    edges: EdgeSaga,
    user: UserId,
    repairs: Repairs,
}

impl Repair<'_> {
    // Follows that only an id set has. In the user's followings, they are created again; in the
    // followers, the source edge decides.
    async fn id_sets(&mut self) -> Result<(), Error> {
        let sizes = self.store.sizes(self.user).await?;
        let sets = [
            (List::Following, sizes.following == sizes.following_ids),
            (List::Followers, sizes.followers == sizes.follower_ids),
        ];
        for (list, _) in sets.into_iter().filter(|(_, agree)| !agree) {
            let mut cursor = 0;
            loop {
                let (next, members) = self.store.id_set(list, self.user, cursor).await?;
                for peers in members.chunks(PAGE) {
                    let versions = self.store.versions(list, self.user, peers).await?;
                    let missing = peers.iter().zip(versions).filter(|&(_, version)| version == 0);
                    let missing: Vec<UserId> = missing.map(|(&peer, _)| peer).collect();
                    match list {
                        List::Following => {
                            let edge = |&to| half_follow(Edge { from: self.user, to });
                            let conflicts: Vec<Conflict> = missing.iter().map(edge).collect();
                            self.reconcile(&conflicts).await?;
                        }
                        _ => self.index(&missing).await?,
                    }
                }
                if next == 0 {
                    break;
                }
                cursor = next;
            }
        }
        Ok(())
    }

    async fn index(&mut self, peers: &[UserId]) -> Result<(), Error> {
        let differed = self.store.index(self.user, peers).await?;
        for (peer, _) in peers.iter().zip(differed).filter(|&(_, differed)| differed) {
            let user = self.user;
            self.repairs.add(format!("{user}: id sets and mutuals rebuilt for {peer}"));
        }
        Ok(())
    }

    async fn reconcile(&mut self, conflicts: &[Conflict]) -> Result<(), Error> {
        for change in self.edges.reconcile(conflicts).await?.bumped {
            let Edge { from, to } = change.edge;
            let what = if change.exists { "follows" } else { "does not follow" };
            self.repairs
                .add(format!("{from} {what} {to}: reconciled at version {}", change.version));
        }
        Ok(())
    }

    async fn following(&mut self, entries: &[Entry]) -> Result<(), Error> {
        let peers = ids(entries);
        self.index(&peers).await?;
        let change = |(&to, entry): (&UserId, &Entry)| Change {
            edge: Edge { from: self.user, to },
            version: entry.score,
            exists: true,
        };
        let changes: Vec<Change> = peers.iter().zip(entries).map(change).collect();
        let conflicts = self.store.compare(&changes).await?;
        self.reconcile(&conflicts).await
    }

    async fn followers(&mut self, entries: &[Entry]) -> Result<(), Error> {
        let peers = ids(entries);
        self.index(&peers).await?;
        let results: Vec<_> =
            peers.iter().map(|&peer| (List::Following, peer, self.user)).collect();
        let results = self.store.entries(&results).await?;
        let conflict = |((&from, entry), version): ((&UserId, &Entry), u64)| {
            let edge = Edge { from, to: self.user };
            let change = Change { edge, version, exists: version > 0 };
            (version != entry.score).then_some(Conflict { change, known: entry.score })
        };
        let found = peers.iter().zip(entries).zip(results);
        let conflicts: Vec<Conflict> = found.filter_map(conflict).collect();
        let mut agreed = Vec::with_capacity(conflicts.len());
        for conflict in conflicts {
            let edge = conflict.change.edge;
            let in_set = self.store.in_id_set(List::Following, edge.from, &[edge.to]).await?;
            // If half of the source edge exists, the follow is created again.
            let is_half = !conflict.change.exists && in_set == [true];
            agreed.push(if is_half { half_follow(edge) } else { conflict });
        }
        self.reconcile(&agreed).await
    }

    async fn blocks(&mut self, entries: &[Entry]) -> Result<(), Error> {
        let (user, peers) = (self.user, ids(entries));
        let others: Vec<_> = peers.iter().map(|&peer| (List::BlockedBy, peer, user)).collect();
        let known = self.store.entries(&others).await?;
        let following = self.store.versions(List::Following, user, &peers).await?;
        let followers = self.store.versions(List::Followers, user, &peers).await?;
        for (i, (&peer, entry)) in peers.iter().zip(entries).enumerate() {
            if known[i] != entry.score || following[i] > 0 || followers[i] > 0 {
                self.edges.reconcile_block(Edge { from: user, to: peer }).await?;
                self.repairs.add(format!("{user} blocks {peer}: reconciled, follows ended"));
            }
        }
        Ok(())
    }

    async fn blocked_by(&mut self, entries: &[Entry]) -> Result<(), Error> {
        let (user, peers) = (self.user, ids(entries));
        let results: Vec<_> = peers.iter().map(|&peer| (List::Blocks, peer, user)).collect();
        let results = self.store.entries(&results).await?;
        for ((&peer, entry), result) in peers.iter().zip(entries).zip(results) {
            let edge = Edge { from: peer, to: user };
            if result == 0 {
                self.edges.unblock(edge, false).await?;
                self.repairs.add(format!("{peer} does not block {user}: reconciled"));
            } else if result != entry.score {
                self.edges.reconcile_block(edge).await?;
                self.repairs.add(format!("{peer} blocks {user}: reconciled"));
            }
        }
        Ok(())
    }
}

// A follow that only the follower's id set has.
fn half_follow(edge: Edge) -> Conflict {
    Conflict { change: Change { edge, version: 0, exists: true }, known: 0 }
}
