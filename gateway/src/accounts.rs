//! Registration, sessions, passwords, and the end of an account.

use std::time::Duration;

use microblog_chassis as chassis;
use microblog_proto::{gateway, user};
use tokio::time::timeout;
use tonic::Status;

use crate::{deletions, refusal, rpc::Gateway, viewer::Token};

/// How long the caller of DeleteAccount waits for the other services to forget the account. It is
/// gone by then; what is left is done in the background.
const FORGETTING_MAX: Duration = Duration::from_secs(2);

impl Gateway {
    /// Creates an account. One call: user.Register.
    pub(crate) async fn register(
        &self,
        request: gateway::RegisterRequest,
    ) -> Result<gateway::RegisterResponse, Status> {
        const FIELDS: refusal::Fields = &[
            ("request_id", "request_id"),
            ("email", "email"),
            ("name", "name"),
            ("password", "password"),
            ("display_name", "display_name"),
        ];
        let gateway::RegisterRequest { request_id, email, name, password, display_name } = request;
        let request = user::RegisterRequest { request_id, email, name, password, display_name };
        let response = self.peers.user().register(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, FIELDS))?;
        Ok(gateway::RegisterResponse { user: response.into_inner().user })
    }

    /// Says whether a name is free to register. One call: user.CheckAvailability.
    pub(crate) async fn check_availability(
        &self,
        request: gateway::CheckAvailabilityRequest,
    ) -> Result<gateway::CheckAvailabilityResponse, Status> {
        let request = user::CheckAvailabilityRequest { name: request.name };
        let response = self.peers.user().check_availability(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, &[("name", "name")]))?;
        let user::CheckAvailabilityResponse { name_available } = response.into_inner();
        Ok(gateway::CheckAvailabilityResponse { name_available })
    }

    /// Opens a session. One call: user.Login.
    pub(crate) async fn login(
        &self,
        request: gateway::LoginRequest,
    ) -> Result<gateway::LoginResponse, Status> {
        const FIELDS: refusal::Fields = &[("login", "login"), ("password", "password")];
        let gateway::LoginRequest { login, password } = request;
        let response = self.peers.user().login(user::LoginRequest { login, password }).await;
        let response = response.map_err(|status| refusal::pass_on(status, FIELDS))?.into_inner();
        let user::LoginResponse { token, expires_at, user } = response;
        Ok(gateway::LoginResponse { token, expires_at, user })
    }

    /// Ends the session of a token, also of one that is not valid any more. One call: user.Logout.
    pub(crate) async fn logout(&self, token: Token) -> Result<gateway::LogoutResponse, Status> {
        let request = user::LogoutRequest { token: token.into_inner() };
        let response = self.peers.user().logout(request).await;
        response.map_err(|status| refusal::pass_on(status, &[]))?;
        Ok(gateway::LogoutResponse {})
    }

    /// Sets a new password. 2 calls: user.Authenticate, then user.ChangePassword.
    pub(crate) async fn change_password(
        &self,
        token: Token,
        request: gateway::ChangePasswordRequest,
    ) -> Result<gateway::ChangePasswordResponse, Status> {
        const FIELDS: refusal::Fields =
            &[("current_password", "current_password"), ("new_password", "new_password")];
        let viewer = self.limited_viewer(token, &self.limits.viewers().passwords).await?;
        let gateway::ChangePasswordRequest { current_password, new_password } = request;
        let user_id = viewer.get();
        let request = user::ChangePasswordRequest { user_id, current_password, new_password };
        let response = self.peers.user().change_password(request).await;
        response.map_err(|status| refusal::pass_on(status, FIELDS))?;
        Ok(gateway::ChangePasswordResponse {})
    }

    /// Deletes the viewer's account. 6 calls: user.Authenticate, then user.DeleteUser, then
    /// relation.ForgetUser ∥ post.ForgetUser ∥ timeline.ForgetUser, then user.ConfirmDeletion; all
    /// but the first run to their end though the caller hangs up.
    ///
    /// From the second on the account is deleted and the answer is OK: where the others fail, the
    /// relay of `deletions.rs` repeats them.
    pub(crate) async fn delete_account(
        &self,
        token: Token,
        request: gateway::DeleteAccountRequest,
    ) -> Result<gateway::DeleteAccountResponse, Status> {
        let viewer = self.limited_viewer(token, &self.limits.viewers().passwords).await?;
        let request = user::DeleteUserRequest { user_id: viewer.get(), password: request.password };
        let peers = self.peers.clone();
        chassis::mutate(async move {
            let response = peers.user().delete_user(request).await;
            response.map_err(|status| refusal::pass_on(status, &[("password", "password")]))?;
            match timeout(FORGETTING_MAX, deletions::finish(&peers, viewer.get())).await {
                Ok(Ok(())) => {}
                Ok(Err(status)) => {
                    tracing::warn!(code = ?status.code(), "a deletion is left to the relay");
                }
                Err(_) => tracing::warn!("a deletion takes long and is left to the relay"),
            }
            Ok(gateway::DeleteAccountResponse {})
        })
        .await
    }
}
