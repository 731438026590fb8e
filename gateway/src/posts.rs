//! What a viewer does with posts of their own: publish, repost, delete.
//!
//! Each is one call that writes, after calls that only read, so a caller who hangs up leaves it
//! done or not done. What the gateway adds to the post service is that nobody reposts past a block,
//! or what is by an account that is gone, and which accounts a text mentions.

use microblog_proto::{gateway, post};
use tonic::Status;

use crate::{blocks::Act, refusal, rpc::Gateway, viewer::Token};

/// The fields of the post service's requests that come from the caller.
const FIELDS: refusal::Fields =
    &[("request_id", "request_id"), ("post_id", "post_id"), ("text", "text")];

impl Gateway {
    /// Makes a post. Up to 3 calls: user.Authenticate, then post.CreatePost, then
    /// user.BatchResolveNames (not where nobody is mentioned). Who posts too fast costs the first one
    /// alone.
    pub(crate) async fn publish(
        &self,
        token: Token,
        request: gateway::PublishRequest,
    ) -> Result<gateway::PublishResponse, Status> {
        let author_id = self.limited_viewer(token, &self.limits.viewers().posts).await?.get();
        let gateway::PublishRequest { request_id, text } = request;
        let request = post::CreatePostRequest { author_id, request_id, text };
        let response = self.peers.post().create_post(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, FIELDS))?.into_inner();
        let post = self.with_mentions(refusal::sent(response.post)?).await?;
        Ok(gateway::PublishResponse { post: Some(post) })
    }

    /// Reposts a post. Up to 6 calls: user.Authenticate, then post.GetPost, then user.BatchGetUsers ∥
    /// relation.BatchGetRelations (not where all is the viewer's own), then post.Repost, then
    /// user.BatchResolveNames (not where nobody is mentioned). Who posts too fast costs the first one
    /// alone.
    ///
    /// The root is not told: what a viewer sees of it, `present.rs` alone decides.
    pub(crate) async fn repost(
        &self,
        token: Token,
        request: gateway::RepostRequest,
    ) -> Result<gateway::RepostResponse, Status> {
        let gateway::RepostRequest { request_id, post_id, text } = request;
        let viewer = self.limited_viewer(token, &self.limits.viewers().posts).await?;
        self.refuse_past_block(viewer, post_id, Act::Repost).await?;
        let author_id = viewer.get();
        let request = post::RepostRequest { author_id, request_id, post_id, text };
        let response = self.peers.post().repost(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, FIELDS))?.into_inner();
        let post = post::Post { root: None, ..refusal::sent(response.post)? };
        Ok(gateway::RepostResponse { post: Some(self.with_mentions(post).await?) })
    }

    /// Deletes a post. 2 calls: user.Authenticate, then post.DeletePost.
    pub(crate) async fn delete_post(
        &self,
        token: Token,
        request: gateway::DeletePostRequest,
    ) -> Result<gateway::DeletePostResponse, Status> {
        let author_id = self.viewer(token).await?.get();
        let request = post::DeletePostRequest { author_id, post_id: request.post_id };
        let response = self.peers.post().delete_post(request).await;
        response.map_err(|status| refusal::pass_on(status, FIELDS))?;
        Ok(gateway::DeletePostResponse {})
    }
}
