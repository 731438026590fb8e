//! Publish, Repost, DeletePost, Like, Unlike, Comment, DeleteComment.
//!
//! The gateway adds two things to the post service. A viewer cannot repost, like, comment or answer
//! if the author is deleted or there is a block between them; undoing is always possible. And the
//! names that a new text mentions are resolved.

use microblog_chassis::status;
use microblog_domain::{CommentId, PostId, UserId};
use microblog_proto::{
    common::ErrorReason,
    gateway,
    post::{self, Post},
};
use tonic::Status;

use crate::{
    context::{Subject, ViewContext, authenticate, authenticate_limited},
    credentials::Credentials,
    errors,
    hydration::{
        accounts::{RelationDetail, hydrate_accounts, reject_any_block},
        mentions::fill_mentions,
        posts::get_post,
    },
    state::Gateway,
};

/// The fields of the post service's requests that the caller controls.
const FIELDS: errors::Fields = &[
    ("request_id", "request_id"),
    ("post_id", "post_id"),
    ("text", "text"),
    ("in_reply_to_id", "in_reply_to_id"),
    ("comment_id", "comment_id"),
];

/// Creates a post. Up to 3 calls: user.Authenticate, then post.CreatePost, then
/// user.BatchResolveNames (not without mentions). A rejection by the rate limit costs only the
/// first.
pub(crate) async fn publish(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::PublishRequest,
) -> Result<gateway::PublishResponse, Status> {
    let limit = &gateway.limits.viewers().posts;
    let author_id = authenticate_limited(gateway, credentials, limit).await?.get();
    let gateway::PublishRequest { request_id, text } = request;
    let request = post::CreatePostRequest { author_id, request_id, text };
    let response = errors::reply(gateway.peers.post().create_post(request).await, FIELDS)?;
    let mut post = errors::required(response.post)?;
    fill_mentions(gateway, post.id, &mut post.entities).await?;
    Ok(gateway::PublishResponse { post: Some(post) })
}

/// Reposts a post. Up to 6 calls: user.Authenticate, then those of [`check_target`], then
/// post.Repost, then user.BatchResolveNames (not without mentions). A rejection by the rate limit
/// costs only the first.
///
/// The response has no root: only a view decides what the viewer sees of it.
pub(crate) async fn repost(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::RepostRequest,
) -> Result<gateway::RepostResponse, Status> {
    let gateway::RepostRequest { request_id, post_id, text } = request;
    let limit = &gateway.limits.viewers().posts;
    let viewer = authenticate_limited(gateway, credentials, limit).await?;
    check_target(gateway, viewer, post_id, PostAction::Repost).await?;
    let request = post::RepostRequest { author_id: viewer.get(), request_id, post_id, text };
    let response = errors::reply(gateway.peers.post().repost(request).await, FIELDS)?;
    let mut post = Post { root: None, ..errors::required(response.post)? };
    fill_mentions(gateway, post.id, &mut post.entities).await?;
    Ok(gateway::RepostResponse { post: Some(post) })
}

/// Deletes a post. 2 calls: user.Authenticate, then post.DeletePost.
pub(crate) async fn delete_post(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::DeletePostRequest,
) -> Result<gateway::DeletePostResponse, Status> {
    let author_id = authenticate(gateway, credentials).await?.get();
    let request = post::DeletePostRequest { author_id, post_id: request.post_id };
    errors::reply(gateway.peers.post().delete_post(request).await, FIELDS)?;
    Ok(gateway::DeletePostResponse {})
}

/// Makes the viewer like a post. Up to 5 calls: user.Authenticate, then those of [`check_target`],
/// then post.Like. A rejection by the rate limit costs only the first.
pub(crate) async fn like(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::LikeRequest,
) -> Result<gateway::LikeResponse, Status> {
    let post_id = request.post_id;
    let limit = &gateway.limits.viewers().likes;
    let viewer = authenticate_limited(gateway, credentials, limit).await?;
    check_target(gateway, viewer, post_id, PostAction::React).await?;
    let request = post::LikeRequest { user_id: viewer.get(), post_id };
    let response = errors::reply(gateway.peers.post().like(request).await, FIELDS)?;
    let liked_at = errors::required(response.like)?.liked_at;
    Ok(gateway::LikeResponse { liked_at, likes: response.likes })
}

/// Ends a like. 2 calls: user.Authenticate, then post.Unlike.
///
/// The gateway does not check whether the viewer may see the post, so the response reveals nothing
/// of it.
pub(crate) async fn unlike(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::UnlikeRequest,
) -> Result<gateway::UnlikeResponse, Status> {
    let limit = &gateway.limits.viewers().changes;
    let user_id = authenticate_limited(gateway, credentials, limit).await?.get();
    let request = post::UnlikeRequest { user_id, post_id: request.post_id };
    errors::reply(gateway.peers.post().unlike(request).await, FIELDS)?;
    Ok(gateway::UnlikeResponse {})
}

/// Adds a comment. Up to 7 calls: user.Authenticate, then those of [`check_target`], then
/// post.AddComment, then user.BatchResolveNames (not without mentions). A rejection by the rate
/// limit costs only the first.
pub(crate) async fn comment(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::CommentRequest,
) -> Result<gateway::CommentResponse, Status> {
    let gateway::CommentRequest { request_id, post_id, text, in_reply_to_id } = request;
    let limit = &gateway.limits.viewers().comments;
    let viewer = authenticate_limited(gateway, credentials, limit).await?;
    let action = match in_reply_to_id {
        0 => PostAction::React,
        comment_id => PostAction::Answer(comment_id),
    };
    check_target(gateway, viewer, post_id, action).await?;
    let author_id = viewer.get();
    let request = post::AddCommentRequest { author_id, request_id, post_id, text, in_reply_to_id };
    let response = errors::reply(gateway.peers.post().add_comment(request).await, FIELDS)?;
    let mut comment = errors::required(response.comment)?;
    fill_mentions(gateway, comment.id, &mut comment.entities).await?;
    Ok(gateway::CommentResponse { comment: Some(comment) })
}

/// Deletes a comment. 2 calls: user.Authenticate, then post.DeleteComment.
pub(crate) async fn delete_comment(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::DeleteCommentRequest,
) -> Result<gateway::DeleteCommentResponse, Status> {
    let user_id = authenticate(gateway, credentials).await?.get();
    let gateway::DeleteCommentRequest { post_id, comment_id } = request;
    let request = post::DeleteCommentRequest { user_id, post_id, comment_id };
    errors::reply(gateway.peers.post().delete_comment(request).await, FIELDS)?;
    Ok(gateway::DeleteCommentResponse {})
}

/// What a viewer does with a post of any author.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PostAction {
    /// To like it, or to comment on it.
    React,
    /// To answer the comment with this id on it.
    Answer(u64),
    /// To repost it, with its root if it has one.
    Repost,
}

/// Checks that the viewer may act on a post. The authors of the post and of a reposted root must
/// exist (POST_NOT_FOUND), as must the author of an answered comment (COMMENT_NOT_FOUND), and there
/// must be no block between any of them and the viewer. The first of several errors wins: the
/// post's author before the root's and the comment's; for one author, a missing account, then its
/// block, then the viewer's.
///
/// Up to 4 calls: post.GetPost ∥ post.GetComment (only for an answer), then user.BatchGetUsers ∥
/// relation.BatchGetRelations, if the viewer is not the only author.
///
/// A block or a deletion after these calls takes effect after the action.
async fn check_target(
    gateway: &Gateway,
    viewer: UserId,
    post_id: u64,
    action: PostAction,
) -> Result<(), Status> {
    let (authors, commenter) = tokio::join!(
        post_authors(gateway, post_id, action),
        comment_author(gateway, post_id, action)
    );
    let subjects = authors?.into_iter().map(Subject::PostAuthor);
    let subjects = subjects.chain(commenter?.map(Subject::CommentAuthor));
    let subjects: Vec<Subject> = subjects.filter(|subject| subject.id() != viewer.get()).collect();
    let ids = subjects.iter().map(|subject| subject.id()).collect();
    let context = ViewContext::new(Some(viewer));
    let accounts = hydrate_accounts(gateway, context, ids, RelationDetail::Blocks).await?;
    subjects.into_iter().try_for_each(|subject| accounts.check(subject, reject_any_block))
}

/// Returns the authors of a post and of a reposted root; none if the action itself decides.
async fn post_authors(
    gateway: &Gateway,
    post_id: u64,
    action: PostAction,
) -> Result<Vec<u64>, Status> {
    // The post service rejects an invalid id, and reports it with all other invalid fields.
    if PostId::new(post_id).is_none() {
        return Ok(Vec::new());
    }
    let post = match get_post(gateway, None, post_id).await {
        // This may be a retry, whose answer is the repost of the first attempt. The post service
        // rejects any other: ids are never reused, so the post does not come back.
        Err(status)
            if action == PostAction::Repost
                && status::reason_of(&status) == Some(ErrorReason::PostNotFound) =>
        {
            return Ok(Vec::new());
        }
        post => post?,
    };
    let root = post.root.filter(|_| action == PostAction::Repost).map(|root| root.author_id);
    let mut authors: Vec<u64> = std::iter::once(post.author_id).chain(root).collect();
    authors.dedup();
    Ok(authors)
}

/// Returns the author of the comment that is answered; `None` if there is none or the action itself
/// decides.
async fn comment_author(
    gateway: &Gateway,
    post_id: u64,
    action: PostAction,
) -> Result<Option<u64>, Status> {
    let PostAction::Answer(comment_id) = action else { return Ok(None) };
    // The post service rejects an invalid id, and reports it with all other invalid fields.
    if PostId::new(post_id).is_none() || CommentId::new(comment_id).is_none() {
        return Ok(None);
    }
    let request = post::GetCommentRequest { post_id, comment_id };
    let response = gateway.peers.post().get_comment(request).await;
    match errors::reply(response, &[("post_id", "post_id")]) {
        // This may be a retry, whose answer is the comment of the first attempt. The post service
        // rejects any other: ids are never reused.
        Err(status) if status::reason_of(&status) == Some(ErrorReason::CommentNotFound) => Ok(None),
        response => errors::required(response?.comment).map(|comment| Some(comment.author_id)),
    }
}
