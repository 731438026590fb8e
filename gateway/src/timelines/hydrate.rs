//! The posts that entries of a timeline stand for, and those of its past, as the viewer sees them.

use std::mem;

use futures::future;
use microblog_domain::{IdMap, IdSet};
use microblog_proto::{
    gateway::ViewedPost,
    post::{self, Post},
    timeline::Entry,
};
use tonic::Status;

use crate::{
    pages::{ANSWER_BYTES_MAX, PROFILE_BYTES_MAX},
    people::Visit,
    refusal,
    rpc::Gateway,
};

/// What a post takes at most, its author's profile not included: 2,000 characters of 32,000 bytes in
/// all, which may be hashtags to the last one and then come twice, and what a post has besides.
const POST_BYTES_MAX: usize = 76 * 1024;

/// What an entry takes at most as it is shown: a post and its root, each with its author.
pub(super) const ENTRY_BYTES_MAX: usize = 2 * (POST_BYTES_MAX + PROFILE_BYTES_MAX);

/// How many posts, with their roots, are certain to fit into one message, whatever they are.
pub(super) const PART_MAX: usize = 25;
const _: () = assert!(PART_MAX * ENTRY_BYTES_MAX < ANSWER_BYTES_MAX - 32 * 1024);

/// How many of the posts that stand in for an entry are looked at first, and how many times as many
/// after each time: nearly always, one of the first is shown.
const STAND_INS_FIRST: usize = 3;
const STAND_INS_GROWTH: usize = 4;

/// How many posts that stand in for others are looked at together, at most: what they are is in memory
/// at once.
const STAND_INS_MAX: usize = 150;

impl Gateway {
    /// Returns what the viewer is shown for each entry, in their order: its post, or else the first
    /// of those that stand in for it that is shown; nothing where they are all deleted, or not for
    /// the viewer.
    ///
    /// post.BatchGetPosts once for every 25 entries, all at once, then the calls of
    /// [`Gateway::scene`]. Where an entry that has stand-ins is not shown, the same for up to 3 of its
    /// stand-ins, and again for more of them until one is shown or all were looked at: up to 9 times,
    /// for the up to 800 posts that a timeline holds, and with up to 150 posts at a time.
    pub(super) async fn hydrate_entries(
        &self,
        visit: Visit<'_>,
        entries: &[Entry],
    ) -> Result<Vec<Option<ViewedPost>>, Status> {
        let ids: Vec<u64> = entries.iter().map(|entry| entry.post_id).collect();
        let shown = self.viewed_posts(visit, &ids).await?;
        if shown.len() == entries.len() {
            return Ok(shown.into_iter().map(Some).collect());
        }
        let mut places = Places::new(entries, by_id(shown));
        loop {
            let ids = places.next_ids();
            if ids.is_empty() {
                return Ok(places.shown);
            }
            places.take(by_id(self.viewed_posts(visit, &ids).await?));
        }
    }

    /// Returns those of the posts that the viewer is shown, in the order asked for.
    async fn viewed_posts(
        &self,
        visit: Visit<'_>,
        post_ids: &[u64],
    ) -> Result<Vec<ViewedPost>, Status> {
        let posts = self.posts(post_ids).await?;
        self.hydrate_posts(visit, posts).await
    }

    /// Returns what the viewer is shown for each of the posts, in their order; nothing for those that
    /// are not for the viewer. The calls of [`Gateway::scene`].
    pub(super) async fn hydrate_past(
        &self,
        visit: Visit<'_>,
        posts: Vec<Post>,
    ) -> Result<Vec<Option<ViewedPost>>, Status> {
        let ids: Vec<u64> = posts.iter().map(|post| post.id).collect();
        let mut shown = by_id(self.hydrate_posts(visit, posts).await?);
        Ok(ids.iter().map(|id| shown.remove(id)).collect())
    }

    /// Returns those of the posts that exist, with their roots. One call for every 25, all at once.
    async fn posts(&self, post_ids: &[u64]) -> Result<Vec<Post>, Status> {
        let part = |post_ids: &[u64]| self.some_posts(post_ids.to_vec());
        let parts: Vec<_> = post_ids.chunks(PART_MAX).map(part).collect();
        let mut posts = Vec::with_capacity(post_ids.len());
        for part in future::join_all(parts).await {
            posts.extend(part?);
        }
        Ok(posts)
    }

    async fn some_posts(&self, post_ids: Vec<u64>) -> Result<Vec<Post>, Status> {
        let request = post::BatchGetPostsRequest { post_ids, viewer_id: 0 };
        let response = self.peers.post().batch_get_posts(request).await;
        Ok(response.map_err(|status| refusal::pass_on(status, &[]))?.into_inner().posts)
    }
}

fn by_id(shown: Vec<ViewedPost>) -> IdMap<u64, ViewedPost> {
    let with_id = |viewed: ViewedPost| Some((viewed.post.as_ref()?.id, viewed));
    shown.into_iter().filter_map(with_id).collect()
}

/// The places of entries, and what is shown in them. Nothing is shown in two places.
struct Places<'a> {
    shown: Vec<Option<ViewedPost>>,
    /// What is shown anywhere.
    taken: IdSet<u64>,
    /// The places in which nothing is shown, each with the stand-ins that were not looked at.
    lost: Vec<(usize, &'a [u64])>,
    /// How many stand-ins of each place are looked at next.
    each: usize,
}

impl<'a> Places<'a> {
    /// Puts those of the entries that are shown into their places.
    fn new(entries: &'a [Entry], mut shown: IdMap<u64, ViewedPost>) -> Self {
        let taken = shown.keys().copied().collect();
        let shown: Vec<_> = entries.iter().map(|entry| shown.remove(&entry.post_id)).collect();
        let lost = entries.iter().enumerate().filter(|&(place, _)| shown[place].is_none());
        let lost = lost.map(|(place, entry)| (place, &entry.stand_in_ids[..]));
        let lost = lost.filter(|(_, stand_ins)| !stand_ins.is_empty()).collect();
        Self { shown, taken, lost, each: STAND_INS_FIRST }
    }

    /// Returns which stand-ins to look at next; none where that would change nothing.
    fn next_ids(&mut self) -> Vec<u64> {
        self.each = self.each.min(STAND_INS_MAX / self.lost.len().max(1)).max(1);
        let next = self.lost.iter().flat_map(|(_, stand_ins)| stand_ins.iter().take(self.each));
        let mut ids: Vec<u64> = next.copied().collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Puts those of the stand-ins that are shown, of those to look at, into the places: the first of
    /// each.
    fn take(&mut self, mut found: IdMap<u64, ViewedPost>) {
        for (place, stand_ins) in mem::take(&mut self.lost) {
            let (now, later) = stand_ins.split_at(self.each.min(stand_ins.len()));
            let first = now.iter().filter(|id| !self.taken.contains(id));
            let first = first.copied().find(|id| found.contains_key(id));
            match first {
                Some(id) => {
                    self.taken.insert(id);
                    self.shown[place] = found.remove(&id);
                }
                None if !later.is_empty() => self.lost.push((place, later)),
                None => {}
            }
        }
        self.each *= STAND_INS_GROWTH;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(post_id: u64, stand_in_ids: &[u64]) -> Entry {
        Entry { post_id, stand_in_ids: stand_in_ids.to_vec(), ..Entry::default() }
    }

    fn viewed(id: u64) -> (u64, ViewedPost) {
        let post = Post { id, ..Post::default() };
        (id, ViewedPost { post: Some(post), ..ViewedPost::default() })
    }

    fn viewed_of(ids: &[u64], shown: &[u64]) -> IdMap<u64, ViewedPost> {
        ids.iter().copied().filter(|id| shown.contains(id)).map(viewed).collect()
    }

    /// Returns what is in which place, and how many stand-ins were looked at each time.
    fn looked_at(entries: &[Entry], shown: &[u64]) -> (Vec<Option<u64>>, Vec<usize>) {
        let ids: Vec<_> = entries.iter().map(|entry| entry.post_id).collect();
        let mut places = Places::new(entries, viewed_of(&ids, shown));
        let mut counts = Vec::new();
        loop {
            let ids = places.next_ids();
            if ids.is_empty() {
                break;
            }
            counts.push(ids.len());
            places.take(viewed_of(&ids, shown));
        }
        let id = |viewed: ViewedPost| viewed.post.unwrap().id;
        (places.shown.into_iter().map(|shown| shown.map(id)).collect(), counts)
    }

    fn places(entries: &[Entry], shown: &[u64]) -> Vec<Option<u64>> {
        looked_at(entries, shown).0
    }

    #[test]
    fn the_first_that_is_shown_stands_in() {
        let entries = [entry(9, &[]), entry(5, &[6, 7]), entry(4, &[8])];
        assert_eq!(places(&entries, &[9, 5, 6, 7, 4]), [Some(9), Some(5), Some(4)]);
        assert_eq!(places(&entries, &[9, 7, 6]), [Some(9), Some(6), None]);
        assert_eq!(places(&entries, &[7, 8]), [None, Some(7), Some(8)]);
        assert_eq!(places(&entries, &[]), [None, None, None]);
    }

    #[test]
    fn nothing_is_shown_in_two_places() {
        let entries = [entry(7, &[]), entry(5, &[7, 6]), entry(4, &[6])];
        assert_eq!(places(&entries, &[7, 6]), [Some(7), Some(6), None]);
    }

    #[test]
    fn stand_ins_are_looked_at_until_one_is_shown() {
        let many: Vec<u64> = (1_001..1_800).collect();
        let entries = [entry(9, &[]), entry(1_000, &many), entry(8, &[10, 11])];
        let (shown, counts) = looked_at(&entries, &[8, 9, 1_003]);
        assert_eq!((shown, counts), (vec![Some(9), Some(1_003), Some(8)], vec![3]));
        let (shown, counts) = looked_at(&entries, &[9, 1_799]);
        assert_eq!(shown, [Some(9), Some(1_799), None]);
        assert_eq!(counts, [5, 12, 48, 150, 150, 150, 150, 136]);
        // As many entries as are looked at together, and no more posts at once than ever.
        let of_16 = |i: u64| entry(i, &(0..16).map(|n| 1_000 * i + n).collect::<Vec<_>>());
        let entries: Vec<_> = (1..=50).map(of_16).collect();
        let (shown, counts) = looked_at(&entries, &[50_015]);
        assert_eq!((shown[49], shown.iter().flatten().count()), (Some(50_015), 1));
        assert_eq!(counts, [150, 150, 150, 150, 150, 50]);
    }
}
