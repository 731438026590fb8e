//! Hydration of posts: authors, mentions and the viewer's likes; and posts as the viewer sees them.

use microblog_domain::{IdSet, UserId};
use microblog_proto::{
    gateway::{RootState, ViewedPost},
    post::{self, Post},
};
use tonic::Status;

use super::{
    accounts::{HydratedAccounts, RelationDetail, hydrate_accounts},
    mentions::{Mentioned, resolve_mentions},
};
use crate::{context::ViewContext, errors, state::Gateway};

/// Returns a post with its root, or POST_NOT_FOUND. One call: post.GetPost.
pub(crate) async fn get_post(gateway: &Gateway, post_id: u64) -> Result<Post, Status> {
    let request = post::GetPostRequest { post_id, viewer_id: 0 };
    let response = gateway.peers.post().get_post(request).await;
    errors::required(errors::reply(response, &[("post_id", "post_id")])?.post)
}

/// Hydration state of posts and their roots.
pub(crate) struct HydratedPosts {
    authors: HydratedAccounts,
    mentioned: Mentioned,
    /// The posts that the viewer likes.
    liked: IdSet<u64>,
}

/// Returns the hydration state of posts and their roots. Up to four calls at once:
/// user.BatchGetUsers, relation.BatchGetRelations (only for authors whose relations the context
/// lacks) and post.BatchGetLiked (only for posts with likes), neither of them for an anonymous
/// viewer, user.BatchResolveNames (not without mentions).
///
/// The viewer does not like a post without likes: likes and their count change in one step, in
/// Redis and in the archive, and move between the two together. The count was read after the call
/// began, so it includes every like that was confirmed before and not taken back.
pub(crate) async fn hydrate_posts(
    gateway: &Gateway,
    context: ViewContext<'_>,
    posts: &[Post],
) -> Result<HydratedPosts, Status> {
    let with_roots = || posts.iter().flat_map(|post| [Some(post), post.root.as_deref()]).flatten();
    let author_ids = with_roots().map(|post| post.author_id).collect();
    let liked_ids = with_roots().filter(|post| post.likes > 0).map(|post| post.id).collect();
    let (authors, mentioned, liked) = tokio::join!(
        hydrate_accounts(gateway, context, author_ids, RelationDetail::BlocksAndMutes),
        resolve_mentions(gateway, posts),
        liked_by_viewer(gateway, context.viewer, liked_ids)
    );
    Ok(HydratedPosts { authors: authors?, mentioned: mentioned?, liked: liked? })
}

/// Returns the posts that the viewer likes. One call; none for an anonymous viewer or without
/// posts.
async fn liked_by_viewer(
    gateway: &Gateway,
    viewer: Option<UserId>,
    post_ids: Vec<u64>,
) -> Result<IdSet<u64>, Status> {
    let Some(viewer) = viewer.filter(|_| !post_ids.is_empty()) else {
        return Ok(IdSet::default());
    };
    let request = post::BatchGetLikedRequest { user_id: viewer.get(), post_ids };
    let response = gateway.peers.post().batch_get_liked(request).await;
    Ok(errors::reply(response, &[])?.post_ids.into_iter().collect())
}

/// Returns posts as the viewer sees them, without those of authors who are deleted or hidden from
/// the viewer, unless the viewer requested that author's posts. The calls of [`hydrate_posts`].
pub(crate) async fn viewed_posts(
    gateway: &Gateway,
    context: ViewContext<'_>,
    mut posts: Vec<Post>,
) -> Result<Vec<ViewedPost>, Status> {
    let hydrated = hydrate_posts(gateway, context, &posts).await?;
    let is_visible = |author| context.requests(author) || !hydrated.authors.is_hidden(author);
    posts.retain(|post| is_visible(post.author_id));
    // Most posts are shown, and they are large: a growing vector would move each several times.
    let mut viewed = Vec::with_capacity(posts.len());
    viewed.extend(posts.into_iter().filter_map(|post| hydrated.view(post)));
    Ok(viewed)
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
        post.liked = self.liked.contains(&post.id);
        self.mentioned.fill(&mut post);
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

#[cfg(test)]
mod tests {
    use microblog_proto::{
        relation::{Relation, RelationState},
        user::User,
    };

    use super::*;

    /// Returns a repost by 1 of a post by 2.
    fn repost() -> Post {
        let root = Post { id: 20, author_id: 2, text: "root".to_owned(), ..Post::default() };
        let root_id = root.id;
        Post { id: 10, author_id: 1, root_id, root: Some(Box::new(root)), ..Post::default() }
    }

    fn hydrated(users: &[u64], relations: Vec<Relation>) -> HydratedPosts {
        let user = |&id| User { id, name: format!("n{id}"), ..User::default() };
        let authors = HydratedAccounts::new(users.iter().map(user).collect(), relations);
        let liked = [20].into_iter().collect();
        HydratedPosts { authors, mentioned: Mentioned::default(), liked }
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
}
