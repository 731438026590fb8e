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
    store::{ARCHIVE_MARKER, post_ids},
    tiered_store::TieredStore,
};

const PAGE: usize = 200;

/// Deletes all posts of the marked accounts. What fails for one does not keep the others waiting;
/// the first failure is returned.
pub async fn forget_marked(tiered: &TieredStore, posts: &Posts) -> Result<(), Error> {
    let mut outcome = Ok(());
    for user in tiered.store().forgetting().await? {
        outcome = outcome.and(forget(tiered, posts, user).await);
    }
    outcome
}

async fn forget(tiered: &TieredStore, posts: &Posts, user: UserId) -> Result<(), Error> {
    let (mut after, mut has_archived_posts) = (None, false);
    loop {
        let page = tiered.store().posts_of(user, after, PAGE).await?;
        posts.delete_listed(user, &post_ids(&page.entries)).await?;
        after = page.entries.last().copied();
        has_archived_posts |= after.is_some_and(|last| last.member == ARCHIVE_MARKER);
        if !page.more {
            break;
        }
    }
    // What was retired since is in the archive, too.
    if has_archived_posts && forget_archived(tiered, posts, user).await? {
        tiered.store().remove_archive_marker(user).await?;
    }
    // If something is left, the next round goes on, as long as the account is marked.
    Ok(())
}

// Returns whether nothing is left in the archive. What is deleted here is there until the archive
// knows it.
async fn forget_archived(tiered: &TieredStore, posts: &Posts, user: UserId) -> Result<bool, Error> {
    let (archive, mut before) = (tiered.archive()?, None);
    loop {
        let ids = archive.newest_of(&[user], before, PAGE).await?;
        let Some(&last) = ids.last() else { return Ok(before.is_none()) };
        posts.delete_archived(&ids).await?;
        before = Some(last);
    }
}
