//! Hydration of posts: authors, mentions and the viewer's likes; posts as the viewer sees them; and
//! the posts of timeline entries.
//!
//! A timeline has one entry for a post and its reposts. If the entry's post is deleted or hidden
//! from the viewer, the first visible one of its suppressed reposts (`stand_in_ids`) is shown
//! instead.

use std::mem;

use futures::future;
use microblog_domain::{IdMap, IdSet, UserId};
use microblog_proto::{
    PEER_RESPONSE_BYTES_MAX,
    gateway::{RootState, ViewedPost, WithheldPost, WithheldReason},
    post::{self, Post},
    timeline::Entry,
};
use tonic::Status;

use super::{
    accounts::{HydratedAccounts, hydrate_authors},
    mentions::mentioned_names,
};
use crate::{
    context::ViewContext,
    errors,
    paging::{Budget, PAGE_BYTES_MAX, PROFILE_BYTES_MAX},
    state::Gateway,
};

/// The largest post without its author's profile: a text of 2,000 characters and 70,000 bytes,
/// which may consist of hashtags and then appears twice, and the other fields.
const POST_BYTES_MAX: usize = 152 * 1024;

/// The largest post or comment with its author: the texts of both have the same limits.
pub(crate) const TEXT_BYTES_MAX: usize = POST_BYTES_MAX + PROFILE_BYTES_MAX;

/// The largest entry as it is shown: a post and its root, each with its author.
pub(crate) const ENTRY_BYTES_MAX: usize = 2 * TEXT_BYTES_MAX;

/// The limits of a page of posts.
pub(crate) const POSTS_BUDGET: Budget = Budget {
    batch_max: 50,
    page_bytes_max: PAGE_BYTES_MAX,
    entry_bytes_max: ENTRY_BYTES_MAX,
    overfetches: true,
};

/// How many of the largest posts, with their roots, fit into one message.
pub(crate) const ENTRIES_PER_MESSAGE: usize = 12;
const _: () = assert!(ENTRIES_PER_MESSAGE * ENTRY_BYTES_MAX < PAGE_BYTES_MAX);

/// How many posts one call reads: of the largest, with their roots, as many as a peer accepts.
const POSTS_PER_CALL: usize = 25;
const _: () = assert!(POSTS_PER_CALL * 2 * POST_BYTES_MAX < PEER_RESPONSE_BYTES_MAX);

/// How many suppressed reposts of an entry the first round reads, and by which factor each further
/// round reads more. In nearly all cases one of the first is visible.
const SUPPRESSED_FIRST: usize = 3;
const SUPPRESSED_GROWTH: usize = 4;

/// How many suppressed reposts one round reads at most: they are in memory at once.
const SUPPRESSED_MAX: usize = 150;

/// Returns a post with its root, and which of both the viewer likes; or POST_NOT_FOUND. One call:
/// post.GetPost.
pub(crate) async fn get_post(
    gateway: &Gateway,
    viewer: Option<UserId>,
    post_id: u64,
) -> Result<Post, Status> {
    let request = post::GetPostRequest { post_id, viewer_id: viewer_id(viewer) };
    let response = gateway.peers.post().get_post(request).await;
    errors::required(errors::reply(response, &[("post_id", "post_id")])?.post)
}

/// Returns the `viewer_id` of a request: 0 for an anonymous viewer.
pub(crate) fn viewer_id(viewer: Option<UserId>) -> u64 {
    viewer.map_or(0, UserId::get)
}

/// Hydration state of posts and their roots.
pub(crate) struct HydratedPosts {
    pub(crate) authors: HydratedAccounts,
}

/// Returns the hydration state of posts and their roots. Up to two calls at once: those of
/// [`hydrate_authors`].
pub(crate) async fn hydrate_posts(
    gateway: &Gateway,
    context: ViewContext<'_>,
    posts: &[Post],
) -> Result<HydratedPosts, Status> {
    let with_roots = || posts.iter().flat_map(|post| [Some(post), post.root.as_deref()]).flatten();
    let author_ids = with_roots().map(|post| post.author_id).collect();
    let names = mentioned_names(with_roots().map(|post| &post.entities[..]));
    let authors = hydrate_authors(gateway, context, author_ids, names).await?;
    Ok(HydratedPosts { authors })
}

/// Returns posts as the viewer sees them, without those of authors who are deleted or hidden from
/// the viewer, unless the viewer requested that author's posts. The calls of [`hydrate_posts`].
pub(crate) async fn viewed_posts(
    gateway: &Gateway,
    context: ViewContext<'_>,
    posts: Vec<Post>,
) -> Result<Vec<ViewedPost>, Status> {
    let viewed = viewed_posts_unless(gateway, context, posts, HydratedAccounts::hidden_reason);
    viewed.await.map(|(viewed, _hidden)| viewed)
}

/// Returns posts as [`viewed_posts`] does, and the hidden ones with their reasons. `reason` decides
/// whose posts are hidden; roots are always hidden by [`HydratedAccounts::is_hidden`].
pub(crate) async fn viewed_posts_unless(
    gateway: &Gateway,
    context: ViewContext<'_>,
    mut posts: Vec<Post>,
    reason: fn(&HydratedAccounts, u64) -> Option<WithheldReason>,
) -> Result<(Vec<ViewedPost>, Vec<WithheldPost>), Status> {
    let hydrated = hydrate_posts(gateway, context, &posts).await?;
    let mut hidden = Vec::new();
    posts.retain(|post| {
        let requested = context.requests(post.author_id);
        // Without an author, it is gone.
        let is_hidden = !requested && hydrated.authors.exists(post.author_id);
        let reason = reason(&hydrated.authors, post.author_id).filter(|_| is_hidden);
        let withheld = |reason| WithheldPost { id: post.id, reason: i32::from(reason) };
        hidden.extend(reason.map(withheld));
        reason.is_none()
    });
    // Most posts are shown, and they are large: a growing vector would move each several times.
    let mut viewed = Vec::with_capacity(posts.len());
    viewed.extend(posts.into_iter().filter_map(|post| hydrated.view(post)));
    Ok((viewed, hidden))
}

impl HydratedPosts {
    /// Returns a post with its author and root; `None` if its author is deleted.
    pub(crate) fn view(&self, mut post: Post) -> Option<ViewedPost> {
        let author = self.authors.author(post.author_id)?;
        let (root_state, root) = match post.root.take() {
            Some(root) => self.root(*root),
            None if post.root_deleted => (RootState::Deleted, None),
            None if post.root_id != 0 => (RootState::Omitted, None),
            None => (RootState::None, None),
        };
        post.root_deleted = root_state == RootState::Deleted;
        self.authors.fill_mentions(post.id, &mut post.entities);
        Some(ViewedPost {
            post: Some(post),
            author: Some(author),
            root_state: root_state.into(),
            root: root.map(Box::new),
        })
    }

    /// Returns a root, unless its author is deleted or hidden from the viewer.
    fn root(&self, root: Post) -> (RootState, Option<ViewedPost>) {
        if !self.authors.exists(root.author_id) {
            return (RootState::Deleted, None);
        }
        if self.authors.is_hidden(root.author_id) {
            return (RootState::Hidden, None);
        }
        (RootState::Shown, self.view(root))
    }
}

/// Returns the post of each entry as the viewer sees it, in order: the entry's post, or else its
/// first visible suppressed repost; `None` if all are deleted or hidden.
///
/// post.BatchGetPosts once for every 25 entries, all at once, then the calls of [`hydrate_posts`]. If
/// an entry with suppressed reposts is not shown, the same for up to 3 of these, and again for more
/// until one is visible or all were read: up to 9 rounds for the up to 800 posts of a timeline, with
/// up to 150 posts each.
pub(crate) async fn hydrate_entries(
    gateway: &Gateway,
    context: ViewContext<'_>,
    entries: &[Entry],
) -> Result<Vec<Option<ViewedPost>>, Status> {
    let ids: Vec<u64> = entries.iter().map(|entry| entry.post_id).collect();
    let posts = get_posts(gateway, context.viewer, &ids).await?;
    let shown = viewed_posts(gateway, context, posts).await?;
    if shown.len() == entries.len() {
        return Ok(shown.into_iter().map(Some).collect());
    }
    let mut slots = Slots::new(entries, by_id(shown));
    loop {
        let ids = slots.next_ids();
        if ids.is_empty() {
            return Ok(slots.shown);
        }
        let posts = get_posts(gateway, context.viewer, &ids).await?;
        slots.take(by_id(viewed_posts(gateway, context, posts).await?));
    }
}

/// Returns each post as the viewer sees it, in order; `None` for a hidden one. The calls of
/// [`hydrate_posts`].
pub(crate) async fn viewed_posts_in_place(
    gateway: &Gateway,
    context: ViewContext<'_>,
    posts: Vec<Post>,
) -> Result<Vec<Option<ViewedPost>>, Status> {
    let ids: Vec<u64> = posts.iter().map(|post| post.id).collect();
    viewed_posts_of(gateway, context, &ids, posts).await
}

/// Returns the posts with these ids as the viewer sees them, in order; `None` for a hidden one, or one
/// that is not among the posts. The calls of [`hydrate_posts`].
pub(crate) async fn viewed_posts_of(
    gateway: &Gateway,
    context: ViewContext<'_>,
    ids: &[u64],
    posts: Vec<Post>,
) -> Result<Vec<Option<ViewedPost>>, Status> {
    let mut shown = by_id(viewed_posts(gateway, context, posts).await?);
    Ok(ids.iter().map(|id| shown.remove(id)).collect())
}

/// Returns the posts that exist, with their roots and which of them the viewer likes, in the order of
/// their ids in the request. post.BatchGetPosts once for every 25, all at once.
async fn get_posts(
    gateway: &Gateway,
    viewer: Option<UserId>,
    ids: &[u64],
) -> Result<Vec<Post>, Status> {
    let batch = |ids: &[u64]| {
        let (post_ids, viewer_id) = (ids.to_vec(), viewer_id(viewer));
        let request = post::BatchGetPostsRequest { post_ids, viewer_id, allow_partial: false };
        gateway.peers.post().batch_get_posts(request)
    };
    let batches: Vec<_> = ids.chunks(POSTS_PER_CALL).map(batch).collect();
    let mut posts = Vec::with_capacity(ids.len());
    for response in future::join_all(batches).await {
        posts.extend(errors::reply(response, &[])?.posts);
    }
    Ok(posts)
}

/// Returns the posts that exist, with their roots and which of them the viewer likes, in any order.
/// post.BatchGetPosts once for every 25, all at once, and again for those that do not fit.
pub(crate) async fn get_all_posts(
    gateway: &Gateway,
    viewer: Option<UserId>,
    ids: &[u64],
) -> Result<Vec<Post>, Status> {
    let batch = async |ids: &[u64]| {
        let mut posts = Vec::with_capacity(ids.len());
        let (mut post_ids, viewer_id) = (ids.to_vec(), viewer_id(viewer));
        while !post_ids.is_empty() {
            let request = post::BatchGetPostsRequest { post_ids, viewer_id, allow_partial: true };
            let response = gateway.peers.post().batch_get_posts(request).await;
            let response = errors::reply(response, &[])?;
            posts.extend(response.posts);
            post_ids = response.remaining_ids;
        }
        Ok::<_, Status>(posts)
    };
    let batches = future::try_join_all(ids.chunks(POSTS_PER_CALL).map(batch)).await?;
    Ok(batches.into_iter().flatten().collect())
}

fn by_id(shown: Vec<ViewedPost>) -> IdMap<u64, ViewedPost> {
    let with_id = |viewed: ViewedPost| Some((viewed.post.as_ref()?.id, viewed));
    shown.into_iter().filter_map(with_id).collect()
}

/// The posts shown for entries. No post is shown for two entries.
struct Slots<'a> {
    shown: Vec<Option<ViewedPost>>,
    /// The ids of all posts in `shown`.
    taken: IdSet<u64>,
    /// The empty slots, each with its suppressed reposts that are not read yet.
    empty: Vec<(usize, &'a [u64])>,
    /// How many suppressed reposts of each empty slot are read next.
    each: usize,
}

impl<'a> Slots<'a> {
    /// Fills the slots of the entries whose own post is visible.
    fn new(entries: &'a [Entry], mut shown: IdMap<u64, ViewedPost>) -> Self {
        let taken = shown.keys().copied().collect();
        let shown: Vec<_> = entries.iter().map(|entry| shown.remove(&entry.post_id)).collect();
        let empty = entries.iter().enumerate().filter(|&(slot, _)| shown[slot].is_none());
        let empty = empty.map(|(slot, entry)| (slot, &entry.stand_in_ids[..]));
        let empty = empty.filter(|(_, suppressed)| !suppressed.is_empty()).collect();
        Self { shown, taken, empty, each: SUPPRESSED_FIRST }
    }

    /// Returns the suppressed reposts to read next; none if no slot can be filled any more.
    fn next_ids(&mut self) -> Vec<u64> {
        self.each = self.each.min(SUPPRESSED_MAX / self.empty.len().max(1)).max(1);
        let next = self.empty.iter().flat_map(|(_, suppressed)| suppressed.iter().take(self.each));
        let mut ids: Vec<u64> = next.copied().collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Fills empty slots with the visible ones of the reposts that were read: the first of each.
    fn take(&mut self, mut found: IdMap<u64, ViewedPost>) {
        for (slot, suppressed) in mem::take(&mut self.empty) {
            let (now, later) = suppressed.split_at(self.each.min(suppressed.len()));
            let first = now.iter().filter(|id| !self.taken.contains(id));
            let first = first.copied().find(|id| found.contains_key(id));
            match first {
                Some(id) => {
                    self.taken.insert(id);
                    self.shown[slot] = found.remove(&id);
                }
                None if !later.is_empty() => self.empty.push((slot, later)),
                None => {}
            }
        }
        self.each *= SUPPRESSED_GROWTH;
    }
}

#[cfg(test)]
mod tests {
    use microblog_proto::{
        relation::{Relation, RelationState},
        user::User,
    };

    use super::*;

    /// Returns a repost by 1 of a post by 2.
    fn repost() -> Post {
        let (text, liked) = ("root".to_owned(), true);
        let root = Post { id: 20, author_id: 2, text, liked, ..Post::default() };
        let root_id = root.id;
        Post { id: 10, author_id: 1, root_id, root: Some(Box::new(root)), ..Post::default() }
    }

    fn hydrated(users: &[u64], relations: Vec<Relation>) -> HydratedPosts {
        let user = |&id| User { id, name: format!("n{id}"), ..User::default() };
        let authors = HydratedAccounts::new(users.iter().map(user).collect(), relations);
        HydratedPosts { authors }
    }

    #[test]
    fn a_root_is_shown_beside_its_repost() {
        let viewed = hydrated(&[1, 2], Vec::new()).view(repost()).unwrap();
        assert_eq!(viewed.root_state(), RootState::Shown);
        let own = viewed.post.unwrap();
        assert!(own.root.is_none() && !own.root_deleted && !own.liked);
        let root = viewed.root.unwrap();
        assert_eq!(root.root_state(), RootState::None);
        assert_eq!(root.author.unwrap().user.unwrap().name, "n2");
        assert!(root.post.unwrap().liked);
    }

    #[test]
    fn a_root_that_is_not_shown_has_the_reason() {
        let state = RelationState::Following.into();
        let muting = Relation { user_id: 2, state, muting: true, ..Relation::default() };
        let deleted = Post { root: None, root_deleted: true, ..repost() };
        let omitted = Post { root: None, ..repost() };
        for (repost, hydrated, state) in [
            (repost(), hydrated(&[1, 2], vec![muting]), RootState::Hidden),
            (repost(), hydrated(&[1], vec![muting]), RootState::Deleted),
            (deleted, hydrated(&[1], Vec::new()), RootState::Deleted),
            (omitted, hydrated(&[1], Vec::new()), RootState::Omitted),
        ] {
            let viewed = hydrated.view(repost).unwrap();
            assert_eq!((viewed.root_state(), viewed.root), (state, None));
            let post = viewed.post.unwrap();
            assert_eq!((post.root, post.root_deleted), (None, state == RootState::Deleted));
        }
    }

    #[test]
    fn a_post_of_an_author_who_is_gone_is_not_shown() {
        assert!(hydrated(&[2], Vec::new()).view(repost()).is_none());
    }

    fn entry(post_id: u64, suppressed: &[u64]) -> Entry {
        Entry { post_id, stand_in_ids: suppressed.to_vec(), ..Entry::default() }
    }

    fn viewed(id: u64) -> (u64, ViewedPost) {
        let post = Post { id, ..Post::default() };
        (id, ViewedPost { post: Some(post), ..ViewedPost::default() })
    }

    fn viewed_of(ids: &[u64], shown: &[u64]) -> IdMap<u64, ViewedPost> {
        ids.iter().copied().filter(|id| shown.contains(id)).map(viewed).collect()
    }

    /// Returns the post of each entry, and how many suppressed reposts each round reads.
    fn fill(entries: &[Entry], shown: &[u64]) -> (Vec<Option<u64>>, Vec<usize>) {
        let ids: Vec<_> = entries.iter().map(|entry| entry.post_id).collect();
        let mut slots = Slots::new(entries, viewed_of(&ids, shown));
        let mut counts = Vec::new();
        loop {
            let ids = slots.next_ids();
            if ids.is_empty() {
                break;
            }
            counts.push(ids.len());
            slots.take(viewed_of(&ids, shown));
        }
        let id = |viewed: ViewedPost| viewed.post.unwrap().id;
        (slots.shown.into_iter().map(|shown| shown.map(id)).collect(), counts)
    }

    fn slots(entries: &[Entry], shown: &[u64]) -> Vec<Option<u64>> {
        fill(entries, shown).0
    }

    #[test]
    fn the_first_visible_suppressed_repost_is_shown() {
        let entries = [entry(9, &[]), entry(5, &[6, 7]), entry(4, &[8])];
        assert_eq!(slots(&entries, &[9, 5, 6, 7, 4]), [Some(9), Some(5), Some(4)]);
        assert_eq!(slots(&entries, &[9, 7, 6]), [Some(9), Some(6), None]);
        assert_eq!(slots(&entries, &[7, 8]), [None, Some(7), Some(8)]);
        assert_eq!(slots(&entries, &[]), [None, None, None]);
    }

    #[test]
    fn no_post_is_shown_twice() {
        let entries = [entry(7, &[]), entry(5, &[7, 6]), entry(4, &[6])];
        assert_eq!(slots(&entries, &[7, 6]), [Some(7), Some(6), None]);
    }

    #[test]
    fn suppressed_reposts_are_read_until_one_is_visible() {
        let many: Vec<u64> = (1_001..1_800).collect();
        let entries = [entry(9, &[]), entry(1_000, &many), entry(8, &[10, 11])];
        let (shown, counts) = fill(&entries, &[8, 9, 1_003]);
        assert_eq!((shown, counts), (vec![Some(9), Some(1_003), Some(8)], vec![3]));
        let (shown, counts) = fill(&entries, &[9, 1_799]);
        assert_eq!(shown, [Some(9), Some(1_799), None]);
        assert_eq!(counts, [5, 12, 48, 150, 150, 150, 150, 136]);
        // A full batch of entries reads no more posts at once.
        let of_16 = |i: u64| entry(i, &(0..16).map(|n| 1_000 * i + n).collect::<Vec<_>>());
        let entries: Vec<_> = (1..=50).map(of_16).collect();
        let (shown, counts) = fill(&entries, &[50_015]);
        assert_eq!((shown[49], shown.iter().flatten().count()), (Some(50_015), 1));
        assert_eq!(counts, [150, 150, 150, 150, 150, 50]);
    }
}
