//! Forgetting a deleted account: its posts are deleted.
//!
//! The account is marked first, and for good: from then on its posts and comments are refused, so
//! that the list of its posts only shrinks. Each step here can be repeated, so a crash only means
//! that a job begins again at what is left.

use microblog_domain::UserId;

use crate::{
    error::Error,
    posts::Posts,
    store::{Store, post_ids},
};

const PAGE: usize = 200;

/// Deletes all posts of the marked accounts. What fails for one does not keep the others waiting;
/// the first failure is returned.
pub async fn forget_marked(store: &Store, posts: &Posts) -> Result<(), Error> {
    let mut outcome = Ok(());
    for user in store.forgetting().await? {
        outcome = outcome.and(forget(store, posts, user).await);
    }
    outcome
}

async fn forget(store: &Store, posts: &Posts, user: UserId) -> Result<(), Error> {
    let mut after = None;
    loop {
        let page = store.posts_of(user, after, PAGE).await?;
        posts.remove_all(user, &post_ids(&page.entries)).await?;
        after = page.entries.last().copied();
        if !page.more {
            break;
        }
    }
    // If something is left, the account stays marked, and the next round goes on.
    store.forgot(user).await?;
    Ok(())
}
