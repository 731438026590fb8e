//! The tiered store: posts are in Redis, the hot tier, or else in the archive.
//!
//! Reads go to Redis first, which is authoritative for what it has. A missing post may be in the
//! archive if it is not above its partition's eviction watermark and has no tombstone. Its row does
//! not change between eviction and restore. So whatever is evicted, restored or deleted during a
//! read, the result was correct at some moment of the call.

mod lists;
mod restore;

use std::time::Duration;

use microblog_domain::{IdMap, IdSet, Partition, PostId, UserId};
use moka::sync::Cache;

use crate::{
    archive::Archive,
    error::Error,
    post::{Content, ListLengths, Post},
    store::{JOURNALS, Store},
};

/// How many times a call tries again when a post moves between the tiers meanwhile.
pub(crate) const ATTEMPTS: usize = 5;

/// The negative cache: posts that neither tier has. They are below the eviction watermark, so they
/// cannot appear later.
const NEGATIVE_CACHE_MAX: u64 = 100_000;
const NEGATIVE_CACHE_TTL: Duration = Duration::from_secs(30);

/// Posts and what belongs to them, in either tier.
#[derive(Clone)]
pub struct TieredStore {
    store: Store,
    archive: Option<Archive>,
    negative_cache: Cache<PostId, ()>,
    warm_window: Duration,
}

impl TieredStore {
    /// Returns the store of a hot tier and an optional archive. A restored post stays in Redis for
    /// at least `warm_window`.
    pub fn new(store: Store, archive: Option<Archive>, warm_window: Duration) -> Self {
        let negative_cache = Cache::builder()
            .max_capacity(NEGATIVE_CACHE_MAX)
            .time_to_live(NEGATIVE_CACHE_TTL)
            .build();
        Self { store, archive, negative_cache, warm_window }
    }

    /// Returns the hot tier.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the archive; fails if none is configured, or if it is not that of this Redis.
    pub(crate) fn archive(&self) -> Result<&Archive, Error> {
        self.store.keyspace().states().check_database()?;
        self.archive.as_ref().ok_or(Error::Archive(microblog_record::Error::Missing))
    }

    /// Returns posts as a viewer sees them, in the given order; `None` if missing or unreadable.
    /// One round trip to each partition, sent together, if all are in Redis, and another one for a
    /// viewer if some have likes; otherwise one more, then one or two to the archive.
    pub async fn posts(
        &self,
        ids: &[PostId],
        viewer: Option<UserId>,
    ) -> Result<Vec<Option<Post>>, Error> {
        let mut posts = self.in_redis(ids, viewer).await?;
        let missing: Vec<_> =
            ids.iter().zip(&posts).filter(|(_, post)| post.is_none()).map(|(&id, _)| id).collect();
        if !missing.is_empty() {
            let found = self.archived(&missing, viewer).await?;
            let absent = ids.iter().zip(&mut posts).filter(|(_, post)| post.is_none());
            absent.for_each(|(id, post)| *post = found.get(id).cloned());
        }
        Ok(posts)
    }

    /// Returns the existing posts among some, as a viewer sees them, and the unknown ones: those
    /// that may be in the archive while it is unavailable.
    pub(crate) async fn posts_best_effort(
        &self,
        ids: &[PostId],
        viewer: Option<UserId>,
    ) -> Result<(IdMap<PostId, Post>, IdSet<PostId>), Error> {
        let posts = self.in_redis(ids, viewer).await?;
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

    /// Returns posts in Redis as a viewer sees them, in the given order.
    ///
    /// The viewer does not like a post without likes: likes and their count change in one step, in
    /// Redis and in the archive, and move between the two together. The count is read after the call
    /// began, so it includes every like that was confirmed before and not taken back.
    async fn in_redis(
        &self,
        ids: &[PostId],
        viewer: Option<UserId>,
    ) -> Result<Vec<Option<Post>>, Error> {
        let mut posts = self.store.posts(ids, None).await?;
        let with_likes = posts.iter().flatten().filter(|post| post.counts.likes > 0);
        let with_likes: Vec<_> = with_likes.map(|post| post.id).collect();
        let Some(viewer) = viewer.filter(|_| !with_likes.is_empty()) else { return Ok(posts) };
        let liked = self.liked(viewer, &with_likes).await?;
        let liked = with_likes.into_iter().zip(liked).filter_map(|(id, liked)| liked.then_some(id));
        let liked: IdSet<_> = liked.collect();
        posts.iter_mut().flatten().for_each(|post| post.liked = liked.contains(&post.id));
        Ok(posts)
    }

    /// Returns which posts exist, in the given order; `None` if unknown.
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
            Err(error) if error.is_outage() => Ok((IdMap::default(), old.into_iter().collect())),
            Err(error) => Err(error),
        }
    }

    /// Returns one post as a viewer sees it.
    pub async fn post(&self, id: PostId, viewer: Option<UserId>) -> Result<Option<Post>, Error> {
        Ok(self.posts(&[id], viewer).await?.pop().flatten())
    }

    /// Returns the contents of posts, in the given order.
    pub async fn contents(&self, ids: &[PostId]) -> Result<Vec<Option<Content>>, Error> {
        let posts = self.posts(ids, None).await?;
        Ok(posts.into_iter().map(|post| post.map(|post| post.content)).collect())
    }

    /// Returns which posts exist, in the given order.
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

    /// Returns which posts an account likes, in the given order. One round trip to each partition,
    /// sent together, if all are above the eviction watermark.
    pub async fn liked(&self, user: UserId, ids: &[PostId]) -> Result<Vec<bool>, Error> {
        let in_redis = self.store.liked_in_redis(user, ids).await?;
        let unsure = ids.iter().zip(&in_redis).filter(|(_, liked)| liked.is_none());
        let unsure: Vec<_> = unsure.map(|(&id, _)| id).collect();
        let mut archived_likes = IdSet::default();
        if !unsure.is_empty() {
            // A restore may have happened since: one command reads the post and the like.
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

    /// Returns the number of likes of an archived post, and since when an account likes it. `None`
    /// if there is no such post.
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

    /// Returns the archived posts among some that are not in Redis.
    pub(crate) async fn archived(
        &self,
        ids: &[PostId],
        viewer: Option<UserId>,
    ) -> Result<IdMap<PostId, Post>, Error> {
        self.read_archive(&self.old(ids).await?, viewer).await
    }

    // Returns the posts that the archive may have, among some that are not in Redis.
    async fn old(&self, ids: &[PostId]) -> Result<Vec<PostId>, Error> {
        let may_be = self.store.may_be_archived(ids).await?;
        let is_old =
            |(id, may_be): &(&PostId, bool)| *may_be && !self.negative_cache.contains_key(*id);
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
            self.negative_cache.insert(id, ());
        }
        Ok(found)
    }

    /// Returns the number of changes of a partition that are not recorded yet; 0 while the archive is
    /// unavailable.
    pub async fn unrecorded(&self, partition: Partition) -> Result<u64, Error> {
        let Some(archive) = &self.archive else { return Ok(0) };
        let newest = JOURNALS.newest(self.store.keyspace(), &[partition]).await?.pop().flatten();
        let Some(newest) = newest else { return Ok(0) };
        match archive.position(partition).await {
            Ok(position) => Ok(newest.version.get().saturating_sub(position)),
            Err(error) if error.is_unavailable() => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether each repost is on the list of the post it is paired with.
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

    /// Returns the lengths of the lists of posts.
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
