//! Register, CheckAvailability, Login, Logout, UpdateProfile, ChangePassword, DeleteAccount.

use std::time::Duration;

use microblog_chassis as chassis;
use microblog_proto::{gateway, user};
use tokio::time::timeout;
use tonic::{Request, Status};

use super::deletions;
use crate::{context::authenticate_limited, credentials::Credentials, errors, state::Gateway};

/// How long DeleteAccount waits for the other services to delete the account's data. The account
/// itself is deleted by then; the deletion job does the rest.
const CLEANUP_MAX: Duration = Duration::from_secs(2);

/// Creates an account. One call: user.Register.
pub(crate) async fn register(
    gateway: &Gateway,
    request: Request<gateway::RegisterRequest>,
) -> Result<gateway::RegisterResponse, Status> {
    const FIELDS: errors::Fields = &[
        ("request_id", "request_id"),
        ("email", "email"),
        ("name", "name"),
        ("password", "password"),
        ("display_name", "display_name"),
    ];
    gateway.limits.check_registration(&request)?;
    let gateway::RegisterRequest { request_id, email, name, password, display_name } =
        request.into_inner();
    let request = user::RegisterRequest { request_id, email, name, password, display_name };
    let response = errors::reply(gateway.peers.user().register(request).await, FIELDS)?;
    Ok(gateway::RegisterResponse { user: response.user })
}

/// Returns whether a name is free to register. One call: user.CheckAvailability.
pub(crate) async fn check_availability(
    gateway: &Gateway,
    request: Request<gateway::CheckAvailabilityRequest>,
) -> Result<gateway::CheckAvailabilityResponse, Status> {
    gateway.limits.check_availability(&request)?;
    let request = user::CheckAvailabilityRequest { name: request.into_inner().name };
    let response = gateway.peers.user().check_availability(request).await;
    let user::CheckAvailabilityResponse { name_available } =
        errors::reply(response, &[("name", "name")])?;
    Ok(gateway::CheckAvailabilityResponse { name_available })
}

/// Opens a session. One call: user.Login.
pub(crate) async fn login(
    gateway: &Gateway,
    request: Request<gateway::LoginRequest>,
) -> Result<gateway::LoginResponse, Status> {
    const FIELDS: errors::Fields = &[("login", "login"), ("password", "password")];
    gateway.limits.check_login(&request)?;
    let gateway::LoginRequest { login, password } = request.into_inner();
    let request = user::LoginRequest { login, password };
    let response = errors::reply(gateway.peers.user().login(request).await, FIELDS)?;
    let user::LoginResponse { token, expires_at, user } = response;
    Ok(gateway::LoginResponse { token, expires_at, user })
}

/// Ends the session of a token, which need not be valid any more. One call: user.Logout.
pub(crate) async fn logout(
    gateway: &Gateway,
    credentials: Credentials,
    _request: gateway::LogoutRequest,
) -> Result<gateway::LogoutResponse, Status> {
    let request = user::LogoutRequest { token: credentials.into_token()? };
    errors::reply(gateway.peers.user().logout(request).await, &[])?;
    Ok(gateway::LogoutResponse {})
}

/// Changes the viewer's profile. 2 calls: user.Authenticate, then user.UpdateProfile.
pub(crate) async fn update_profile(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::UpdateProfileRequest,
) -> Result<gateway::UpdateProfileResponse, Status> {
    let limit = &gateway.limits.viewers().changes;
    let user_id = authenticate_limited(gateway, credentials, limit).await?.get();
    let request = user::UpdateProfileRequest { user_id, changes: request.changes };
    let response = gateway.peers.user().update_profile(request).await;
    let response = errors::reply(response, &[("changes", "changes")])?;
    Ok(gateway::UpdateProfileResponse { user: response.user })
}

/// Sets a new password. 2 calls: user.Authenticate, then user.ChangePassword. A rejection by the
/// rate limit costs only the first.
pub(crate) async fn change_password(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::ChangePasswordRequest,
) -> Result<gateway::ChangePasswordResponse, Status> {
    const FIELDS: errors::Fields =
        &[("current_password", "current_password"), ("new_password", "new_password")];
    let limit = &gateway.limits.viewers().passwords;
    let user_id = authenticate_limited(gateway, credentials, limit).await?.get();
    let gateway::ChangePasswordRequest { current_password, new_password } = request;
    let request = user::ChangePasswordRequest { user_id, current_password, new_password };
    errors::reply(gateway.peers.user().change_password(request).await, FIELDS)?;
    Ok(gateway::ChangePasswordResponse {})
}

/// Deletes the viewer's account. 6 calls: user.Authenticate, then user.DeleteUser, then
/// relation.ForgetUser ∥ post.ForgetUser ∥ timeline.ForgetUser, then user.ConfirmDeletion. All but
/// the first complete even if the caller disconnects.
///
/// After user.DeleteUser the account is deleted and the answer is OK. If a later call fails, the
/// deletion job repeats it.
pub(crate) async fn delete_account(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::DeleteAccountRequest,
) -> Result<gateway::DeleteAccountResponse, Status> {
    let limit = &gateway.limits.viewers().passwords;
    let user_id = authenticate_limited(gateway, credentials, limit).await?.get();
    let request = user::DeleteUserRequest { user_id, password: request.password };
    let peers = gateway.peers.clone();
    chassis::mutate(async move {
        let response = peers.user().delete_user(request).await;
        errors::reply(response, &[("password", "password")])?;
        match timeout(CLEANUP_MAX, deletions::finish(&peers, user_id)).await {
            Ok(Ok(())) => {}
            Ok(Err(status)) => {
                tracing::warn!(code = ?status.code(), "account deletion failed, left to the job");
            }
            Err(_elapsed) => tracing::warn!("account deletion timed out, left to the job"),
        }
        Ok(gateway::DeleteAccountResponse {})
    })
    .await
}
