//! Mends what [`verify`](crate::verify) finds wrong of posts that are in Redis.
//!
//! May run while writes are under way: each step reads again what it mends, and each change is an
//! atomic function that compares, or may be repeated and reordered like those of the sweeper. Left as
//! they are: posts that cannot be read, since a later version may read them; what is wrong with a post
//! that is in the archive; and what the timeline service does not take.

use microblog_domain::{CommentId, Partition, PostId, Repairs, UserId};
use microblog_keyspace::Order;

use crate::{
    backlink::{Backlink, Change},
    error::Error,
    mover,
    post::Post,
    posts::Posts,
    store::{Length, List, post_ids},
    tiers::Tiers,
};

const PAGE: usize = 500;

/// How often what waits is taken up, of which more comes in meanwhile.
const ROUNDS_MAX: usize = 1_000;

/// Mends posts.
#[derive(Clone)]
pub struct Repair {
    tiers: Tiers,
    posts: Posts,
}

impl Repair {
    /// Returns the means to mend what is in Redis.
    pub fn new(tiers: Tiers, posts: Posts) -> Self {
        Self { tiers, posts }
    }

    /// Tells and delivers what waits in a partition.
    pub(crate) async fn unfinished(&self, partition: Partition) -> Result<Repairs, Error> {
        let mut repairs = Repairs::default();
        let store = self.tiers.store();
        for member in store.discard_unreadable(partition).await? {
            repairs.add(format!("partition {partition}: {member:?} waits no more"));
        }
        for _ in 0..ROUNDS_MAX {
            let page = store.waiting(&[(partition, 0)]).await?.into_iter().flatten().flatten();
            let waiting: Vec<_> = page.collect();
            let reposts: Vec<_> = waiting.iter().map(|(backlink, _)| backlink.repost).collect();
            let exist = self.tiers.exist(&reposts).await?;
            let change = |(&(backlink, version), exists): (&(Backlink, u64), bool)| Change {
                backlink,
                version,
                exists,
            };
            let changes: Vec<Change> = waiting.iter().zip(exist).map(change).collect();
            if changes.is_empty() {
                break;
            }
            self.posts.complete(&changes).await?;
            for Backlink { repost, target } in changes.iter().map(|change| change.backlink) {
                repairs.add(format!("{target} is told of its repost {repost}"));
            }
        }
        self.deliver(partition, &mut repairs).await?;
        Ok(repairs)
    }

    async fn deliver(&self, partition: Partition, repairs: &mut Repairs) -> Result<(), Error> {
        let store = self.tiers.store();
        for _ in 0..ROUNDS_MAX {
            let page = store.undelivered(&[(partition, 0)]).await?.into_iter().flatten().flatten();
            let ids: Vec<PostId> = page.collect();
            if ids.is_empty() {
                break;
            }
            let exist = self.tiers.exist(&ids).await?;
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
            let page = self.tiers.posts_of(author, after, PAGE).await?;
            let ids = post_ids(&page.entries);
            listed += ids.len() as u64;
            let found = self.tiers.posts(&ids, None).await?;
            let is_not = |post: &Option<Post>| {
                post.as_ref().is_none_or(|post| post.content.author != author)
            };
            let strange = ids.iter().zip(&found).filter(|(_, post)| is_not(post));
            let strange: Vec<PostId> = strange.map(|(&id, _)| id).collect();
            self.unlist(author, &strange, &mut repairs).await?;
            let posts: Vec<Post> = found.into_iter().flatten().collect();
            let ids: Vec<PostId> = posts.iter().map(|post| post.id).collect();
            let gathered = self.tiers.store().gathered(&ids).await?;
            for (post, gathered) in posts.iter().zip(gathered) {
                if gathered.comment_bodies != gathered.counts.comments {
                    self.contents(post.id, &mut repairs).await?;
                }
                if gathered.counts.reposts > 0 {
                    self.reposts(post.id, &mut repairs).await?;
                }
                self.listed(post, &mut repairs).await?;
            }
            let wrong = self.tiers.store().recount(&ids).await?;
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
        let Ok(archive) = self.tiers.archive() else { return Ok(()) };
        let lengths = self.tiers.store().lengths(&[author]).await?;
        let differs = |length: &Length| length.unlisted.is_some() && length.total() != listed;
        if lengths.iter().any(differs) {
            mover::count_unlisted(self.tiers.store(), archive, author).await?;
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
        let store = self.tiers.store();
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
    async fn contents(&self, id: PostId, repairs: &mut Repairs) -> Result<(), Error> {
        let store = self.tiers.store();
        let mut after = None;
        loop {
            let page = store.list(List::Comments(Order::Newest), id, after, PAGE).await?;
            let entries = page.entries.iter();
            let comments: Vec<_> =
                entries.filter_map(|entry| CommentId::new(entry.member)).collect();
            let have = store.have_contents(id, &comments).await?.into_iter();
            let missing = comments.iter().zip(have).filter(|(_, has)| !has);
            let missing: Vec<CommentId> = missing.map(|(&comment, _)| comment).collect();
            let archived = match self.tiers.archive() {
                Ok(archive) => archive.comments(id, &missing).await?,
                Err(_) => Vec::new(),
            };
            for comment in missing {
                let found = archived.iter().find(|archived| archived.id == comment);
                let content = found.map(|found| &found.content);
                if store.mend_comment(id, comment, content).await? {
                    let what = if content.is_some() { "has its content" } else { "is ended" };
                    repairs.add(format!("comment {comment} on {id} {what}"));
                }
            }
            after = page.entries.last().copied();
            if !page.more {
                break;
            }
        }
        self.contents_without_comments(id, repairs).await
    }

    async fn contents_without_comments(
        &self,
        id: PostId,
        repairs: &mut Repairs,
    ) -> Result<(), Error> {
        let mut cursor = 0;
        loop {
            let (next, comments) = self.tiers.store().contents_of_comments(id, cursor).await?;
            for comment in comments {
                if self.tiers.store().mend_comment(id, comment, None).await? {
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
        let store = self.tiers.store();
        let mut after = None;
        loop {
            let page = store.list(List::Reposts, target, after, PAGE).await?;
            let ids = post_ids(&page.entries);
            let found = self.tiers.posts(&ids, None).await?;
            for ((&repost, found), exists) in ids.iter().zip(found).zip(store.exist(&ids).await?) {
                let repeats = match found {
                    Some(found) => found.content.counted_by().any(|counted| counted == target),
                    None => exists,
                };
                if !repeats {
                    let backlink = Backlink { repost, target };
                    store.tell(&[Change { backlink, version: 0, exists: false }]).await?;
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
            futures::try_join!(self.tiers.are_listed(&pairs), self.tiers.exist(&targets))?;
        for ((&target, is_listed), exists) in targets.iter().zip(listed).zip(exist) {
            let backlink = Backlink { repost: repost.id, target };
            if is_listed && !exists {
                self.tiers.store().recount(&[target]).await?;
            } else if exists && !is_listed && self.tiers.bring_back(target).await? {
                self.tiers.store().relist(backlink).await?;
                // It may have been deleted meanwhile, which its target was told before.
                if self.tiers.exist(&[repost.id]).await? != [true] {
                    let end = Change { backlink, version: 0, exists: false };
                    self.tiers.store().tell(&[end]).await?;
                }
            } else {
                continue;
            }
            repairs.add(format!("{target} lists its repost {} as far as it exists", repost.id));
        }
        Ok(())
    }
}
