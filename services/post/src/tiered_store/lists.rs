//! The lists and comments of a post, and the posts of authors, across Redis and the archive.
//!
//! An author's list in Redis holds its newest posts. Posts become evictable oldest first, once the
//! archive has them, and leave the list; the archive marker, the member 0, then ends the list.

use std::collections::HashMap;

use microblog_domain::{CommentId, IdSet, PostId, Stamp, UserId};
use microblog_keyspace::{Entry, Page};

use super::{ATTEMPTS, TieredStore};
use crate::{
    error::Error,
    post::{Comment, PostPage},
    store::{ARCHIVE_MARKER, List, Presence},
};

/// The page size once many of the archived posts turn out to be deleted.
const DELETED_PAGE: usize = 1_000;

impl TieredStore {
    /// Returns a page of a post's list.
    pub async fn list(
        &self,
        list: List,
        id: PostId,
        after: Option<Entry>,
        count: usize,
    ) -> Result<Page, Error> {
        for _ in 0..ATTEMPTS {
            let page = self.store.list(list, id, after, count).await?;
            // A post is evicted with its lists: only an empty page may mean that they are archived.
            if !page.entries.is_empty() {
                return Ok(page);
            }
            match self.store.presence(list, id).await? {
                Presence::Empty => return Ok(page),
                // A restore may have happened in between; otherwise the cursor is behind the last
                // entry.
                Presence::Listed => {
                    let page = self.store.list(list, id, after, count).await?;
                    if !page.entries.is_empty()
                        || self.store.presence(list, id).await? == Presence::Listed
                    {
                        return Ok(page);
                    }
                }
                Presence::Absent => return self.archived_list(list, id, after, count).await,
            }
        }
        Err(Error::RetriesExhausted)
    }

    async fn archived_list(
        &self,
        list: List,
        id: PostId,
        after: Option<Entry>,
        count: usize,
    ) -> Result<Page, Error> {
        if self.archived(&[id], None).await?.is_empty() {
            return Err(Error::PostNotFound);
        }
        let archive = self.archive()?;
        let mut entries = match list {
            List::Likers => archive.likers(id, after, count + 1).await?,
            List::Reposts => archive.reposts(id, after, count + 1).await?,
            List::Comments(order) => archive.comment_ids(id, order, after, count + 1).await?,
        };
        let more = entries.len() > count;
        entries.truncate(count);
        Ok(Page { entries, more })
    }

    /// Returns the existing, readable comments among some on a post, in the given order.
    pub async fn comments(&self, post: PostId, ids: &[CommentId]) -> Result<Vec<Comment>, Error> {
        let keys: Vec<_> = ids.iter().map(|&id| (post, id)).collect();
        Ok(self.batch_comments(&keys, false).await?.0)
    }

    /// Returns the existing, readable comments among some without duplicates, in the given order. If
    /// partial results are allowed and the archive is unavailable, also those that may be in it, instead
    /// of an error.
    ///
    /// One round trip to each partition, sent together, if all are in Redis; otherwise two or three more,
    /// then two to the archive if their posts may be there.
    pub(crate) async fn batch_comments(
        &self,
        keys: &[(PostId, CommentId)],
        allow_partial: bool,
    ) -> Result<(Vec<Comment>, Vec<(PostId, CommentId)>), Error> {
        let comments = self.store.comments(keys).await?;
        if comments.len() == keys.len() {
            return Ok((comments, Vec::new()));
        }
        let by_key = |comment: Comment| ((comment.post, comment.id), comment);
        let mut found: HashMap<_, _> = comments.into_iter().map(by_key).collect();
        let missing: Vec<_> = keys.iter().copied().filter(|key| !found.contains_key(key)).collect();
        // A post is evicted with its comments.
        let posts = posts_of(&missing);
        let exist = self.store.exist(&posts).await?;
        let in_redis = posts.iter().zip(exist).filter(|(_, exists)| *exists);
        let in_redis: IdSet<_> = in_redis.map(|(&post, _)| post).collect();
        let (missing, absent): (Vec<_>, Vec<_>) =
            missing.into_iter().partition(|(post, _)| in_redis.contains(post));
        // A restore may have happened in between.
        found.extend(self.store.comments(&missing).await?.into_iter().map(by_key));
        let mut unavailable = Vec::new();
        let old = self.old(&posts_of(&absent)).await?;
        match self.archived_comments(&absent, &old).await {
            Ok(archived) => found.extend(archived.into_iter().map(by_key)),
            Err(error) if allow_partial && error.is_outage() => {
                unavailable = absent.into_iter().filter(|(post, _)| old.contains(post)).collect();
            }
            Err(error) => return Err(error),
        }
        Ok((keys.iter().filter_map(|key| found.remove(key)).collect(), unavailable))
    }

    // Returns the archived comments among some, on those of some posts that the archive has.
    async fn archived_comments(
        &self,
        keys: &[(PostId, CommentId)],
        posts: &[PostId],
    ) -> Result<Vec<Comment>, Error> {
        let posts = self.read_archive(posts, None).await?;
        let keys = keys.iter().copied().filter(|(post, _)| posts.contains_key(post));
        let keys: Vec<_> = keys.collect();
        match &keys[..] {
            [] => Ok(Vec::new()),
            keys => Ok(self.archive()?.comments(keys).await?),
        }
    }

    /// Returns a page of an account's archived comments on any posts, newest first.
    pub async fn comments_by(
        &self,
        author: UserId,
        after: Option<Entry>,
        count: usize,
    ) -> Result<(Page, Vec<Comment>), Error> {
        let below = after.and_then(|entry| CommentId::new(entry.member));
        let mut comments = self.archive()?.comments_by(author, below, count + 1).await?;
        let more = comments.len() > count;
        comments.truncate(count);
        let entry = |comment: &Comment| Entry { member: comment.id.get(), score: comment.id.get() };
        Ok((Page { entries: comments.iter().map(entry).collect(), more }, comments))
    }

    /// Returns a page of an author's posts, newest first, across both tiers. While the archive is
    /// unavailable, the page ends early, with more to follow.
    pub async fn posts_of(
        &self,
        author: UserId,
        after: Option<Entry>,
        count: usize,
    ) -> Result<Page, Error> {
        let mut page = self.store.posts_of(author, after, count).await?;
        if page.entries.last().is_none_or(|last| last.member != ARCHIVE_MARKER) {
            return Ok(page);
        }
        page.entries.pop();
        let below = page.entries.last().or(after.as_ref()).map(|entry| entry.member);
        let (below, missing) = (below.and_then(PostId::new), count - page.entries.len());
        match self.older(&[author], below, None, missing).await {
            Ok(older) => {
                let entry = |id: PostId| Entry { member: id.get(), score: id.get() };
                page.entries.extend(older.ids.into_iter().map(entry));
                page.more = older.next.is_some();
            }
            Err(error) if error.is_outage() && !page.entries.is_empty() => page.more = true,
            Err(error) => return Err(error),
        }
        Ok(page)
    }

    /// Returns up to `count` newest posts of some authors, merged, newest first, between two
    /// cursors. Fewer only at the end, or where the archive is unavailable.
    pub async fn newest_of(
        &self,
        authors: &[UserId],
        before: Option<PostId>,
        after: Option<PostId>,
        count: usize,
    ) -> Result<PostPage, Error> {
        let newest = self.store.newest_of_each(authors, before, count + 1).await?;
        let is_wanted = |id: PostId| after.is_none_or(|after| id > after);
        // Archived posts that are off the list are older than all posts on it.
        let may_be_older =
            |newest: &[u64]| newest.iter().copied().filter_map(PostId::new).all(is_wanted);
        let of_both = authors
            .iter()
            .zip(&newest)
            .filter(|(_, newest)| newest.last() == Some(&ARCHIVE_MARKER) && may_be_older(newest));
        // The lowest id above which all of these authors' posts are in Redis.
        let mut known = None;
        let mut both: Vec<UserId> = Vec::new();
        for (&author, newest) in of_both {
            let oldest = newest.iter().rev().find_map(|&id| PostId::new(id));
            known = known.max(Some(oldest.map_or(Stamp::END, PostId::get)));
            both.push(author);
        }
        let mut ids: Vec<_> = newest.into_iter().flatten().filter_map(PostId::new).collect();
        let mut cut = None;
        if !both.is_empty() {
            match self.older(&both, before, after, count + 1).await {
                // Posts that are in both tiers are deduplicated.
                Ok(older) => {
                    ids.extend(older.ids);
                    cut = older.next;
                }
                Err(error) if error.is_outage() => {
                    cut = known.and_then(PostId::new).filter(|known| ids.contains(known));
                    if cut.is_none() {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids.dedup();
        ids.retain(|&id| is_wanted(id) && cut.is_none_or(|cut| id >= cut));
        let cut = cut.filter(|&cut| is_wanted(cut));
        let has_more = ids.len() > count || cut.is_some();
        ids.truncate(count);
        let next = ids.last().copied().or(cut).filter(|_| has_more);
        Ok(PostPage { ids, next })
    }

    // Returns the newest archived posts of some authors; fewer than `count` only at the end.
    async fn older(
        &self,
        authors: &[UserId],
        mut before: Option<PostId>,
        after: Option<PostId>,
        count: usize,
    ) -> Result<PostPage, Error> {
        let archive = self.archive()?;
        let (mut ids, mut size) = (Vec::with_capacity(count), count);
        loop {
            let wanted = count - ids.len();
            let found = archive.newest_of(authors, before, after, size + 1).await?;
            let has_more = found.len() > size;
            let found = &found[..found.len().min(size)];
            let deleted = self.store.have_tombstones(found).await?;
            let live = found.iter().zip(deleted).filter(|(_, deleted)| !deleted).map(|(&id, _)| id);
            let live: Vec<_> = live.collect();
            before = found.last().copied().or(before);
            ids.extend(live.iter().take(wanted));
            if live.len() > wanted {
                return Ok(PostPage { next: ids.last().copied(), ids });
            }
            if !has_more || ids.len() == count {
                return Ok(PostPage { ids, next: before.filter(|_| has_more) });
            }
            // Many of these posts have deletions that are not recorded yet.
            size = DELETED_PAGE;
        }
    }
}

/// Returns the posts of comments, each once.
fn posts_of(comments: &[(PostId, CommentId)]) -> Vec<PostId> {
    let posts: IdSet<_> = comments.iter().map(|(post, _)| *post).collect();
    posts.into_iter().collect()
}
