//! Publishing, reposting and deleting posts: a saga that survives a crash at any moment.
//!
//! A post lies in its author's partition. Others learn of it: the timeline service, and for a
//! repost the posts that count it (its root and the reposted post), which lie in partitions of
//! their own. No transaction spans them. The steps:
//!
//! 1. *Write*, one atomic step in the author's partition. It stores the post under its idempotency
//!    key, with an entry in `outbox`, and one in `pending` for each post that counts it. A deletion
//!    removes the whole post, and adds its entries to `pending`.
//! 2. *Notify*, one atomic step in the partition of each post that counts the repost: its list and
//!    count change together. A tombstone keeps a deleted repost from coming back, and a repeated
//!    update changes nothing. In parallel, *deliver*: one call of the timeline service.
//! 3. *Confirm*, in the author's partition: the entries are removed, those of `pending` only if no
//!    newer one of the same repost replaced them.
//!
//! A call answers after step 3, whether or not the delivery succeeded. Only a repeated deletion may
//! find nothing left, and answer before the counting posts are notified. A sweeper of any replica
//! completes stale entries of `pending` and `outbox` from the current state. Steps 2 and 3 may be
//! repeated and reordered in any way; the final state is the same.
//!
//! Invariants, when no call is in flight: a repost is on the list of each existing post that counts
//! it, and on no other; a post's counts are the lengths of its lists; `pending` and `outbox` are
//! empty.

use std::hash::Hash;

use microblog_domain::{IdMap, IdSet, PostId, RequestId, UserId};

use crate::{
    delivery::Delivery,
    error::Error,
    post::{Backlink, BacklinkUpdate, Content, Counts, Origin, Post, Root, WithRoot},
    store::{PostDeletion, Published},
    tiered_store::{ATTEMPTS, TieredStore},
};

/// Publishes, reads and deletes posts.
#[derive(Clone)]
pub struct Posts {
    tiered: TieredStore,
    delivery: Delivery,
}

impl Posts {
    /// Returns the operations on a tiered store, with a delivery for new posts.
    pub fn new(tiered: TieredStore, delivery: Delivery) -> Self {
        Self { tiered, delivery }
    }

    /// Publishes a post, or returns the one that the same request made.
    pub async fn create(
        &self,
        author: UserId,
        request: RequestId,
        text: String,
    ) -> Result<Post, Error> {
        self.publish(Content { author, text, origin: None }, request).await
    }

    /// Publishes a repost, or returns the one that the same request made.
    pub async fn repost(
        &self,
        author: UserId,
        request: RequestId,
        reposted: PostId,
        text: String,
    ) -> Result<WithRoot, Error> {
        // Checked first: a repeated request may name a post that has since been deleted.
        let made = self.tiered.store().post_by_request(author, request);
        let (made, target) = futures::join!(made, self.tiered.post(reposted, None));
        let content = match made? {
            Some(id) => {
                let known = self.tiered.post(id, None).await?.ok_or(Error::PostNotFound)?.content;
                let same = |origin: Origin| origin.reposted == reposted && known.text == text;
                if known.origin.is_some_and(same) {
                    known
                } else {
                    return Err(Error::RequestReused);
                }
            }
            None => {
                let target = target?.ok_or(Error::PostNotFound)?;
                let root = target.content.origin.map_or(reposted, |origin| origin.root);
                if root != reposted && self.tiered.exist(&[root]).await? != [true] {
                    return Err(Error::PostNotFound);
                }
                Content { author, text, origin: Some(Origin { root, reposted }) }
            }
        };
        let post = self.publish(content, request).await?;
        self.with_root(post, Some(author)).await
    }

    async fn publish(&self, content: Content, request: RequestId) -> Result<Post, Error> {
        match self.tiered.store().publish(&content, request).await? {
            Published::New(id) => {
                self.complete_new(id, &content).await?;
                Ok(Post { id, content, counts: Counts::default(), liked: false })
            }
            Published::Existing { id, is_incomplete } => {
                let post = self.tiered.post(id, Some(content.author)).await?;
                let post = post.ok_or(Error::PostNotFound)?;
                if post.content != content {
                    return Err(Error::RequestReused);
                }
                if is_incomplete {
                    self.complete_new(id, &content).await?;
                }
                Ok(post)
            }
            Published::Throttled(wait) => Err(Error::PostsThrottled(wait)),
            Published::AccountDeleted => Err(Error::AccountDeleted),
        }
    }

    // Steps 2 and 3 of a new post.
    async fn complete_new(&self, id: PostId, content: &Content) -> Result<(), Error> {
        let updates = backlink_updates(id, content, id.get(), true);
        let (notified, ()) =
            futures::join!(self.complete(&updates), self.delivery.attempt(id, content));
        notified
    }

    /// Deletes a post on behalf of its author. Does nothing if there is none.
    pub async fn delete(&self, author: UserId, id: PostId) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let in_redis = self.tiered.store().post(id, None).await?;
            let in_archive = in_redis.is_none();
            let post = match in_redis {
                Some(post) => post,
                None => match self.tiered.archived(&[id], None).await?.remove(&id) {
                    Some(post) => post,
                    None => return Ok(self.tiered.store().await_changes(id.partition()).await?),
                },
            };
            if post.content.author != author {
                return Err(Error::NotTheAuthor);
            }
            let deletion = PostDeletion { id, content: &post.content, in_archive };
            if let Some(version) = self.tiered.store().delete(&deletion).await? {
                return self.complete(&backlink_updates(id, &post.content, version, false)).await;
            }
            // Another call deleted it, or it was evicted in between.
        }
        Err(Error::RetriesExhausted)
    }

    /// Deletes the posts on an author's list, and removes dangling entries from it.
    pub(crate) async fn delete_listed(&self, author: UserId, ids: &[PostId]) -> Result<(), Error> {
        let store = self.tiered.store();
        let exist = store.exist(ids).await?;
        let contents = store.contents(ids).await?.into_iter().zip(exist);
        // An unreadable post is deleted, too; the posts that count it are unknown.
        let unreadable = || Content { author, text: String::new(), origin: None };
        let contents: Vec<_> =
            contents.map(|(content, exists)| content.or(exists.then(unreadable))).collect();
        let posts = ids.iter().zip(&contents);
        let there = posts.clone().filter_map(|(&id, content)| Some((id, content.as_ref()?)));
        let mut absent = self.delete_found(there, false).await?;
        absent.extend(posts.filter(|(_, content)| content.is_none()).map(|(&id, _)| id));
        if !absent.is_empty() {
            store.unlist(author, &absent).await?;
        }
        Ok(())
    }

    /// Deletes posts of an author that the archive has, in either tier.
    pub(crate) async fn delete_archived(
        &self,
        author: UserId,
        ids: &[PostId],
    ) -> Result<(), Error> {
        let contents = self.tiered.contents(ids).await?;
        // An unreadable post is deleted, too; the posts that count it are unknown.
        let unreadable = Content { author, text: String::new(), origin: None };
        let found = ids.iter().zip(&contents);
        let found = found.map(|(&id, content)| (id, content.as_ref().unwrap_or(&unreadable)));
        self.delete_found(found, true).await?;
        Ok(())
    }

    // Deletes posts. Returns those that did not exist.
    async fn delete_found<'a>(
        &self,
        posts: impl Iterator<Item = (PostId, &'a Content)>,
        in_archive: bool,
    ) -> Result<Vec<PostId>, Error> {
        let deletions: Vec<_> =
            posts.map(|(id, content)| PostDeletion { id, content, in_archive }).collect();
        let (mut updates, mut absent) = (Vec::new(), Vec::new());
        let versions = self.tiered.store().delete_all(&deletions).await?;
        for (PostDeletion { id, content, .. }, version) in deletions.iter().zip(versions) {
            match version {
                Some(version) => updates.extend(backlink_updates(*id, content, version, false)),
                None => absent.push(*id),
            }
        }
        self.complete(&updates).await?;
        Ok(absent)
    }

    /// Returns the updates for pending reposts, from the reposts' current state. Leaves out reposts
    /// that may be in the archive while it is unavailable; they stay pending.
    pub(crate) async fn current_updates(
        &self,
        pending: &[(Backlink, u64)],
    ) -> Result<Vec<BacklinkUpdate>, Error> {
        let reposts: Vec<_> = pending.iter().map(|(backlink, _)| backlink.repost).collect();
        let exist = self.tiered.exist_best_effort(&reposts).await?;
        let update = |(&(backlink, version), exists): (&(Backlink, u64), Option<bool>)| {
            exists.map(|exists| BacklinkUpdate { backlink, version, exists })
        };
        Ok(pending.iter().zip(exist).filter_map(update).collect())
    }

    /// Executes steps 2 and 3 for reposts that were published or deleted. A failure of one does not
    /// stop the others; returns the first failure.
    pub async fn complete(&self, updates: &[BacklinkUpdate]) -> Result<(), Error> {
        if updates.is_empty() {
            return Ok(());
        }
        let notified = self.tiered.store().notify(updates).await?;
        let mut done = Vec::with_capacity(updates.len());
        let mut outcome = Ok(());
        for (update, is_notified) in updates.iter().zip(notified) {
            let notified = if is_notified { Ok(()) } else { self.notify_archived(update).await };
            match notified {
                Ok(()) => done.push(*update),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        if !done.is_empty() {
            self.tiered.store().confirm(&done).await?;
        }
        outcome
    }

    /// Delivers posts of the outbox to the timeline service.
    pub(crate) async fn deliver(&self, ids: &[PostId]) -> Result<(), Error> {
        self.delivery.deliver(ids).await
    }

    // Notifies a post that is not in Redis: restores it first. Succeeds if there is no such post.
    async fn notify_archived(&self, update: &BacklinkUpdate) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let restored = self.tiered.restore(update.backlink.target).await;
            // STORE_FULL would mean that the repost was not stored, or not deleted.
            let is_restored = restored.map_err(|error| match error {
                Error::Store(full) if full.is_full() => Error::NotNotified(full),
                error => error,
            })?;
            if !is_restored || self.tiered.store().notify(&[*update]).await? == [true] {
                return Ok(());
            }
        }
        Err(Error::RetriesExhausted)
    }

    /// Returns a post with its root.
    pub async fn get(&self, id: PostId, viewer: Option<UserId>) -> Result<WithRoot, Error> {
        let post = self.tiered.post(id, viewer).await?.ok_or(Error::PostNotFound)?;
        self.with_root(post, viewer).await
    }

    /// Returns the existing posts among some, deduplicated, in the given order, with their roots.
    /// Roots that are not among them cost a second round trip.
    pub async fn batch(
        &self,
        ids: &[PostId],
        viewer: Option<UserId>,
    ) -> Result<Vec<WithRoot>, Error> {
        let ids = deduplicated(ids);
        let posts = self.tiered.posts(&ids, viewer).await?.into_iter().flatten().collect();
        self.with_roots(posts, viewer).await
    }

    /// Returns posts as [`Self::batch`] does. If the archive is unavailable, also the ids of those that may
    /// be in it, instead of an error.
    pub async fn batch_best_effort(
        &self,
        ids: &[PostId],
        viewer: Option<UserId>,
    ) -> Result<(Vec<WithRoot>, Vec<PostId>), Error> {
        let ids = deduplicated(ids);
        let (mut found, unknown) = self.tiered.posts_best_effort(&ids, viewer).await?;
        let posts = ids.iter().filter_map(|id| found.remove(id)).collect();
        let unavailable = ids.iter().copied().filter(|id| unknown.contains(id)).collect();
        Ok((self.with_roots(posts, viewer).await?, unavailable))
    }

    /// Returns the posts that an account likes among some, deduplicated, in the given order.
    pub async fn liked(&self, user: UserId, ids: &[PostId]) -> Result<Vec<PostId>, Error> {
        let ids = deduplicated(ids);
        let liked = self.tiered.liked(user, &ids).await?;
        Ok(ids.into_iter().zip(liked).filter_map(|(id, liked)| liked.then_some(id)).collect())
    }

    /// Returns posts with their roots, and reads the roots that are not among them. If a root is in
    /// the archive and that is unavailable, its reposts are returned all the same.
    pub(crate) async fn with_roots(
        &self,
        posts: Vec<Post>,
        viewer: Option<UserId>,
    ) -> Result<Vec<WithRoot>, Error> {
        if posts.iter().all(|post| post.content.origin.is_none()) {
            return Ok(posts.into_iter().map(|post| WithRoot { post, root: Root::None }).collect());
        }
        let root_of = |post: &Post| post.content.origin.map(|origin| origin.root);
        let present: IdSet<_> = posts.iter().map(|post| post.id).collect();
        let missing: IdSet<_> =
            posts.iter().filter_map(root_of).filter(|root| !present.contains(root)).collect();
        let missing: Vec<_> = missing.into_iter().collect();
        let (read, unread) = match &missing[..] {
            [] => (IdMap::default(), IdSet::default()),
            missing => self.tiered.posts_best_effort(missing, viewer).await?,
        };
        let wanted: IdSet<_> = posts.iter().filter_map(root_of).collect();
        let among = posts.iter().filter(|post| wanted.contains(&post.id)).cloned();
        let mut roots: IdMap<PostId, Post> = among.map(|root| (root.id, root)).collect();
        roots.extend(read);
        let with_root = |post: Post| {
            let root = match root_of(&post) {
                None => Root::None,
                Some(root) if unread.contains(&root) => Root::Unknown,
                Some(root) => roots.get(&root).cloned().map_or(Root::Deleted, Root::Post),
            };
            WithRoot { post, root }
        };
        Ok(posts.into_iter().map(with_root).collect())
    }

    async fn with_root(&self, post: Post, viewer: Option<UserId>) -> Result<WithRoot, Error> {
        let mut posts = self.with_roots(vec![post], viewer).await?;
        posts.pop().ok_or(Error::PostNotFound)
    }
}

/// Returns ids without duplicates, in the given order.
pub(crate) fn deduplicated<T: Copy + Ord + Hash>(ids: &[T]) -> Vec<T> {
    // Timelines are sorted, and have no duplicates.
    if ids.is_sorted_by(|one, next| one > next) {
        return ids.to_vec();
    }
    let mut seen = IdSet::default();
    ids.iter().copied().filter(|&id| seen.insert(id)).collect()
}

// Returns the updates for the posts that count a repost.
fn backlink_updates(
    repost: PostId,
    content: &Content,
    version: u64,
    exists: bool,
) -> Vec<BacklinkUpdate> {
    let update = |target| BacklinkUpdate { backlink: Backlink { repost, target }, version, exists };
    content.counted_by().map(update).collect()
}
