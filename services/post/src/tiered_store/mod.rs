//! The two tiers in which posts are: Redis, or else the archive.
//!
//! Redis is asked first, and what is there is true. A post that is not there may have been evicted,
//! but then it is not newer than its partition's horizon, and nothing waits that says that it ended.
//! Such a post is asked for in the archive: its row stays as it was when it left Redis until it
//! comes back. So whatever is evicted, comes back or ends meanwhile, an answer is one that was right
//! at some moment of the call.

mod author_posts;
mod lists;
mod restore;

pub use author_posts::PostPage;

use std::time::Duration;

use microblog_domain::{IdMap, IdSet, PostId, UserId};
use moka::sync::Cache;

use crate::{
    archive::{self, Archive},
    error::Error,
    post::{Content, ListLengths, Post},
    store::Store,
};

/// How often a post is looked for that is on its way from one tier to the other.
pub(crate) const ATTEMPTS: usize = 5;

/// How many posts are remembered of which the archive knows nothing, and for how long. They are
/// older than the horizon, so they will not come to be.
const ABSENT_MAX: u64 = 100_000;
const ABSENT_TTL: Duration = Duration::from_secs(30);

/// Posts and what belongs to them, wherever they are.
#[derive(Clone)]
pub struct TieredStore {
    store: Store,
    archive: Option<Archive>,
    absent: Cache<PostId, ()>,
    warm_window: Duration,
}

impl TieredStore {
    /// Returns what is in a store, and in the archive if there is one. What is brought back from
    /// there stays for so long at least.
    pub fn new(store: Store, archive: Option<Archive>, warm_window: Duration) -> Self {
        let absent = Cache::builder().max_capacity(ABSENT_MAX).time_to_live(ABSENT_TTL).build();
        Self { store, archive, absent, warm_window }
    }

    /// Returns what is in Redis.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the archive, which there must be.
    pub(crate) fn archive(&self) -> Result<&Archive, Error> {
        self.archive.as_ref().ok_or(Error::Archive(archive::Error::Missing))
    }

    /// Returns posts as a viewer sees them, in the order asked for; `None` where there is none, or
    /// none that can be read. One round trip to each partition, all sent together, where all are in
    /// Redis; otherwise one more, and then one or two to the archive.
    pub async fn posts(
        &self,
        ids: &[PostId],
        viewer: Option<UserId>,
    ) -> Result<Vec<Option<Post>>, Error> {
        let mut posts = self.store.posts(ids, viewer).await?;
        let missing: Vec<_> =
            ids.iter().zip(&posts).filter(|(_, post)| post.is_none()).map(|(&id, _)| id).collect();
        if !missing.is_empty() {
            let found = self.archived(&missing, viewer).await?;
            let absent = ids.iter().zip(&mut posts).filter(|(_, post)| post.is_none());
            absent.for_each(|(id, post)| *post = found.get(id).cloned());
        }
        Ok(posts)
    }

    /// Returns those of some posts that exist, as a viewer sees them, and those of which nobody can
    /// tell now: the archive may have them, and does not answer.
    pub(crate) async fn posts_best_effort(
        &self,
        ids: &[PostId],
        viewer: Option<UserId>,
    ) -> Result<(IdMap<PostId, Post>, IdSet<PostId>), Error> {
        let posts = self.store.posts(ids, viewer).await?;
        let mut found: IdMap<_, _> =
            posts.into_iter().flatten().map(|post| (post.id, post)).collect();
        let missing: Vec<_> = ids.iter().copied().filter(|id| !found.contains_key(id)).collect();
        if missing.is_empty() {
            return Ok((found, IdSet::default()));
        }
        let (archived, unknown) = self.archived_best_effort(&missing, viewer).await?;
        found.extend(archived);
        Ok((found, unknown))
    }

    /// Returns which posts exist, in the order asked for; `None` where nobody can tell now.
    pub(crate) async fn exist_best_effort(
        &self,
        ids: &[PostId],
    ) -> Result<Vec<Option<bool>>, Error> {
        let exist = self.store.exist(ids).await?;
        let missing = ids.iter().zip(&exist).filter(|(_, exists)| !**exists);
        let missing: Vec<_> = missing.map(|(&id, _)| id).collect();
        if missing.is_empty() {
            return Ok(exist.into_iter().map(Some).collect());
        }
        let (found, unknown) = self.archived_best_effort(&missing, None).await?;
        let exists = |(id, in_redis): (&PostId, bool)| {
            (!unknown.contains(id)).then_some(in_redis || found.contains_key(id))
        };
        Ok(ids.iter().zip(exist).map(exists).collect())
    }

    async fn archived_best_effort(
        &self,
        missing: &[PostId],
        viewer: Option<UserId>,
    ) -> Result<(IdMap<PostId, Post>, IdSet<PostId>), Error> {
        let old = self.old(missing).await?;
        match self.read_archive(&old, viewer).await {
            Ok(archived) => Ok((archived, IdSet::default())),
            Err(Error::Archive(error)) if error.is_unavailable() => {
                Ok((IdMap::default(), old.into_iter().collect()))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns one post as a viewer sees it.
    pub async fn post(&self, id: PostId, viewer: Option<UserId>) -> Result<Option<Post>, Error> {
        Ok(self.posts(&[id], viewer).await?.pop().flatten())
    }

    /// Returns what posts say, in the order asked for.
    pub async fn contents(&self, ids: &[PostId]) -> Result<Vec<Option<Content>>, Error> {
        let posts = self.posts(ids, None).await?;
        Ok(posts.into_iter().map(|post| post.map(|post| post.content)).collect())
    }

    /// Returns which posts exist, in the order asked for.
    pub async fn exist(&self, ids: &[PostId]) -> Result<Vec<bool>, Error> {
        let mut exist = self.store.exist(ids).await?;
        let missing: Vec<_> =
            ids.iter().zip(&exist).filter(|(_, exists)| !**exists).map(|(&id, _)| id).collect();
        if !missing.is_empty() {
            let found = self.archived(&missing, None).await?;
            let absent = ids.iter().zip(&mut exist).filter(|(_, exists)| !**exists);
            absent.for_each(|(id, exists)| *exists = found.contains_key(id));
        }
        Ok(exist)
    }

    /// Returns which posts an account likes, in the order asked for. One round trip to each
    /// partition, all sent together, where all are newer than what was ever evicted.
    pub async fn liked(&self, user: UserId, ids: &[PostId]) -> Result<Vec<bool>, Error> {
        let in_redis = self.store.liked_in_redis(user, ids).await?;
        let unsure = ids.iter().zip(&in_redis).filter(|(_, liked)| liked.is_none());
        let unsure: Vec<_> = unsure.map(|(&id, _)| id).collect();
        let mut archived_likes = IdSet::default();
        if !unsure.is_empty() {
            // It may have come back since: whether it is here and liked is read at one moment.
            let in_redis = self.store.posts(&unsure, Some(user)).await?;
            archived_likes
                .extend(in_redis.iter().flatten().filter(|post| post.liked).map(|post| post.id));
            let archived_ids =
                unsure.into_iter().zip(in_redis).filter(|(_, in_redis)| in_redis.is_none());
            let archived_ids: Vec<_> = archived_ids.map(|(id, _)| id).collect();
            let found = self.archived(&archived_ids, Some(user)).await?;
            archived_likes
                .extend(found.into_values().filter(|post| post.liked).map(|post| post.id));
        }
        let liked = |(id, in_redis): (&PostId, Option<bool>)| {
            in_redis.unwrap_or(archived_likes.contains(id))
        };
        Ok(ids.iter().zip(in_redis).map(liked).collect())
    }

    /// Returns how many like a post that is not in Redis, but in the archive, and since when an
    /// account does, if it does; `None` where there is no such post.
    pub(crate) async fn archived_like(
        &self,
        user: UserId,
        id: PostId,
    ) -> Result<Option<(u64, Option<u64>)>, Error> {
        let Some(post) = self.archived(&[id], None).await?.remove(&id) else { return Ok(None) };
        let likes = post.counts.likes;
        let since = match likes {
            0 => None,
            _ => self.archive()?.liked_since(user, id).await?,
        };
        Ok(Some((likes, since)))
    }

    /// Returns those of some posts that are not in Redis, but in the archive.
    pub(crate) async fn archived(
        &self,
        ids: &[PostId],
        viewer: Option<UserId>,
    ) -> Result<IdMap<PostId, Post>, Error> {
        self.read_archive(&self.old(ids).await?, viewer).await
    }

    // Those of some posts that are not in Redis which the archive may have, and is not known not to
    // have.
    async fn old(&self, ids: &[PostId]) -> Result<Vec<PostId>, Error> {
        let may_be = self.store.may_be_archived(ids).await?;
        let is_old = |(id, may_be): &(&PostId, bool)| *may_be && !self.absent.contains_key(*id);
        Ok(ids.iter().zip(may_be).filter(is_old).map(|(&id, _)| id).collect())
    }

    async fn read_archive(
        &self,
        ids: &[PostId],
        viewer: Option<UserId>,
    ) -> Result<IdMap<PostId, Post>, Error> {
        if ids.is_empty() {
            return Ok(IdMap::default());
        }
        let found = self.archive()?.posts(ids, viewer).await?;
        let found: IdMap<_, _> = found.into_iter().map(|post| (post.id, post)).collect();
        for &id in ids.iter().filter(|id| !found.contains_key(id)) {
            self.absent.insert(id, ());
        }
        Ok(found)
    }

    /// Returns for each repost and a post that counts it whether it is on that post's list.
    pub(crate) async fn are_listed(&self, pairs: &[(PostId, PostId)]) -> Result<Vec<bool>, Error> {
        let mut listed = self.store.are_listed(pairs).await?;
        let targets: Vec<_> = pairs.iter().map(|&(_, target)| target).collect();
        let in_redis = self.store.exist(&targets).await?;
        for ((pair, in_redis), listed) in pairs.iter().zip(in_redis).zip(&mut listed) {
            if !in_redis && !*listed && self.archive.is_some() {
                *listed = self.archive()?.is_listed(*pair).await?;
            }
        }
        Ok(listed)
    }

    /// Returns how many entries the lists of posts have.
    pub(crate) async fn list_lengths(&self, ids: &[PostId]) -> Result<Vec<ListLengths>, Error> {
        let (mut list_lengths, in_redis) =
            futures::try_join!(self.store.list_lengths(ids), self.store.exist(ids))?;
        let archived_ids: Vec<_> = ids
            .iter()
            .zip(&in_redis)
            .filter(|(_, in_redis)| !**in_redis)
            .map(|(&id, _)| id)
            .collect();
        if self.archive.is_some() && !archived_ids.is_empty() {
            let archived = self.archive()?.list_lengths(&archived_ids).await?;
            for (id, list_lengths) in ids.iter().zip(&mut list_lengths) {
                *list_lengths = archived.get(id).copied().unwrap_or(*list_lengths);
            }
        }
        Ok(list_lengths)
    }
}
