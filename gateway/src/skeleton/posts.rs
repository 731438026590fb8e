//! A post, and the lists of what belongs to it. Asks the post service only, through nobody's eyes:
//! what the viewer has to do with it comes with hydration.

use microblog_domain::PostId;
use microblog_proto::{
    gateway::{ListedUser, ViewedComment, ViewedPost},
    post::{self, Comment, CommentOrder, Post},
};
use tonic::Status;

use super::{Entry, Listing, Slice};
use crate::{
    people::{Blocked, Visit},
    refusal,
    rpc::Gateway,
};

/// The fields of the requests of lists that come from the caller.
const FIELDS: refusal::Fields = &[("post_id", "post_id"), ("page_token", "page_token")];

/// Who likes a post.
pub(crate) struct Likers(pub(crate) PostId);

/// The comments on a post.
pub(crate) struct Comments {
    /// On what.
    pub(crate) post: PostId,
    /// In which order.
    pub(crate) order: CommentOrder,
}

/// The reposts of a post.
pub(crate) struct Reposts(pub(crate) PostId);

impl Gateway {
    /// Returns a comment on a post, or COMMENT_NOT_FOUND. One call: post.GetComment.
    pub(crate) async fn find_comment(
        &self,
        post_id: u64,
        comment_id: u64,
    ) -> Result<Comment, Status> {
        let request = post::GetCommentRequest { post_id, comment_id };
        let response = self.peers.post().get_comment(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, FIELDS))?;
        refusal::sent(response.into_inner().comment)
    }

    /// Returns a post with its root, or POST_NOT_FOUND. One call: post.GetPost.
    pub(crate) async fn post(&self, post_id: u64) -> Result<Post, Status> {
        let request = post::GetPostRequest { post_id, viewer_id: 0 };
        let response = self.peers.post().get_post(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, FIELDS))?;
        refusal::sent(response.into_inner().post)
    }
}

impl Listing for Likers {
    type Entry = Entry;
    type Shown = ListedUser;

    async fn slice(
        &self,
        gateway: &Gateway,
        size: usize,
        page_token: String,
    ) -> Result<Slice<Entry>, Status> {
        let post_id = self.0.get();
        let request = post::ListLikersRequest { post_id, page_size: size as i32, page_token };
        let response = gateway.peers.post().list_likers(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, FIELDS))?.into_inner();
        let entries = response.likes.into_iter().map(Entry::from).collect();
        Ok(Slice { entries, next_page_token: response.next_page_token })
    }

    async fn hydrate(
        &self,
        gateway: &Gateway,
        visit: Visit<'_>,
        entries: Vec<Entry>,
    ) -> Result<Vec<ListedUser>, Status> {
        gateway.hydrate_accounts(visit, entries, Blocked::LeftOut).await
    }
}

impl Listing for Comments {
    type Entry = Comment;
    type Shown = ViewedComment;

    async fn slice(
        &self,
        gateway: &Gateway,
        size: usize,
        page_token: String,
    ) -> Result<Slice<Comment>, Status> {
        let (post_id, order, page_size) = (self.post.get(), self.order.into(), size as i32);
        let request = post::ListCommentsRequest { post_id, order, page_size, page_token };
        let response = gateway.peers.post().list_comments(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, FIELDS))?.into_inner();
        Ok(Slice { entries: response.comments, next_page_token: response.next_page_token })
    }

    async fn hydrate(
        &self,
        gateway: &Gateway,
        visit: Visit<'_>,
        entries: Vec<Comment>,
    ) -> Result<Vec<ViewedComment>, Status> {
        gateway.hydrate_comments(visit, entries).await
    }
}

impl Listing for Reposts {
    type Entry = Post;
    type Shown = ViewedPost;

    async fn slice(
        &self,
        gateway: &Gateway,
        size: usize,
        page_token: String,
    ) -> Result<Slice<Post>, Status> {
        let (post_id, page_size) = (self.0.get(), size as i32);
        let request = post::ListRepostsRequest { post_id, viewer_id: 0, page_size, page_token };
        let response = gateway.peers.post().list_reposts(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, FIELDS))?.into_inner();
        Ok(Slice { entries: response.posts, next_page_token: response.next_page_token })
    }

    async fn hydrate(
        &self,
        gateway: &Gateway,
        visit: Visit<'_>,
        entries: Vec<Post>,
    ) -> Result<Vec<ViewedPost>, Status> {
        gateway.hydrate_posts(visit, entries).await
    }
}
