//! Forgetting a deleted account: its posts are deleted. What it wrote on the posts of others is
//! [erased](crate::Eraser) later, and then it is forgotten.
//!
//! The account is marked first, and for good: from then on its posts and comments are refused, so
//! that the list of its posts only shrinks. Each step here can be repeated, so a crash only means
//! that a job begins again at what is left.

use microblog_domain::UserId;

use crate::{
    error::Error,
    posts::Posts,
    store::{GOES_ON, post_ids},
    tiers::Tiers,
};

const PAGE: usize = 200;

/// Deletes all posts of the marked accounts. What fails for one does not keep the others waiting;
/// the first failure is returned.
pub async fn forget_marked(tiers: &Tiers, posts: &Posts) -> Result<(), Error> {
    let mut outcome = Ok(());
    for user in tiers.store().forgetting().await? {
        outcome = outcome.and(forget(tiers, posts, user).await);
    }
    outcome
}

async fn forget(tiers: &Tiers, posts: &Posts, user: UserId) -> Result<(), Error> {
    let (mut after, mut goes_on) = (None, false);
    loop {
        let page = tiers.store().posts_of(user, after, PAGE).await?;
        posts.remove_all(user, &post_ids(&page.entries)).await?;
        after = page.entries.last().copied();
        goes_on |= after.is_some_and(|last| last.member == GOES_ON);
        if !page.more {
            break;
        }
    }
    // What was retired since is in the archive, too.
    if goes_on && forget_archived(tiers, posts, user).await? {
        tiers.store().close_list(user).await?;
    }
    // If something is left, the next round goes on, as long as the account is marked.
    Ok(())
}

// Returns whether nothing is left in the archive. What is deleted here is there until the archive
// knows it.
async fn forget_archived(tiers: &Tiers, posts: &Posts, user: UserId) -> Result<bool, Error> {
    let (archive, mut before) = (tiers.archive()?, None);
    loop {
        let ids = archive.newest_of(&[user], before, PAGE).await?;
        let Some(&last) = ids.last() else { return Ok(before.is_none()) };
        posts.remove_archived(&ids).await?;
        before = Some(last);
    }
}
