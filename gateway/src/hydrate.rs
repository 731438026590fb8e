//! The second step of a view: what belongs to its entries, asked of all services at once, as the
//! viewer sees it; and the third: what is not for the viewer is left out.

use microblog_domain::{IdSet, UserId};
use microblog_proto::{
    gateway::{ListedUser, ViewedComment, ViewedPost},
    post::{self, Comment, Post},
};
use tonic::Status;

use crate::{
    mentions::Mentioned,
    people::{Blocked, Detail, People, Visit},
    present, refusal,
    rpc::Gateway,
    skeleton::Entry,
};

/// What is known about posts and their roots besides themselves.
pub(crate) struct Scene {
    /// Who wrote them.
    pub(crate) people: People,
    /// Whom they mention.
    pub(crate) mentioned: Mentioned,
    /// Which of them the viewer likes.
    pub(crate) liked: IdSet<u64>,
}

impl Gateway {
    /// Returns accounts as they are shown, without those that are gone and, unless blocked ones are
    /// to be shown, those who block the viewer or are blocked by them. Up to two calls at once:
    /// user.BatchGetUsers, relation.BatchGetRelations (not for an anonymous viewer); none if there
    /// are neither entries nor a host.
    pub(crate) async fn hydrate_accounts(
        &self,
        visit: Visit<'_>,
        mut entries: Vec<Entry>,
        blocked: Blocked,
    ) -> Result<Vec<ListedUser>, Status> {
        let ids = entries.iter().map(|entry| entry.user_id).collect();
        let mut people = self.people(visit, ids, Detail::BlocksAndMutes).await?;
        if blocked == Blocked::LeftOut {
            entries.retain(|entry| !people.is_blocked(entry.user_id));
        }
        Ok(entries.into_iter().filter_map(|entry| present::listed(entry, &mut people)).collect())
    }

    /// Returns comments as they are shown, without those by accounts that are gone, and by whom the
    /// viewer mutes, blocks or is blocked by. Up to three calls at once: user.BatchGetUsers,
    /// relation.BatchGetRelations (not for an anonymous viewer), user.BatchResolveNames (not where
    /// nobody is mentioned).
    pub(crate) async fn hydrate_comments(
        &self,
        visit: Visit<'_>,
        mut comments: Vec<Comment>,
    ) -> Result<Vec<ViewedComment>, Status> {
        let authors = comments.iter().map(|comment| comment.author_id).collect();
        let (people, mentioned) = tokio::join!(
            self.people(visit, authors, Detail::BlocksAndMutes),
            self.mentioned(&comments)
        );
        let (people, mentioned) = (people?, mentioned?);
        comments.retain(|comment| !people.is_hidden(comment.author_id));
        let shown = |comment| present::comment(comment, &people, &mentioned);
        Ok(comments.into_iter().filter_map(shown).collect())
    }

    /// Returns posts as they are shown, without those by accounts that are gone, and by whom the
    /// viewer mutes, blocks or is blocked by, unless the viewer asked for theirs. The calls of
    /// [`Gateway::scene`].
    pub(crate) async fn hydrate_posts(
        &self,
        visit: Visit<'_>,
        mut posts: Vec<Post>,
    ) -> Result<Vec<ViewedPost>, Status> {
        let scene = self.scene(visit, &posts).await?;
        let is_for_viewer = |author| visit.asks_for(author) || !scene.people.is_hidden(author);
        posts.retain(|post| is_for_viewer(post.author_id));
        // Nearly all are shown, and they are large: a vector that grows would move each several times.
        let mut shown = Vec::with_capacity(posts.len());
        shown.extend(posts.into_iter().filter_map(|post| present::post(post, &scene)));
        Ok(shown)
    }

    /// Returns what is known about posts and their roots. Up to four calls at once:
    /// user.BatchGetUsers, relation.BatchGetRelations (only about authors of whom the visit does
    /// not know) and post.BatchGetLiked (only about what somebody likes), neither of them for an
    /// anonymous viewer, user.BatchResolveNames (not where nobody is mentioned).
    ///
    /// What nobody likes, the viewer does not like: the likes of a post and their count change in
    /// one step, in Redis and in the archive, and come and go together between the two. The count
    /// was read after the call began, so a like that was answered before is in it, or taken back.
    pub(crate) async fn scene(&self, visit: Visit<'_>, posts: &[Post]) -> Result<Scene, Status> {
        let with_roots = || posts.iter().flat_map(|post| [Some(post), post.root.as_deref()]);
        let authors = with_roots().flatten().map(|post| post.author_id).collect();
        let liked = with_roots().flatten().filter(|post| post.likes > 0);
        let liked = liked.map(|post| post.id).collect();
        let (people, mentioned, liked) = tokio::join!(
            self.people(visit, authors, Detail::BlocksAndMutes),
            self.mentioned(posts),
            self.liked(visit.viewer, liked)
        );
        Ok(Scene { people: people?, mentioned: mentioned?, liked: liked? })
    }

    /// Returns which of the posts the viewer likes. One call; none for an anonymous viewer or where
    /// there are no posts.
    async fn liked(
        &self,
        viewer: Option<UserId>,
        post_ids: Vec<u64>,
    ) -> Result<IdSet<u64>, Status> {
        let Some(viewer) = viewer.filter(|_| !post_ids.is_empty()) else {
            return Ok(IdSet::default());
        };
        let request = post::BatchGetLikedRequest { user_id: viewer.get(), post_ids };
        let response = self.peers.post().batch_get_liked(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, &[]))?;
        Ok(response.into_inner().post_ids.into_iter().collect())
    }
}
