//! Forgetting a deleted account: every follow and block from and to it is ended, on both sides.
//!
//! The account is marked first, and for good: from then on its side refuses to hear of new
//! followers or blockers, and its own follows are refused, so that the lists only shrink. Each
//! step here can be repeated, so a crash only means that a sweeper begins again at what is left.

use microblog_domain::UserId;

use crate::{
    edges::Edges,
    error::Error,
    graph::{Edge, List},
    store::Store,
};

const PAGE: usize = 200;

/// Ends everything that the marked accounts take part in.
pub async fn forget_marked(store: &Store) -> Result<(), Error> {
    let edges = Edges::new(store.clone());
    for user in store.forgetting().await? {
        forget(store, &edges, user).await?;
    }
    Ok(())
}

async fn forget(store: &Store, edges: &Edges, user: UserId) -> Result<(), Error> {
    loop {
        for list in [List::Following, List::Followers, List::Blocks, List::BlockedBy] {
            end_list(store, edges, list, user).await?;
        }
        if store.forgot(user).await? {
            return Ok(());
        }
    }
}

async fn end_list(store: &Store, edges: &Edges, list: List, user: UserId) -> Result<(), Error> {
    loop {
        let page = store.page(list, user, None, None, PAGE).await?;
        let peers: Vec<UserId> =
            page.entries.iter().filter_map(|entry| UserId::new(entry.member)).collect();
        if peers.is_empty() {
            return Ok(());
        }
        let from_user = peers.iter().map(|&peer| Edge { from: user, to: peer });
        let to_user = peers.iter().map(|&peer| Edge { from: peer, to: user });
        match list {
            List::Following => edges.end_all(from_user).await?,
            List::Followers => edges.end_all(to_user).await?,
            List::Blocks => unblock(edges, from_user).await?,
            List::BlockedBy => unblock(edges, to_user).await?,
            // Mutuals end with the follows; mutes are one-sided, and go at the end.
            List::Mutuals | List::Mutes => return Ok(()),
        }
    }
}

async fn unblock(edges: &Edges, blocks: impl Iterator<Item = Edge>) -> Result<(), Error> {
    for edge in blocks {
        edges.unblock(edge, true).await?;
    }
    Ok(())
}
