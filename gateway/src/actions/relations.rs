//! Follow, Unfollow, Block, Unblock, Mute, Unmute, RemoveFollower.
//!
//! The gateway checks that an account to follow, block or mute exists. The calls that undo
//! something accept the id of an account that is deleted.

use microblog_proto::{gateway, relation};
use tonic::Status;

use crate::{
    context::{AccountRef, account_id, authenticate_limited, profile},
    credentials::Credentials,
    errors,
    state::Gateway,
};

/// The fields of the relation service's requests that hold the account from the caller's request.
const FIELDS: errors::Fields = &[("target_id", "user"), ("follower_id", "user")];

/// Makes the viewer follow an account. 3 calls: user.Authenticate, then user.GetUser or
/// user.GetUserByName, then relation.Follow. A rejection by the rate limit costs only the first.
///
/// If the account is deleted meanwhile, the relation service rejects the follow, or the deletion
/// ends it.
pub(crate) async fn follow(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::FollowRequest,
) -> Result<gateway::FollowResponse, Status> {
    let target = AccountRef::parse_only(request.user)?;
    let limit = &gateway.limits.viewers().follows;
    let follower_id = authenticate_limited(gateway, credentials, limit).await?.get();
    let target_id = profile(gateway, &target).await?.id;
    let request = relation::FollowRequest { follower_id, target_id };
    let response = errors::reply(gateway.peers.relation().follow(request).await, FIELDS)?;
    let since = errors::required(response.edge)?.since;
    Ok(gateway::FollowResponse { relation: response.state, since })
}

/// Ends a follow of the viewer. 2 calls by id: user.Authenticate, then relation.Unfollow; 3 by
/// name, with user.GetUserByName beside the first.
pub(crate) async fn unfollow(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::UnfollowRequest,
) -> Result<gateway::UnfollowResponse, Status> {
    let (follower_id, target_id) = viewer_and_any(gateway, credentials, request.user).await?;
    let request = relation::UnfollowRequest { follower_id, target_id };
    let response = errors::reply(gateway.peers.relation().unfollow(request).await, FIELDS)?;
    Ok(gateway::UnfollowResponse { relation: response.state })
}

/// Blocks an account. 3 calls: user.Authenticate ∥ user.GetUser or user.GetUserByName, then
/// relation.Block.
pub(crate) async fn block(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::BlockRequest,
) -> Result<gateway::BlockResponse, Status> {
    let (user_id, target_id) = viewer_and_existing(gateway, credentials, request.user).await?;
    let request = relation::BlockRequest { user_id, target_id };
    errors::reply(gateway.peers.relation().block(request).await, FIELDS)?;
    Ok(gateway::BlockResponse {})
}

/// Ends a block. 2 calls by id: user.Authenticate, then relation.Unblock; 3 by name, with
/// user.GetUserByName beside the first.
pub(crate) async fn unblock(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::UnblockRequest,
) -> Result<gateway::UnblockResponse, Status> {
    let (user_id, target_id) = viewer_and_any(gateway, credentials, request.user).await?;
    let request = relation::UnblockRequest { user_id, target_id };
    errors::reply(gateway.peers.relation().unblock(request).await, FIELDS)?;
    Ok(gateway::UnblockResponse {})
}

/// Mutes an account. 3 calls: user.Authenticate ∥ user.GetUser or user.GetUserByName, then
/// relation.Mute.
pub(crate) async fn mute(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::MuteRequest,
) -> Result<gateway::MuteResponse, Status> {
    let (user_id, target_id) = viewer_and_existing(gateway, credentials, request.user).await?;
    let request = relation::MuteRequest { user_id, target_id };
    errors::reply(gateway.peers.relation().mute(request).await, FIELDS)?;
    Ok(gateway::MuteResponse {})
}

/// Ends a mute. 2 calls by id: user.Authenticate, then relation.Unmute; 3 by name, with
/// user.GetUserByName beside the first.
pub(crate) async fn unmute(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::UnmuteRequest,
) -> Result<gateway::UnmuteResponse, Status> {
    let (user_id, target_id) = viewer_and_any(gateway, credentials, request.user).await?;
    let request = relation::UnmuteRequest { user_id, target_id };
    errors::reply(gateway.peers.relation().unmute(request).await, FIELDS)?;
    Ok(gateway::UnmuteResponse {})
}

/// Ends a follow of the viewer's follower. 2 calls by id: user.Authenticate, then
/// relation.RemoveFollower; 3 by name, with user.GetUserByName beside the first.
pub(crate) async fn remove_follower(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::RemoveFollowerRequest,
) -> Result<gateway::RemoveFollowerResponse, Status> {
    let (user_id, follower_id) = viewer_and_any(gateway, credentials, request.user).await?;
    let request = relation::RemoveFollowerRequest { user_id, follower_id };
    let response = errors::reply(gateway.peers.relation().remove_follower(request).await, FIELDS)?;
    Ok(gateway::RemoveFollowerResponse { relation: response.state })
}

/// Returns the ids of the viewer, within a rate limit, and of an existing account.
async fn viewer_and_existing(
    gateway: &Gateway,
    credentials: Credentials,
    user: Option<gateway::UserRef>,
) -> Result<(u64, u64), Status> {
    let user = AccountRef::parse_only(user)?;
    let limit = &gateway.limits.viewers().changes;
    let viewer = authenticate_limited(gateway, credentials, limit);
    let (viewer, target) = tokio::join!(viewer, profile(gateway, &user));
    Ok((viewer?.get(), target?.id))
}

/// Returns the ids of the viewer, within a rate limit, and of an account, which may be deleted if the
/// caller sent its id.
async fn viewer_and_any(
    gateway: &Gateway,
    credentials: Credentials,
    user: Option<gateway::UserRef>,
) -> Result<(u64, u64), Status> {
    let user = AccountRef::parse_only(user)?;
    let limit = &gateway.limits.viewers().changes;
    let viewer = authenticate_limited(gateway, credentials, limit);
    let (viewer, target) = tokio::join!(viewer, account_id(gateway, &user));
    Ok((viewer?.get(), target?.get()))
}
