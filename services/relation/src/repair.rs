//! Mends what [`verify`](crate::verify) finds wrong. What a follow or block is, its owner's side
//! says; the other side, id sets and mutuals follow from that.
//!
//! May run while writes are under way: each step compares what it is about to change with what is
//! there at that moment, in the same atomic function, and leaves alone what has changed since it was
//! read. What is mended a second time was changed by somebody meanwhile, or broken again.

use microblog_domain::{Partition, Repairs, UserId};
use microblog_keyspace::Entry;

use crate::{
    edges::Edges,
    error::Error,
    forget,
    graph::{Change, Conflict, Edge, List},
    store::{Store, ids},
    sweeper,
};

const PAGE: usize = 100;

/// How often the changes that wait are taken up, of which new ones come in meanwhile.
const ROUNDS_MAX: usize = 1_000;

/// Completes the changes of a partition that wait, and forgets its accounts that are to be forgotten.
pub(crate) async fn unfinished(store: &Store, partition: Partition) -> Result<Repairs, Error> {
    let edges = Edges::new(store.clone());
    let mut repairs = Repairs::default();
    for member in store.discard_unreadable(partition).await? {
        repairs.add(format!("partition {partition}: {member:?} is no change, and waits no more"));
    }
    for _ in 0..ROUNDS_MAX {
        let page = store.waiting(&[(partition, 0)]).await?.into_iter().flatten().flatten();
        let waiting: Vec<_> = page.collect();
        if waiting.is_empty() {
            break;
        }
        sweeper::take_up(store, &edges, &waiting).await?;
        for (change, _) in waiting {
            let Edge { from, to } = change.edge();
            repairs.add(format!("the change from {from} to {to} that waited is known to both"));
        }
    }
    for user in store.forgetting_in(partition).await? {
        forget::forget(store, &edges, user).await?;
        repairs.add(format!("{user}: forgotten to the end"));
    }
    Ok(repairs)
}

/// Mends one user's lists and what the other sides say of them.
pub(crate) async fn user(store: &Store, user: UserId) -> Result<Repairs, Error> {
    let edges = Edges::new(store.clone());
    let mut repair = Repair { store, edges, user, repairs: Repairs::default() };
    for list in [List::Following, List::Followers, List::Mutuals, List::Blocks, List::BlockedBy] {
        let mut after = None;
        loop {
            let page = store.page(list, user, after, None, PAGE).await?;
            match list {
                List::Following => repair.following(&page.entries).await?,
                List::Followers => repair.followers(&page.entries).await?,
                List::Mutuals => repair.index(&ids(&page.entries)).await?,
                List::Blocks => repair.blocks(&page.entries).await?,
                List::BlockedBy => repair.blocked_by(&page.entries).await?,
                List::Mutes => {}
            }
            after = page.entries.last().copied();
            if !page.more {
                break;
            }
        }
    }
    // After the lists: what an id set lacks and what it has too much must not hide each other.
    repair.id_sets().await?;
    Ok(repair.repairs)
}

struct Repair<'a> {
    store: &'a Store,
    edges: Edges,
    user: UserId,
    repairs: Repairs,
}

impl Repair<'_> {
    // Follows that only an id set has: of the user's own, they are made anew; of its followers, the
    // truth says whether they follow.
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
                            let edge = |&to| again(Edge { from: self.user, to });
                            let conflicts: Vec<Conflict> = missing.iter().map(edge).collect();
                            self.mend(&conflicts).await?;
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
            self.repairs
                .add(format!("{user}: id sets and mutuals say of {peer} what its lists say"));
        }
        Ok(())
    }

    async fn mend(&mut self, conflicts: &[Conflict]) -> Result<(), Error> {
        for change in self.edges.mend(conflicts).await?.raised {
            let Edge { from, to } = change.edge;
            let what = if change.exists { "follows" } else { "does not follow" };
            self.repairs.add(format!("{from} {what} {to}: both sides agree at {}", change.version));
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
        self.mend(&conflicts).await
    }

    async fn followers(&mut self, entries: &[Entry]) -> Result<(), Error> {
        let peers = ids(entries);
        self.index(&peers).await?;
        let truths: Vec<_> = peers.iter().map(|&peer| (List::Following, peer, self.user)).collect();
        let truths = self.store.entries(&truths).await?;
        let conflict = |((&from, entry), version): ((&UserId, &Entry), u64)| {
            let edge = Edge { from, to: self.user };
            let change = Change { edge, version, exists: version > 0 };
            (version != entry.score).then_some(Conflict { change, known: entry.score })
        };
        let found = peers.iter().zip(entries).zip(truths);
        let conflicts: Vec<Conflict> = found.filter_map(conflict).collect();
        let mut agreed = Vec::with_capacity(conflicts.len());
        for conflict in conflicts {
            let edge = conflict.change.edge;
            let in_set = self.store.in_id_set(List::Following, edge.from, &[edge.to]).await?;
            // Where half of the truth is there, the follow is made anew.
            let is_half = !conflict.change.exists && in_set == [true];
            agreed.push(if is_half { again(edge) } else { conflict });
        }
        self.mend(&agreed).await
    }

    async fn blocks(&mut self, entries: &[Entry]) -> Result<(), Error> {
        let (user, peers) = (self.user, ids(entries));
        let others: Vec<_> = peers.iter().map(|&peer| (List::BlockedBy, peer, user)).collect();
        let known = self.store.entries(&others).await?;
        let following = self.store.versions(List::Following, user, &peers).await?;
        let followers = self.store.versions(List::Followers, user, &peers).await?;
        for (i, (&peer, entry)) in peers.iter().zip(entries).enumerate() {
            if known[i] != entry.score || following[i] > 0 || followers[i] > 0 {
                self.edges.mend_block(Edge { from: user, to: peer }).await?;
                self.repairs
                    .add(format!("{user} blocks {peer}: both sides agree, no follow is left"));
            }
        }
        Ok(())
    }

    async fn blocked_by(&mut self, entries: &[Entry]) -> Result<(), Error> {
        let (user, peers) = (self.user, ids(entries));
        let truths: Vec<_> = peers.iter().map(|&peer| (List::Blocks, peer, user)).collect();
        let truths = self.store.entries(&truths).await?;
        for ((&peer, entry), truth) in peers.iter().zip(entries).zip(truths) {
            let edge = Edge { from: peer, to: user };
            if truth == 0 {
                self.edges.unblock(edge, false).await?;
                self.repairs.add(format!("{peer} does not block {user}: both sides agree"));
            } else if truth != entry.score {
                self.edges.mend_block(edge).await?;
                self.repairs.add(format!("{peer} blocks {user}: both sides agree"));
            }
        }
        Ok(())
    }
}

// A follow that only the follower's id set has.
fn again(edge: Edge) -> Conflict {
    Conflict { change: Change { edge, version: 0, exists: true }, known: 0 }
}
