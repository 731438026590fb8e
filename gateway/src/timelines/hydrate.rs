//! The posts that entries of a timeline stand for, and those of its past, as the viewer sees them.

use futures::future;
use microblog_domain::IdMap;
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

impl Gateway {
    /// Returns what the viewer is shown for each entry, in their order: its post, or else the first
    /// of those that stand in for it that is shown; nothing where they are all deleted, or not for
    /// the viewer.
    ///
    /// post.BatchGetPosts once for every 25 entries, all at once, then the calls of
    /// [`Gateway::scene`]; the same once more for what stands in, where there is any.
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
        let mut shown = by_id(shown);
        let lost = entries.iter().filter(|entry| !shown.contains_key(&entry.post_id));
        let mut ids: Vec<u64> = lost.flat_map(|entry| entry.stand_in_ids.iter().copied()).collect();
        ids.sort_unstable();
        ids.dedup();
        if !ids.is_empty() {
            shown.extend(by_id(self.viewed_posts(visit, &ids).await?));
        }
        Ok(entries.iter().map(|entry| place(entry, &mut shown)).collect())
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

/// Takes what is shown in the place of an entry. Nothing is shown in two places.
fn place(entry: &Entry, shown: &mut IdMap<u64, ViewedPost>) -> Option<ViewedPost> {
    let mut candidates = std::iter::once(&entry.post_id).chain(&entry.stand_in_ids);
    candidates.find_map(|id| shown.remove(id))
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

    fn places(entries: &[Entry], shown: &[u64]) -> Vec<Option<u64>> {
        let mut shown = shown.iter().copied().map(viewed).collect();
        let id = |viewed: ViewedPost| viewed.post.unwrap().id;
        entries.iter().map(|entry| place(entry, &mut shown).map(id)).collect()
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
}
