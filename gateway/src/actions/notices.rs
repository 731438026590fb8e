//! MarkSeen.

use microblog_proto::{gateway, notice};
use tonic::Status;

use crate::{context::authenticate, credentials::Credentials, errors, state::Gateway};

/// Marks notices of the viewer as seen. 2 calls: user.Authenticate, then notice.MarkSeen.
pub(crate) async fn mark_seen(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::MarkSeenRequest,
) -> Result<gateway::MarkSeenResponse, Status> {
    const FIELDS: errors::Fields = &[("token", "token")];
    let user_id = authenticate(gateway, credentials).await?.get();
    let request = notice::MarkSeenRequest { user_id, token: request.token };
    errors::reply(gateway.peers.notice().mark_seen(request).await, FIELDS)?;
    Ok(gateway::MarkSeenResponse {})
}
