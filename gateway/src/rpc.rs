//! The gRPC face of the gateway: takes a call apart (token, request), hands it on, wraps the answer.
//! What a call does, and which calls it costs, stands at the method that it hands on to.

use microblog_proto::gateway::{self as pb, gateway_service_server::GatewayService};
use tonic::{Request, Response, Status};

use crate::{Peers, skeleton::List, viewer::Token};

/// The gateway in one worker: no state but the way to its peers.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(crate) peers: Peers,
}

impl Gateway {
    pub(crate) fn new(peers: Peers) -> Self {
        Self { peers }
    }
}

#[tonic::async_trait]
impl GatewayService for Gateway {
    async fn register(
        &self,
        request: Request<pb::RegisterRequest>,
    ) -> Result<Response<pb::RegisterResponse>, Status> {
        Gateway::register(self, request.into_inner()).await.map(Response::new)
    }

    async fn check_availability(
        &self,
        request: Request<pb::CheckAvailabilityRequest>,
    ) -> Result<Response<pb::CheckAvailabilityResponse>, Status> {
        Gateway::check_availability(self, request.into_inner()).await.map(Response::new)
    }

    async fn login(
        &self,
        request: Request<pb::LoginRequest>,
    ) -> Result<Response<pb::LoginResponse>, Status> {
        Gateway::login(self, request.into_inner()).await.map(Response::new)
    }

    async fn logout(
        &self,
        request: Request<pb::LogoutRequest>,
    ) -> Result<Response<pb::LogoutResponse>, Status> {
        let token = Token::required(request.metadata())?;
        Gateway::logout(self, token).await.map(Response::new)
    }

    async fn me(
        &self,
        request: Request<pb::MeRequest>,
    ) -> Result<Response<pb::MeResponse>, Status> {
        let token = Token::required(request.metadata())?;
        Gateway::me(self, token).await.map(Response::new)
    }

    async fn update_profile(
        &self,
        request: Request<pb::UpdateProfileRequest>,
    ) -> Result<Response<pb::UpdateProfileResponse>, Status> {
        let token = Token::required(request.metadata())?;
        Gateway::update_profile(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn change_password(
        &self,
        request: Request<pb::ChangePasswordRequest>,
    ) -> Result<Response<pb::ChangePasswordResponse>, Status> {
        let token = Token::required(request.metadata())?;
        Gateway::change_password(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn delete_account(
        &self,
        request: Request<pb::DeleteAccountRequest>,
    ) -> Result<Response<pb::DeleteAccountResponse>, Status> {
        let token = Token::required(request.metadata())?;
        Gateway::delete_account(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn view_user(
        &self,
        request: Request<pb::ViewUserRequest>,
    ) -> Result<Response<pb::ViewUserResponse>, Status> {
        let token = Token::optional(request.metadata())?;
        Gateway::view_user(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn follow(
        &self,
        request: Request<pb::FollowRequest>,
    ) -> Result<Response<pb::FollowResponse>, Status> {
        let token = Token::required(request.metadata())?;
        Gateway::follow(self, token, request.into_inner().user).await.map(Response::new)
    }

    async fn unfollow(
        &self,
        request: Request<pb::UnfollowRequest>,
    ) -> Result<Response<pb::UnfollowResponse>, Status> {
        let token = Token::required(request.metadata())?;
        Gateway::unfollow(self, token, request.into_inner().user).await.map(Response::new)
    }

    async fn block(
        &self,
        request: Request<pb::BlockRequest>,
    ) -> Result<Response<pb::BlockResponse>, Status> {
        let token = Token::required(request.metadata())?;
        Gateway::block(self, token, request.into_inner().user).await.map(Response::new)
    }

    async fn unblock(
        &self,
        request: Request<pb::UnblockRequest>,
    ) -> Result<Response<pb::UnblockResponse>, Status> {
        let token = Token::required(request.metadata())?;
        Gateway::unblock(self, token, request.into_inner().user).await.map(Response::new)
    }

    async fn mute(
        &self,
        request: Request<pb::MuteRequest>,
    ) -> Result<Response<pb::MuteResponse>, Status> {
        let token = Token::required(request.metadata())?;
        Gateway::mute(self, token, request.into_inner().user).await.map(Response::new)
    }

    async fn unmute(
        &self,
        request: Request<pb::UnmuteRequest>,
    ) -> Result<Response<pb::UnmuteResponse>, Status> {
        let token = Token::required(request.metadata())?;
        Gateway::unmute(self, token, request.into_inner().user).await.map(Response::new)
    }

    async fn remove_follower(
        &self,
        request: Request<pb::RemoveFollowerRequest>,
    ) -> Result<Response<pb::RemoveFollowerResponse>, Status> {
        let token = Token::required(request.metadata())?;
        Gateway::remove_follower(self, token, request.into_inner().user).await.map(Response::new)
    }

    async fn view_following(
        &self,
        request: Request<pb::ViewFollowingRequest>,
    ) -> Result<Response<pb::ViewFollowingResponse>, Status> {
        let token = Token::optional(request.metadata())?;
        let pb::ViewFollowingRequest { user, page_size, page_token } = request.into_inner();
        let page = self.view_list(List::Following, token, user, page_size, page_token).await?;
        let (users, next_page_token) = (page.users, page.next_page_token);
        Ok(Response::new(pb::ViewFollowingResponse { users, next_page_token }))
    }

    async fn view_followers(
        &self,
        request: Request<pb::ViewFollowersRequest>,
    ) -> Result<Response<pb::ViewFollowersResponse>, Status> {
        let token = Token::optional(request.metadata())?;
        let pb::ViewFollowersRequest { user, page_size, page_token } = request.into_inner();
        let page = self.view_list(List::Followers, token, user, page_size, page_token).await?;
        let (users, next_page_token) = (page.users, page.next_page_token);
        Ok(Response::new(pb::ViewFollowersResponse { users, next_page_token }))
    }

    async fn view_mutuals(
        &self,
        request: Request<pb::ViewMutualsRequest>,
    ) -> Result<Response<pb::ViewMutualsResponse>, Status> {
        let token = Token::optional(request.metadata())?;
        let pb::ViewMutualsRequest { user, page_size, page_token } = request.into_inner();
        let page = self.view_list(List::Mutuals, token, user, page_size, page_token).await?;
        let (users, next_page_token) = (page.users, page.next_page_token);
        Ok(Response::new(pb::ViewMutualsResponse { users, next_page_token }))
    }

    async fn view_common_following(
        &self,
        request: Request<pb::ViewCommonFollowingRequest>,
    ) -> Result<Response<pb::ViewCommonFollowingResponse>, Status> {
        let token = Token::required(request.metadata())?;
        let pb::ViewCommonFollowingRequest { user, page_size, page_token } = request.into_inner();
        let list = List::CommonFollowing;
        let page = self.view_shared_list(list, token, user, page_size, page_token).await?;
        let (users, next_page_token) = (page.users, page.next_page_token);
        Ok(Response::new(pb::ViewCommonFollowingResponse { users, next_page_token }))
    }

    async fn view_followers_i_follow(
        &self,
        request: Request<pb::ViewFollowersIFollowRequest>,
    ) -> Result<Response<pb::ViewFollowersIFollowResponse>, Status> {
        let token = Token::required(request.metadata())?;
        let pb::ViewFollowersIFollowRequest { user, page_size, page_token } = request.into_inner();
        let list = List::FollowersIFollow;
        let page = self.view_shared_list(list, token, user, page_size, page_token).await?;
        let (users, next_page_token) = (page.users, page.next_page_token);
        Ok(Response::new(pb::ViewFollowersIFollowResponse { users, next_page_token }))
    }

    async fn view_blocks(
        &self,
        request: Request<pb::ViewBlocksRequest>,
    ) -> Result<Response<pb::ViewBlocksResponse>, Status> {
        let token = Token::required(request.metadata())?;
        let pb::ViewBlocksRequest { page_size, page_token } = request.into_inner();
        let page = self.view_own_list(List::Blocks, token, page_size, page_token).await?;
        let (users, next_page_token) = (page.users, page.next_page_token);
        Ok(Response::new(pb::ViewBlocksResponse { users, next_page_token }))
    }

    async fn view_mutes(
        &self,
        request: Request<pb::ViewMutesRequest>,
    ) -> Result<Response<pb::ViewMutesResponse>, Status> {
        let token = Token::required(request.metadata())?;
        let pb::ViewMutesRequest { page_size, page_token } = request.into_inner();
        let page = self.view_own_list(List::Mutes, token, page_size, page_token).await?;
        let (users, next_page_token) = (page.users, page.next_page_token);
        Ok(Response::new(pb::ViewMutesResponse { users, next_page_token }))
    }
}
