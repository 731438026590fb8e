//! What a viewer does to posts, of others or their own: like and comment, and take it back.
//!
//! Each is one call that writes, after calls that only read, so a caller who hangs up leaves it
//! done or not done. What the gateway adds to the post service is that nobody likes or comments on
//! what is by an account that is gone, or past a block. What was done before can be taken back.

use microblog_proto::{gateway, post};
use tonic::Status;

use crate::{blocks::Act, refusal, rpc::Gateway, viewer::Token};

/// The fields of the post service's requests that come from the caller.
const FIELDS: refusal::Fields = &[
    ("request_id", "request_id"),
    ("post_id", "post_id"),
    ("text", "text"),
    ("in_reply_to_id", "in_reply_to_id"),
    ("comment_id", "comment_id"),
];

impl Gateway {
    /// Makes the viewer like a post. Up to 5 calls: user.Authenticate, then post.GetPost, then
    /// user.BatchGetUsers ∥ relation.BatchGetRelations (not for the viewer's own post), then
    /// post.Like. Who likes too fast costs the first one alone.
    pub(crate) async fn like(
        &self,
        token: Token,
        request: gateway::LikeRequest,
    ) -> Result<gateway::LikeResponse, Status> {
        let post_id = request.post_id;
        let viewer = self.limited_viewer(token, &self.limits.viewers().likes).await?;
        self.refuse_past_block(viewer, post_id, Act::React).await?;
        let user_id = viewer.get();
        let response = self.peers.post().like(post::LikeRequest { user_id, post_id }).await;
        let response = response.map_err(|status| refusal::pass_on(status, FIELDS))?.into_inner();
        let liked_at = refusal::sent(response.like)?.liked_at;
        Ok(gateway::LikeResponse { liked_at, likes: response.likes })
    }

    /// Takes a like back. 2 calls: user.Authenticate, then post.Unlike.
    ///
    /// Nobody is asked whether the viewer may see the post, so nothing is told of it.
    pub(crate) async fn unlike(
        &self,
        token: Token,
        request: gateway::UnlikeRequest,
    ) -> Result<gateway::UnlikeResponse, Status> {
        let user_id = self.viewer(token).await?.get();
        let request = post::UnlikeRequest { user_id, post_id: request.post_id };
        let response = self.peers.post().unlike(request).await;
        response.map_err(|status| refusal::pass_on(status, FIELDS))?;
        Ok(gateway::UnlikeResponse {})
    }

    /// Adds a comment. Up to 7 calls: user.Authenticate, then post.GetPost ∥ post.GetComment (only for
    /// an answer), then user.BatchGetUsers ∥ relation.BatchGetRelations (not where both are the
    /// viewer's own), then post.AddComment, then user.BatchResolveNames (not where nobody is
    /// mentioned). Who comments too fast costs the first one alone.
    pub(crate) async fn comment(
        &self,
        token: Token,
        request: gateway::CommentRequest,
    ) -> Result<gateway::CommentResponse, Status> {
        let gateway::CommentRequest { request_id, post_id, text, in_reply_to_id } = request;
        let viewer = self.limited_viewer(token, &self.limits.viewers().comments).await?;
        let act = if in_reply_to_id == 0 { Act::React } else { Act::Answer(in_reply_to_id) };
        self.refuse_past_block(viewer, post_id, act).await?;
        let author_id = viewer.get();
        let request =
            post::AddCommentRequest { author_id, request_id, post_id, text, in_reply_to_id };
        let response = self.peers.post().add_comment(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, FIELDS))?.into_inner();
        let comment = self.with_mentions(refusal::sent(response.comment)?).await?;
        Ok(gateway::CommentResponse { comment: Some(comment) })
    }

    /// Deletes a comment. 2 calls: user.Authenticate, then post.DeleteComment.
    pub(crate) async fn delete_comment(
        &self,
        token: Token,
        request: gateway::DeleteCommentRequest,
    ) -> Result<gateway::DeleteCommentResponse, Status> {
        let user_id = self.viewer(token).await?.get();
        let gateway::DeleteCommentRequest { post_id, comment_id } = request;
        let request = post::DeleteCommentRequest { user_id, post_id, comment_id };
        let response = self.peers.post().delete_comment(request).await;
        response.map_err(|status| refusal::pass_on(status, FIELDS))?;
        Ok(gateway::DeleteCommentResponse {})
    }
}
