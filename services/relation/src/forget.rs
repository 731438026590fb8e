//! Deletion of an account (`ForgetUser`): ends all its follows and blocks, on both sides.
//!
//! The account is marked first, for good. From then on, its partition rejects new followers,
//! blockers and follows, so its lists only shrink. Each step is idempotent; after a crash, the job
//! continues with the remaining entries. It pauses while the database is behind: all followers of an
//! account end in the journal of one partition.

use std::collections::BTreeSet;

use microblog_domain::{Partition, UserId};

use crate::{
    edge_saga::EdgeSaga,
    error::Error,
    graph::{Edge, List},
    store::{Store, ids},
};

const PAGE: usize = 200;

/// Ends all edges of the marked accounts. Continues after an error; returns the first one.
pub async fn forget_marked(store: &Store) -> Result<(), Error> {
    let edges = EdgeSaga::new(store.clone());
    let mut outcome = Ok(());
    for user in store.forgetting().await? {
        outcome = outcome.and(forget(store, &edges, user).await);
    }
    outcome
}

pub(crate) async fn forget(store: &Store, edges: &EdgeSaga, user: UserId) -> Result<(), Error> {
    let from_user = |peer| Edge { from: user, to: peer };
    let to_user = |peer| Edge { from: peer, to: user };
    while let Some(peers) = peers(store, edges, List::Following, user).await? {
        edges.end_all(peers.into_iter().map(from_user)).await?;
    }
    while let Some(peers) = peers(store, edges, List::Followers, user).await? {
        edges.end_all(peers.into_iter().map(to_user)).await?;
    }
    while let Some(peers) = peers(store, edges, List::Blocks, user).await? {
        for peer in peers {
            edges.unblock(from_user(peer), true).await?;
        }
    }
    while let Some(peers) = peers(store, edges, List::BlockedBy, user).await? {
        for peer in peers {
            edges.unblock(to_user(peer), true).await?;
        }
    }
    // If an edge was added meanwhile, the account stays marked for the next round.
    store.finish_forgetting(user).await?;
    Ok(())
}

// Returns a page of a list, or `None` if it is empty. Fails while the database is behind.
async fn peers(
    store: &Store,
    edges: &EdgeSaga,
    list: List,
    user: UserId,
) -> Result<Option<Vec<UserId>>, Error> {
    let page = store.page(list, user, None, None, PAGE).await?;
    let peers = ids(&page.entries);
    if peers.is_empty() {
        return Ok(None);
    }
    let accounts = peers.iter().copied().chain([user]);
    let partitions: BTreeSet<Partition> = accounts.map(UserId::partition).collect();
    edges.check_recorder(&partitions).await?;
    Ok(Some(peers))
}
