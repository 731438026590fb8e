//! The past of timelines: the posts that are older than those which the timeline service holds. Asks
//! the post service, which has all posts of an author back to the first one, and the relation service
//! for whose they are.

use futures::future;
use microblog_domain::{BATCH_MAX, PageSize, UserId};
use microblog_proto::{
    post::{self, Post},
    relation,
};
use tonic::Status;

use super::{Timeline, Whose};
use crate::{refusal, rpc::Gateway};

/// Returns all accounts on a list of the relation service, page by page. The lists' messages have the
/// same parts, but are types of their own.
macro_rules! all_of {
    ($gateway:expr, $method:ident, $request:expr) => {{
        let (request, mut accounts, mut page_token) = ($request, Vec::new(), String::new());
        loop {
            let response = $gateway.peers.relation().$method(request(page_token)).await;
            let page = response.map_err(|status| refusal::pass_on(status, &[]))?.into_inner();
            accounts.extend(page.edges.iter().map(|edge| edge.user_id));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break accounts;
            }
        }
    }};
}

/// A part of the past.
#[derive(Default)]
pub(crate) struct Era {
    /// Its posts, newest first, with their roots.
    pub(crate) posts: Vec<Post>,
    /// Behind which post to go on; 0 where there is nothing older.
    pub(crate) before_id: u64,
}

impl Timeline {
    /// Returns whose posts are in the past of a timeline. Of a home or friends timeline:
    /// relation.ListFollowing or relation.ListMutuals once for each 200 whom the viewer follows, or who
    /// follow back as well, one after the other, then the calls of [`Gateway::unhidden`]. No call for a
    /// user timeline.
    pub(crate) async fn authors(&self, gateway: &Gateway) -> Result<Vec<u64>, Status> {
        match self.whose {
            Whose::Home(viewer) => {
                let followings = all_of!(gateway, list_following, followings_from(viewer));
                let mut authors = gateway.unhidden(viewer, followings).await?;
                authors.push(viewer.get());
                Ok(authors)
            }
            Whose::Friends(viewer) => {
                let mutuals = all_of!(gateway, list_mutuals, mutuals_from(viewer));
                gateway.unhidden(viewer, mutuals).await
            }
            Whose::User(author) => Ok(vec![author.get()]),
        }
    }
}

impl Gateway {
    /// Returns up to `size` posts of authors that are older than one; fewer do not mean that there
    /// are no others. post.ListAuthorsPosts once for every 500 authors, all at once.
    pub(crate) async fn older_posts(
        &self,
        authors: &[u64],
        before_id: u64,
        size: usize,
    ) -> Result<Era, Status> {
        let part = |authors: &[u64]| self.older_posts_of(authors.to_vec(), before_id, size);
        let parts: Vec<_> = authors.chunks(BATCH_MAX).map(part).collect();
        let mut eras = Vec::with_capacity(parts.len());
        for era in future::join_all(parts).await {
            eras.push(era?);
        }
        Ok(Era::merged(eras, size))
    }

    async fn older_posts_of(
        &self,
        author_ids: Vec<u64>,
        before_id: u64,
        size: usize,
    ) -> Result<Era, Status> {
        let (viewer_id, page_size) = (0, size as i32);
        let request = post::ListAuthorsPostsRequest { author_ids, viewer_id, page_size, before_id };
        let response = self.peers.post().list_authors_posts(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, &[]))?.into_inner();
        Ok(Era { posts: response.posts, before_id: response.next_before_id })
    }
}

fn followings_from(viewer: UserId) -> impl Fn(String) -> relation::ListFollowingRequest {
    move |page_token| relation::ListFollowingRequest {
        user_id: viewer.get(),
        page_size: PageSize::MAX as i32,
        page_token,
        ..Default::default()
    }
}

fn mutuals_from(viewer: UserId) -> impl Fn(String) -> relation::ListMutualsRequest {
    move |page_token| relation::ListMutualsRequest {
        user_id: viewer.get(),
        page_size: PageSize::MAX as i32,
        page_token,
    }
}

impl Era {
    /// Puts together what different authors posted: as far back as all of it is known, and no more
    /// than `size` posts.
    fn merged(eras: Vec<Self>, size: usize) -> Self {
        let known_to = eras.iter().map(|era| era.before_id).max().unwrap_or(0);
        let mut posts: Vec<_> = eras.into_iter().flat_map(|era| era.posts).collect();
        posts.retain(|post| post.id >= known_to);
        posts.sort_unstable_by_key(|post| std::cmp::Reverse(post.id));
        let has_more = posts.len() > size;
        posts.truncate(size);
        let last = posts.last().filter(|_| has_more).map(|post| post.id);
        Self { posts, before_id: last.unwrap_or(known_to) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn era(posts: &[u64], before_id: u64) -> Era {
        let post = |&id: &u64| Post { id, ..Post::default() };
        Era { posts: posts.iter().map(post).collect(), before_id }
    }

    #[track_caller]
    fn assert_merged(eras: Vec<Era>, size: usize, posts: &[u64], before_id: u64) {
        let merged = Era::merged(eras, size);
        let ids: Vec<_> = merged.posts.iter().map(|post| post.id).collect();
        assert_eq!((&ids[..], merged.before_id), (posts, before_id));
    }

    #[test]
    fn parts_are_merged_as_far_back_as_all_of_them_are_known() {
        assert_merged(vec![], 3, &[], 0);
        assert_merged(vec![era(&[9, 5], 0)], 3, &[9, 5], 0);
        assert_merged(vec![era(&[9, 5], 0), era(&[7], 0)], 3, &[9, 7, 5], 0);
        assert_merged(vec![era(&[9, 5, 1], 0), era(&[7], 0)], 3, &[9, 7, 5], 5);
        assert_merged(vec![era(&[9, 5, 1], 1), era(&[8, 7, 6], 6)], 3, &[9, 8, 7], 7);
        // One has room for fewer, since they are long; of another, what was there is deleted.
        assert_merged(vec![era(&[9, 5, 1], 0), era(&[8], 8)], 3, &[9, 8], 8);
        assert_merged(vec![era(&[5, 1], 0), era(&[], 6)], 3, &[], 6);
    }
}
