//! Hydration of timeline entries: their posts, or reposts that an entry suppresses.
//!
//! A timeline has one entry for a post and its reposts. If the entry's post is deleted or hidden
//! from the viewer, the first visible one of its suppressed reposts (`stand_in_ids`) is shown
//! instead.

use std::mem;

use futures::future;
use microblog_domain::{IdMap, IdSet};
use microblog_proto::{
    gateway::ViewedPost,
    post::{self, Post},
    timeline::Entry,
};
use tonic::Status;

use super::posts::viewed_posts;
use crate::{
    context::ViewContext,
    errors,
    paging::{PROFILE_BYTES_MAX, RESPONSE_BYTES_MAX},
    state::Gateway,
};

/// The largest post without its author's profile: a text of 2,000 characters and 32,000 bytes,
/// which may consist of hashtags and then appears twice, and the other fields.
const POST_BYTES_MAX: usize = 76 * 1024;

/// The largest entry as it is shown: a post and its root, each with its author.
pub(crate) const ENTRY_BYTES_MAX: usize = 2 * (POST_BYTES_MAX + PROFILE_BYTES_MAX);

/// How many of the largest posts, with their roots, fit into one message.
pub(crate) const ENTRIES_PER_MESSAGE: usize = 25;
const _: () = assert!(ENTRIES_PER_MESSAGE * ENTRY_BYTES_MAX < RESPONSE_BYTES_MAX - 32 * 1024);

/// How many suppressed reposts of an entry the first round reads, and by which factor each further
/// round reads more. In nearly all cases one of the first is visible.
const SUPPRESSED_FIRST: usize = 3;
const SUPPRESSED_GROWTH: usize = 4;

/// How many suppressed reposts one round reads at most: they are in memory at once.
const SUPPRESSED_MAX: usize = 150;

/// Returns the post of each entry as the viewer sees it, in order: the entry's post, or else its
/// first visible suppressed repost; `None` if all are deleted or hidden.
///
/// post.BatchGetPosts once for every 25 entries, all at once, then the calls of
/// [`hydrate_posts`](super::posts::hydrate_posts). If an entry with suppressed reposts is not
/// shown, the same for up to 3 of these, and again for more until one is visible or all were read:
/// up to 9 rounds for the up to 800 posts of a timeline, with up to 150 posts each.
pub(crate) async fn hydrate_entries(
    gateway: &Gateway,
    context: ViewContext<'_>,
    entries: &[Entry],
) -> Result<Vec<Option<ViewedPost>>, Status> {
    let ids: Vec<u64> = entries.iter().map(|entry| entry.post_id).collect();
    let posts = get_posts(gateway, &ids).await?;
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
        let posts = get_posts(gateway, &ids).await?;
        slots.take(by_id(viewed_posts(gateway, context, posts).await?));
    }
}

/// Returns each post as the viewer sees it, in order; `None` for a hidden one. The calls of
/// [`hydrate_posts`](super::posts::hydrate_posts).
pub(crate) async fn viewed_posts_in_place(
    gateway: &Gateway,
    context: ViewContext<'_>,
    posts: Vec<Post>,
) -> Result<Vec<Option<ViewedPost>>, Status> {
    let ids: Vec<u64> = posts.iter().map(|post| post.id).collect();
    let mut shown = by_id(viewed_posts(gateway, context, posts).await?);
    Ok(ids.iter().map(|id| shown.remove(id)).collect())
}

/// Returns the posts that exist, with their roots, in the order of their ids in the request.
/// post.BatchGetPosts once for every 25, all at once.
async fn get_posts(gateway: &Gateway, ids: &[u64]) -> Result<Vec<Post>, Status> {
    let batch = |ids: &[u64]| {
        let request = post::BatchGetPostsRequest { post_ids: ids.to_vec(), viewer_id: 0 };
        gateway.peers.post().batch_get_posts(request)
    };
    let batches: Vec<_> = ids.chunks(ENTRIES_PER_MESSAGE).map(batch).collect();
    let mut posts = Vec::with_capacity(ids.len());
    for response in future::join_all(batches).await {
        posts.extend(errors::reply(response, &[])?.posts);
    }
    Ok(posts)
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
    use super::*;

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
