//! Mends what [`verify`](crate::verify) finds wrong of posts that are in Redis.
//!
//! May run while writes are under way: each step reads again what it mends, and each change is an
//! atomic function that compares, or may be repeated and reordered like those of the sweeper. Left as
//! they are: posts that cannot be read, since a later version may read them; what is wrong with a post
//! that is in the archive; and what the timeline service does not take.

use microblog_domain::{CommentId, Partition, PostId, Repairs, UserId};
use microblog_keyspace::Order;

use crate::{
    backlink::{Backlink, BacklinkUpdate},
    error::Error,
    evictor,
    post::Post,
    posts::Posts,
    store::{List, PostCount, post_ids},
    tiered_store::TieredStore,
};

const PAGE: usize = 500;

/// How often what waits is taken up, of which more comes in meanwhile.
const ROUNDS_MAX: usize = 1_000;

/// Mends posts.
#[derive(Clone)]
pub struct Repair {
    tiered: TieredStore,
    posts: Posts,
}

impl Repair {
    /// Returns the means to mend what is in Redis.
    pub fn new(tiered: TieredStore, posts: Posts) -> Self {
        Self { tiered, posts }
    }

    /// Tells and delivers what waits in a partition.
    pub(crate) async fn backlogs(&self, partition: Partition) -> Result<Repairs, Error> {
        let mut repairs = Repairs::default();
        let store = self.tiered.store();
        for member in store.discard_unreadable(partition).await? {
            repairs.add(format!("partition {partition}: {member:?} waits no more"));
        }
        for _ in 0..ROUNDS_MAX {
            let page =
                store.pending_reposts(&[(partition, 0)]).await?.into_iter().flatten().flatten();
            let pending: Vec<_> = page.collect();
            let reposts: Vec<_> = pending.iter().map(|(backlink, _)| backlink.repost).collect();
            let exist = self.tiered.exist(&reposts).await?;
            let update = |(&(backlink, version), exists): (&(Backlink, u64), bool)| {
                BacklinkUpdate { backlink, version, exists }
            };
            let updates: Vec<BacklinkUpdate> = pending.iter().zip(exist).map(update).collect();
            if updates.is_empty() {
                break;
            }
            self.posts.complete(&updates).await?;
            for Backlink { repost, target } in updates.iter().map(|update| update.backlink) {
                repairs.add(format!("{target} is told of its repost {repost}"));
            }
        }
        self.deliver(partition, &mut repairs).await?;
        Ok(repairs)
    }

    async fn deliver(&self, partition: Partition, repairs: &mut Repairs) -> Result<(), Error> {
        let store = self.tiered.store();
        for _ in 0..ROUNDS_MAX {
            let page = store.undelivered(&[(partition, 0)]).await?.into_iter().flatten().flatten();
            let ids: Vec<PostId> = page.collect();
            if ids.is_empty() {
                break;
            }
            let exist = self.tiered.exist(&ids).await?;
            let is_gone = |(_, exists): &(&PostId, bool)| !exists;
            let gone: Vec<_> = ids.iter().zip(exist).filter(is_gone).map(|(&id, _)| id).collect();
            store.delivered(&gone).await?;
            if let Err(error) = self.posts.deliver(&ids).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "a repair cannot deliver posts");
                break;
            }
            ids.iter().for_each(|id| repairs.add(format!("{id} is delivered, or gone")));
        }
        Ok(())
    }

    /// Mends one author's posts.
    pub(crate) async fn author(&self, author: UserId) -> Result<Repairs, Error> {
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
            self.unlist(author, &foreign, &mut repairs).await?;
            let posts: Vec<Post> = found.into_iter().flatten().collect();
            let ids: Vec<PostId> = posts.iter().map(|post| post.id).collect();
            let list_lengths = self.tiered.store().list_lengths(&ids).await?;
            for (post, list_lengths) in posts.iter().zip(list_lengths) {
                if list_lengths.comment_bodies != list_lengths.counts.comments {
                    self.comment_bodies(post.id, &mut repairs).await?;
                }
                if list_lengths.counts.reposts > 0 {
                    self.reposts(post.id, &mut repairs).await?;
                }
                self.listed(post, &mut repairs).await?;
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
        self.count(author, listed, &mut repairs).await?;
        Ok(repairs)
    }

    // Counts again the posts of an author who has so many, where the count differs.
    async fn count(&self, author: UserId, listed: u64, repairs: &mut Repairs) -> Result<(), Error> {
        // Without an archive all posts are on the list, whose length is their number.
        let Ok(archive) = self.tiered.archive() else { return Ok(()) };
        let post_counts = self.tiered.store().post_counts(&[author]).await?;
        let differs = |count: &PostCount| count.unlisted.is_some() && count.total() != listed;
        if post_counts.iter().any(differs) {
            evictor::count_unlisted(self.tiered.store(), archive, author).await?;
            repairs.add(format!("the posts of {author} are counted again"));
        }
        Ok(())
    }

    // Takes off an author's list what is no post, or somebody else's, and what belonged to the former.
    async fn unlist(
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
            repairs.add(format!("{id} is not on the list of {author} any more"));
        }
        Ok(())
    }

    // Gives comments their contents again, from the archive if it has them, and ends those of which
    // nobody has any.
    async fn comment_bodies(&self, id: PostId, repairs: &mut Repairs) -> Result<(), Error> {
        let store = self.tiered.store();
        let mut after = None;
        loop {
            let page = store.list(List::Comments(Order::Newest), id, after, PAGE).await?;
            let entries = page.entries.iter();
            let comments: Vec<_> =
                entries.filter_map(|entry| CommentId::new(entry.member)).collect();
            let have = store.have_bodies(id, &comments).await?.into_iter();
            let missing = comments.iter().zip(have).filter(|(_, has)| !has);
            let missing: Vec<CommentId> = missing.map(|(&comment, _)| comment).collect();
            let archived = match self.tiered.archive() {
                Ok(archive) => archive.comments(id, &missing).await?,
                Err(_) => Vec::new(),
            };
            for comment in missing {
                let found = archived.iter().find(|archived| archived.id == comment);
                let content = found.map(|found| &found.content);
                if store.repair_comment(id, comment, content).await? {
                    let what = if content.is_some() { "has its content" } else { "is ended" };
                    repairs.add(format!("comment {comment} on {id} {what}"));
                }
            }
            after = page.entries.last().copied();
            if !page.more {
                break;
            }
        }
        self.orphaned_bodies(id, repairs).await
    }

    async fn orphaned_bodies(&self, id: PostId, repairs: &mut Repairs) -> Result<(), Error> {
        let mut cursor = 0;
        loop {
            let (next, comments) = self.tiered.store().scan_comment_bodies(id, cursor).await?;
            for comment in comments {
                if self.tiered.store().repair_comment(id, comment, None).await? {
                    repairs.add(format!("comment {comment} on {id}: no content is left"));
                }
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    // Takes off a post's list of reposts what does not repeat it.
    async fn reposts(&self, target: PostId, repairs: &mut Repairs) -> Result<(), Error> {
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
                    repairs.add(format!("{repost} is not among the reposts of {target} any more"));
                }
            }
            after = page.entries.last().copied();
            if !page.more {
                return Ok(());
            }
        }
    }

    // Puts a repost on the lists of those posts that count it and exist.
    async fn listed(&self, repost: &Post, repairs: &mut Repairs) -> Result<(), Error> {
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
                // It may have been deleted meanwhile, which its target was told before.
                if self.tiered.exist(&[repost.id]).await? != [true] {
                    let end = BacklinkUpdate { backlink, version: 0, exists: false };
                    self.tiered.store().notify(&[end]).await?;
                }
            } else {
                continue;
            }
            repairs.add(format!("{target} lists its repost {} as far as it exists", repost.id));
        }
        Ok(())
    }
}
