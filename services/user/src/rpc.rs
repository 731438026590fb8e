//! The gRPC handlers: decode, call, encode.

use std::sync::Arc;

use futures::{
    StreamExt as _, TryStreamExt as _,
    stream::{self, BoxStream},
};
use microblog_domain::{BATCH_MAX, PageSize, UserId};
use microblog_proto::user::{self as pb, user_service_server::UserService};
use microblog_record::stream_changes;
use microblog_storage::changes::FeedChanges;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use crate::{
    accounts::{Accounts, Batch, Found},
    changes::AccountChanges,
    error::Error,
    external_accounts::Ensured,
    name::Name,
    token::Token,
    verify, wire,
};

type RpcResult<T> = Result<Response<T>, Status>;

/// The handlers of `UserService`.
pub(crate) struct Rpc {
    accounts: Accounts,
    /// One check at a time: its statements take long.
    checks: Arc<Semaphore>,
}

impl Rpc {
    pub(crate) fn new(accounts: Accounts) -> Self {
        Self { accounts, checks: Arc::new(Semaphore::new(1)) }
    }
}

#[tonic::async_trait]
impl UserService for Rpc {
    async fn register(
        &self,
        request: Request<pb::RegisterRequest>,
    ) -> RpcResult<pb::RegisterResponse> {
        let request = wire::register(request.into_inner())?;
        let user = self.accounts.register(request).await?;
        Ok(Response::new(pb::RegisterResponse { user: Some(wire::user(user)) }))
    }

    async fn check_availability(
        &self,
        request: Request<pb::CheckAvailabilityRequest>,
    ) -> RpcResult<pb::CheckAvailabilityResponse> {
        let name = Name::parse("name", &request.get_ref().name).map_err(Error::from)?;
        let name_available = Some(self.accounts.is_free(&name).await?);
        Ok(Response::new(pb::CheckAvailabilityResponse { name_available }))
    }

    async fn import_users(
        &self,
        request: Request<pb::ImportUsersRequest>,
    ) -> RpcResult<pb::ImportUsersResponse> {
        let (entries, password) = wire::import_users(&request.into_inner())?;
        let imported = self.accounts.import(entries, password).await?;
        Ok(Response::new(wire::imported(imported)))
    }

    async fn login(&self, request: Request<pb::LoginRequest>) -> RpcResult<pb::LoginResponse> {
        let (login, password) = wire::login(&request.into_inner())?;
        let session = self.accounts.login(login, password).await?;
        Ok(Response::new(wire::session(session)))
    }

    async fn logout(&self, request: Request<pb::LogoutRequest>) -> RpcResult<pb::LogoutResponse> {
        self.accounts.logout(&request.into_inner().token).await?;
        Ok(Response::new(pb::LogoutResponse {}))
    }

    async fn authenticate(
        &self,
        request: Request<pb::AuthenticateRequest>,
    ) -> RpcResult<pb::AuthenticateResponse> {
        let (user, expires_at) = self.accounts.authenticate(&request.into_inner().token).await?;
        Ok(Response::new(pb::AuthenticateResponse {
            user_id: user.get(),
            expires_at: Some(expires_at.into()),
        }))
    }

    async fn change_password(
        &self,
        request: Request<pb::ChangePasswordRequest>,
    ) -> RpcResult<pb::ChangePasswordResponse> {
        let (id, current, new) = wire::change_password(&request.into_inner())?;
        self.accounts.change_password(id, current, new).await?;
        Ok(Response::new(pb::ChangePasswordResponse {}))
    }

    async fn get_user(
        &self,
        request: Request<pb::GetUserRequest>,
    ) -> RpcResult<pb::GetUserResponse> {
        let id = wire::user_id(request.get_ref().user_id)?;
        let user = self.accounts.get(id).await?;
        Ok(Response::new(pb::GetUserResponse { user: Some(wire::user(user)) }))
    }

    async fn batch_get_users(
        &self,
        request: Request<pb::BatchGetUsersRequest>,
    ) -> RpcResult<pb::BatchGetUsersResponse> {
        let pb::BatchGetUsersRequest { user_ids, names, session_token } = request.get_ref();
        let ids = UserId::parse_list("user_ids", user_ids, BATCH_MAX).map_err(Error::from)?;
        let names = wire::possible_names(names)?;
        let session = match session_token.as_str() {
            "" => None,
            token => Some(Token::parse(token).ok_or(Error::TokenInvalid)?),
        };
        let found = self.accounts.batch(Batch { ids, names, session }).await?;
        Ok(Response::new(pb::BatchGetUsersResponse {
            users: found.users.into_iter().map(wire::user).collect(),
            named: found.named.into_iter().map(wire::named_user).collect(),
            session_user_id: found.session.map_or(0, UserId::get),
        }))
    }

    async fn get_user_by_name(
        &self,
        request: Request<pb::GetUserByNameRequest>,
    ) -> RpcResult<pb::GetUserByNameResponse> {
        let name = Name::parse("name", &request.get_ref().name).map_err(Error::from)?;
        let user = self.accounts.get_by_name(&name).await?;
        Ok(Response::new(pb::GetUserByNameResponse { user: Some(wire::user(user)) }))
    }

    async fn batch_resolve_names(
        &self,
        request: Request<pb::BatchResolveNamesRequest>,
    ) -> RpcResult<pb::BatchResolveNamesResponse> {
        let names = wire::possible_names(&request.get_ref().names)?;
        let Found { named, .. } = self.accounts.batch(Batch { names, ..Batch::default() }).await?;
        let users = named.into_iter().map(wire::named_user).collect();
        Ok(Response::new(pb::BatchResolveNamesResponse { users }))
    }

    async fn get_account(
        &self,
        request: Request<pb::GetAccountRequest>,
    ) -> RpcResult<pb::GetAccountResponse> {
        let id = wire::user_id(request.get_ref().user_id)?;
        let record = self.accounts.get_own(id).await?;
        Ok(Response::new(pb::GetAccountResponse { account: Some(wire::account(record)) }))
    }

    async fn update_profile(
        &self,
        request: Request<pb::UpdateProfileRequest>,
    ) -> RpcResult<pb::UpdateProfileResponse> {
        let (id, changes) = wire::update_profile(request.into_inner())?;
        let user = self.accounts.update(id, changes).await?;
        Ok(Response::new(pb::UpdateProfileResponse { user: Some(wire::user(user)) }))
    }

    async fn delete_user(
        &self,
        request: Request<pb::DeleteUserRequest>,
    ) -> RpcResult<pb::DeleteUserResponse> {
        let (id, password) = wire::delete_user(&request.into_inner())?;
        self.accounts.delete(id, password.as_ref()).await?;
        Ok(Response::new(pb::DeleteUserResponse {}))
    }

    async fn ensure_user(
        &self,
        request: Request<pb::EnsureUserRequest>,
    ) -> RpcResult<pb::EnsureUserResponse> {
        let request = wire::ensure_user(request.get_ref())?;
        let Ensured { user, is_new } = self.accounts.ensure(request).await?;
        let user = Some(wire::user(user));
        Ok(Response::new(pb::EnsureUserResponse { user, created: is_new }))
    }

    async fn batch_resolve_external_ids(
        &self,
        request: Request<pb::BatchResolveExternalIdsRequest>,
    ) -> RpcResult<pb::BatchResolveExternalIdsResponse> {
        let ids = wire::external_ids(request.get_ref())?;
        let accounts = self.accounts.resolve_external(&ids).await?;
        let found = ids.into_iter().zip(accounts).filter_map(|(id, user)| Some((id, user?)));
        let users = found.map(wire::external_user).collect();
        Ok(Response::new(pb::BatchResolveExternalIdsResponse { users }))
    }

    async fn list_deletions(
        &self,
        request: Request<pb::ListDeletionsRequest>,
    ) -> RpcResult<pb::ListDeletionsResponse> {
        let size = PageSize::parse(request.get_ref().page_size).map_err(Error::from)?;
        let ids = self.accounts.deletions(size.get()).await?;
        let user_ids = ids.into_iter().map(UserId::get).collect();
        Ok(Response::new(pb::ListDeletionsResponse { user_ids }))
    }

    async fn confirm_deletion(
        &self,
        request: Request<pb::ConfirmDeletionRequest>,
    ) -> RpcResult<pb::ConfirmDeletionResponse> {
        let id = wire::user_id(request.get_ref().user_id)?;
        self.accounts.confirm_deletion(id).await?;
        Ok(Response::new(pb::ConfirmDeletionResponse {}))
    }

    type VerifyStream = BoxStream<'static, Result<pb::VerifyResponse, Status>>;
    type StreamChangesStream = BoxStream<'static, Result<pb::StreamChangesResponse, Status>>;

    async fn verify(&self, _: Request<pb::VerifyRequest>) -> RpcResult<Self::VerifyStream> {
        let (accounts, checks) = (self.accounts.clone(), self.checks.clone());
        // The semaphore is never closed.
        let reports = stream::once(async move { (checks.acquire_owned().await, accounts) });
        let reports = reports.flat_map(move |(turn, accounts)| {
            verify::reports(accounts).inspect(move |_| _ = &turn)
        });
        Ok(Response::new(reports.map_ok(wire::report).map_err(Status::from).boxed()))
    }

    async fn stream_changes(
        &self,
        request: Request<pb::StreamChangesRequest>,
    ) -> RpcResult<Self::StreamChangesStream> {
        let query = request.into_inner().query.unwrap_or_default();
        let changes = FeedChanges::<AccountChanges>::new(self.accounts.tables.clone());
        let pages = stream_changes(changes, query).await?;
        let response = |page| pb::StreamChangesResponse { page: Some(page) };
        Ok(Response::new(pages.map_ok(response).boxed()))
    }
}
