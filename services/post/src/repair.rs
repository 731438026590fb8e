//! Repairs the violations that [`verify`](crate::verify) finds in posts that are in Redis.
//!
//! May run during writes: each step reads the current state again, and each change is an atomic
//! function that compares first, or is idempotent and commutative like those of the sweeper. Not
//! repaired: unreadable posts, which a later version may read; violations in the archive; and posts
//! that the timeline service rejects.

use microblog_domain::{CommentId, Partition, PostId, Repairs, UserId};
use microblog_keyspace::Order;

use crate::{
    error::Error,
    evictor,
    post::{Backlink, BacklinkUpdate, Post},
    posts::Posts,
    store::{List, PostCount, post_ids},
    tiered_store::TieredStore,
};

const PAGE: usize = 500;

/// The most pages of a backlog that one repair processes, since new entries arrive meanwhile.
const ROUNDS_MAX: usize = 1_000;

/// Repairs posts.
#[derive(Clone)]
pub struct Repair {
    tiered: TieredStore,
    posts: Posts,
}

impl Repair {
    /// Returns the repairs of a tiered store.
    pub fn new(tiered: TieredStore, posts: Posts) -> Self {
        Self { tiered, posts }
    }

    /// Completes the pending reposts and the deliveries of a partition.
    pub(crate) async fn repair_backlogs(&self, partition: Partition) -> Result<Repairs, Error> {
        let mut repairs = Repairs::default();
        let store = self.tiered.store();
        for member in store.discard_malformed(partition).await? {
            repairs.add(format!("partition {partition}: malformed entry {member:?} is removed"));
        }
        for _ in 0..ROUNDS_MAX {
            let page =
                store.pending_reposts(&[(partition, 0)]).await?.into_iter().flatten().flatten();
            let pending: Vec<_> = page.collect();
            let updates = self.posts.current_updates(&pending).await?;
            if updates.is_empty() {
                break;
            }
            self.posts.complete(&updates).await?;
            for Backlink { repost, target } in updates.iter().map(|update| update.backlink) {
                repairs.add(format!("{target} is notified of its repost {repost}"));
            }
        }
        self.deliver_outbox(partition, &mut repairs).await?;
        Ok(repairs)
    }

    async fn deliver_outbox(
        &self,
        partition: Partition,
        repairs: &mut Repairs,
    ) -> Result<(), Error> {
        let mut ids = self.undelivered(partition).await?;
        for _ in 0..ROUNDS_MAX {
            if ids.is_empty() {
                break;
            }
            let exist = self.tiered.exist(&ids).await?;
            let is_gone = |(_, exists): &(&PostId, bool)| !exists;
            let gone: Vec<_> = ids.iter().zip(exist).filter(is_gone).map(|(&id, _)| id).collect();
            self.tiered.store().delivered(&gone).await?;
            if let Err(error) = self.posts.deliver(&ids).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "delivery failed during a repair");
                break;
            }
            let left = self.undelivered(partition).await?;
            for id in ids.iter().filter(|id| !left.contains(id)) {
                repairs.add(format!("{id} is delivered or deleted"));
            }
            // Unreadable posts stay.
            if left == ids {
                break;
            }
            ids = left;
        }
        Ok(())
    }

    // Returns the first page of a partition's delivery outbox.
    async fn undelivered(&self, partition: Partition) -> Result<Vec<PostId>, Error> {
        let pages = self.tiered.store().undelivered(&[(partition, 0)]).await?;
        Ok(pages.into_iter().flatten().flatten().map(|(id, _)| id).collect())
    }

    /// Repairs one author's posts.
    pub(crate) async fn repair_author(&self, author: UserId) -> Result<Repairs, Error> {
        let mut repairs = Repairs::default();
        let (mut after, mut listed) = (None, 0);
        loop {
            let page = self.tiered.posts_of(author, after, PAGE).await?;
            let ids = post_ids(&page.entries);
            listed += ids.len() as u64;
            let found = self.tiered.posts(&ids, None).await?;
            let is_not = |post: &Option<Post>| {
                post.as_ref().is_none_or(|post| post.content.author != author)
            };
            let foreign = ids.iter().zip(&found).filter(|(_, post)| is_not(post));
            let foreign: Vec<PostId> = foreign.map(|(&id, _)| id).collect();
            self.unlist_foreign(author, &foreign, &mut repairs).await?;
            let posts: Vec<Post> = found.into_iter().flatten().collect();
            let ids: Vec<PostId> = posts.iter().map(|post| post.id).collect();
            let list_lengths = self.tiered.store().list_lengths(&ids).await?;
            for (post, list_lengths) in posts.iter().zip(list_lengths) {
                if list_lengths.comment_bodies != list_lengths.counts.comments {
                    self.repair_comment_bodies(post.id, &mut repairs).await?;
                }
                if list_lengths.counts.reposts > 0 {
                    self.repair_reposts(post.id, &mut repairs).await?;
                }
                self.repair_backlinks(post, &mut repairs).await?;
            }
            let wrong = self.tiered.store().recount(&ids).await?;
            for (id, _) in ids.iter().zip(wrong).filter(|&(_, wrong)| wrong) {
                repairs.add(format!("{id} counts what its lists have"));
            }
            after = page.entries.last().copied();
            if !page.more {
                break;
            }
        }
        self.repair_post_count(author, listed, &mut repairs).await?;
        Ok(repairs)
    }

    // Counts the author's unlisted posts again, if the stored count differs from `listed`, the
    // number of all posts found.
    async fn repair_post_count(
        &self,
        author: UserId,
        listed: u64,
        repairs: &mut Repairs,
    ) -> Result<(), Error> {
        // Without an archive, all posts are listed, and the list's length is the count.
        let Ok(archive) = self.tiered.archive() else { return Ok(()) };
        let post_counts = self.tiered.store().post_counts(&[author]).await?;
        let differs = |count: &PostCount| count.unlisted.is_some() && count.total() != listed;
        if post_counts.iter().any(differs) {
            evictor::count_unlisted(self.tiered.store(), archive, author).await?;
            repairs.add(format!("the posts of {author} are counted again"));
        }
        Ok(())
    }

    // Removes from an author's list entries without a post, with their remaining keys, and posts of
    // other authors.
    async fn unlist_foreign(
        &self,
        author: UserId,
        ids: &[PostId],
        repairs: &mut Repairs,
    ) -> Result<(), Error> {
        let store = self.tiered.store();
        let (exist, contents) = futures::try_join!(store.exist(ids), store.contents(ids))?;
        for ((&id, exists), content) in ids.iter().zip(exist).zip(contents) {
            if exists && content.is_none() {
                continue;
            }
            store.unlist(author, &[id]).await?;
            if !exists {
                store.recount(&[id]).await?;
            }
            repairs.add(format!("{id} is removed from the list of {author}"));
        }
        Ok(())
    }

    // Restores missing bodies of comments from the archive, and deletes comments without a body in
    // either tier.
    async fn repair_comment_bodies(&self, id: PostId, repairs: &mut Repairs) -> Result<(), Error> {
        let store = self.tiered.store();
        let mut after = None;
        loop {
            let page = store.list(List::Comments(Order::Newest), id, after, PAGE).await?;
            let entries = page.entries.iter();
            let comments: Vec<_> =
                entries.filter_map(|entry| CommentId::new(entry.member)).collect();
            let have = store.have_bodies(id, &comments).await?.into_iter();
            let missing = comments.iter().zip(have).filter(|(_, has)| !has);
            let missing: Vec<_> = missing.map(|(&comment, _)| (id, comment)).collect();
            let archived = match self.tiered.archive() {
                Ok(archive) => archive.comments(&missing).await?,
                Err(_) => Vec::new(),
            };
            for (_, comment) in missing {
                let found = archived.iter().find(|archived| archived.id == comment);
                let content = found.map(|found| &found.content);
                if store.repair_comment(id, comment, content).await? {
                    let what = if content.is_some() { "has its body again" } else { "is deleted" };
                    repairs.add(format!("comment {comment} on {id} {what}"));
                }
            }
            after = page.entries.last().copied();
            if !page.more {
                break;
            }
        }
        self.delete_orphaned_bodies(id, repairs).await
    }

    async fn delete_orphaned_bodies(&self, id: PostId, repairs: &mut Repairs) -> Result<(), Error> {
        let mut cursor = 0;
        loop {
            let (next, comments) = self.tiered.store().scan_comment_bodies(id, cursor).await?;
            for comment in comments {
                if self.tiered.store().repair_comment(id, comment, None).await? {
                    repairs.add(format!("comment {comment} on {id}: its orphaned body is deleted"));
                }
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    // Removes from a post's list of reposts what does not repost it.
    async fn repair_reposts(&self, target: PostId, repairs: &mut Repairs) -> Result<(), Error> {
        let store = self.tiered.store();
        let mut after = None;
        loop {
            let page = store.list(List::Reposts, target, after, PAGE).await?;
            let ids = post_ids(&page.entries);
            let found = self.tiered.posts(&ids, None).await?;
            for ((&repost, found), exists) in ids.iter().zip(found).zip(store.exist(&ids).await?) {
                let repeats = match found {
                    Some(found) => found.content.counted_by().any(|counted| counted == target),
                    None => exists,
                };
                if !repeats {
                    let backlink = Backlink { repost, target };
                    store.notify(&[BacklinkUpdate { backlink, version: 0, exists: false }]).await?;
                    repairs.add(format!("{repost} is removed from the reposts of {target}"));
                }
            }
            after = page.entries.last().copied();
            if !page.more {
                return Ok(());
            }
        }
    }

    // Adds a repost to the lists of the existing posts that count it.
    async fn repair_backlinks(&self, repost: &Post, repairs: &mut Repairs) -> Result<(), Error> {
        let pairs: Vec<_> = repost.content.counted_by().map(|target| (repost.id, target)).collect();
        let targets: Vec<PostId> = pairs.iter().map(|&(_, target)| target).collect();
        let (listed, exist) =
            futures::try_join!(self.tiered.are_listed(&pairs), self.tiered.exist(&targets))?;
        for ((&target, is_listed), exists) in targets.iter().zip(listed).zip(exist) {
            let backlink = Backlink { repost: repost.id, target };
            if is_listed && !exists {
                self.tiered.store().recount(&[target]).await?;
            } else if exists && !is_listed && self.tiered.restore(target).await? {
                self.tiered.store().relist(backlink).await?;
                // If it was deleted meanwhile, its target may have been notified before.
                if self.tiered.exist(&[repost.id]).await? != [true] {
                    let end = BacklinkUpdate { backlink, version: 0, exists: false };
                    self.tiered.store().notify(&[end]).await?;
                }
            } else {
                continue;
            }
            repairs.add(format!("{target}: its entry of repost {} is corrected", repost.id));
        }
        Ok(())
    }
}
