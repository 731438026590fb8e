//! Deletes the posts of deleted accounts. The [eraser](crate::Eraser) removes their likes and
//! comments on other posts later, and then completes the deletion.
//!
//! The account is marked first, for good: from then on its posts and comments are rejected, so its
//! list of posts only shrinks. Each step may be repeated: after a crash, the job continues with
//! what is left.

use microblog_domain::UserId;

use crate::{
    error::Error,
    posts::Posts,
    store::{ARCHIVE_MARKER, post_ids},
    tiered_store::TieredStore,
};

const PAGE: usize = 200;

/// Deletes all posts of the marked accounts. A failure for one does not stop the others; returns
/// the first failure.
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
    // Posts that became evictable meanwhile are in the archive, too.
    if has_archived_posts && forget_archived(tiered, posts, user).await? {
        tiered.store().remove_archive_marker(user).await?;
    }
    // The next run deletes what is left, as long as the account is marked.
    Ok(())
}

// Returns whether the archive has no posts of the account. It has those deleted here until their
// deletion is recorded.
async fn forget_archived(tiered: &TieredStore, posts: &Posts, user: UserId) -> Result<bool, Error> {
    let (archive, mut before) = (tiered.archive()?, None);
    loop {
        let ids = archive.newest_of(&[user], before, None, PAGE).await?;
        let Some(&last) = ids.last() else { return Ok(before.is_none()) };
        posts.delete_archived(user, &ids).await?;
        before = Some(last);
    }
}
