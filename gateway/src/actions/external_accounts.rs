//! EnsureUser and BatchResolveExternalIds: accounts that other systems identify. Only for service
//! callers.

use microblog_chassis::context::as_system;
use microblog_proto::{gateway, user};
use tonic::Status;

use crate::{callers::AuthenticatedCaller, errors, state::Gateway};

/// Returns the account of an external id, and creates it if there is none. One call: user.EnsureUser.
pub(crate) async fn ensure_user(
    gateway: &Gateway,
    caller: AuthenticatedCaller,
    request: gateway::EnsureUserRequest,
) -> Result<gateway::EnsureUserResponse, Status> {
    const FIELDS: errors::Fields = &[
        ("issuer", "issuer"),
        ("external_id", "external_id"),
        ("name", "name"),
        ("display_name", "display_name"),
    ];
    let gateway::EnsureUserRequest { issuer, external_id, name, display_name } = request;
    caller.check_issuer(&issuer)?;
    let request = user::EnsureUserRequest { issuer, external_id, name, display_name };
    let response = as_system(async { gateway.peers.user().ensure_user(request).await }).await;
    let user::EnsureUserResponse { user, created } = errors::reply(response, FIELDS)?;
    Ok(gateway::EnsureUserResponse { user, created })
}

/// Returns the accounts of external ids. One call: user.BatchResolveExternalIds.
pub(crate) async fn batch_resolve_external_ids(
    gateway: &Gateway,
    caller: AuthenticatedCaller,
    request: gateway::BatchResolveExternalIdsRequest,
) -> Result<gateway::BatchResolveExternalIdsResponse, Status> {
    const FIELDS: errors::Fields = &[("issuer", "issuer"), ("external_ids", "external_ids")];
    let gateway::BatchResolveExternalIdsRequest { issuer, external_ids } = request;
    caller.check_issuer(&issuer)?;
    let request = user::BatchResolveExternalIdsRequest { issuer, external_ids };
    let response =
        as_system(async { gateway.peers.user().batch_resolve_external_ids(request).await }).await;
    let users = errors::reply(response, FIELDS)?.users;
    Ok(gateway::BatchResolveExternalIdsResponse { users })
}
