//! Forgetting a deleted account: every follow and block from and to it is ended, on both sides.
//!
//! The account is marked first, and for good: from then on its side refuses to hear of new
//! followers or blockers, and its own follows are refused, so that the lists only shrink. Each
//! step here can be repeated, so a crash only means that a job begins again at what is left.

use microblog_domain::UserId;

use crate::{
    edges::Edges,
    error::Error,
    graph::{Edge, List},
    store::{Store, ids},
};

const PAGE: usize = 200;

/// Ends everything that the marked accounts take part in. What fails for one does not keep the
/// others waiting; the first failure is returned.
pub async fn forget_marked(store: &Store) -> Result<(), Error> {
    let edges = Edges::new(store.clone());
    let mut outcome = Ok(());
    for user in store.forgetting().await? {
        outcome = outcome.and(forget(store, &edges, user).await);
    }
    outcome
}

pub(crate) async fn forget(store: &Store, edges: &Edges, user: UserId) -> Result<(), Error> {
    let from_user = |peer| Edge { from: user, to: peer };
    let to_user = |peer| Edge { from: peer, to: user };
    while let Some(peers) = peers(store, List::Following, user).await? {
        edges.end_all(peers.into_iter().map(from_user)).await?;
    }
    while let Some(peers) = peers(store, List::Followers, user).await? {
        edges.end_all(peers.into_iter().map(to_user)).await?;
    }
    while let Some(peers) = peers(store, List::Blocks, user).await? {
        for peer in peers {
            edges.unblock(from_user(peer), true).await?;
        }
    }
    while let Some(peers) = peers(store, List::BlockedBy, user).await? {
        for peer in peers {
            edges.unblock(to_user(peer), true).await?;
        }
    }
    // If something came in meanwhile, the account stays marked, and the next round goes on.
    store.forgot(user).await?;
    Ok(())
}

async fn peers(store: &Store, list: List, user: UserId) -> Result<Option<Vec<UserId>>, Error> {
    let page = store.page(list, user, None, None, PAGE).await?;
    let peers = ids(&page.entries);
    Ok((!peers.is_empty()).then_some(peers))
}
