//! The gRPC face of the gateway: takes a call apart (token, request), hands it on, wraps the answer.
//! What a call does, and which calls it costs, stands at the method that it hands on to.

use microblog_proto::gateway::{self as pb, gateway_service_server::GatewayService};
use tonic::{Request, Response, Status};

use crate::{Peers, pages::Page, skeleton::List, viewer::Token};

type Answer<T> = Result<Response<T>, Status>;

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
    ) -> Answer<pb::RegisterResponse> {
        Gateway::register(self, request.into_inner()).await.map(Response::new)
    }

    async fn check_availability(
        &self,
        request: Request<pb::CheckAvailabilityRequest>,
    ) -> Answer<pb::CheckAvailabilityResponse> {
        Gateway::check_availability(self, request.into_inner()).await.map(Response::new)
    }

    async fn login(&self, request: Request<pb::LoginRequest>) -> Answer<pb::LoginResponse> {
        Gateway::login(self, request.into_inner()).await.map(Response::new)
    }

    async fn logout(&self, request: Request<pb::LogoutRequest>) -> Answer<pb::LogoutResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::logout(self, token).await.map(Response::new)
    }

    async fn me(&self, request: Request<pb::MeRequest>) -> Answer<pb::MeResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::me(self, token).await.map(Response::new)
    }

    async fn update_profile(
        &self,
        request: Request<pb::UpdateProfileRequest>,
    ) -> Answer<pb::UpdateProfileResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::update_profile(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn change_password(
        &self,
        request: Request<pb::ChangePasswordRequest>,
    ) -> Answer<pb::ChangePasswordResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::change_password(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn delete_account(
        &self,
        request: Request<pb::DeleteAccountRequest>,
    ) -> Answer<pb::DeleteAccountResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::delete_account(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn view_user(
        &self,
        request: Request<pb::ViewUserRequest>,
    ) -> Answer<pb::ViewUserResponse> {
        let token = Token::optional(request.metadata())?;
        Gateway::view_user(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn follow(&self, request: Request<pb::FollowRequest>) -> Answer<pb::FollowResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::follow(self, token, request.into_inner().user).await.map(Response::new)
    }

    async fn unfollow(
        &self,
        request: Request<pb::UnfollowRequest>,
    ) -> Answer<pb::UnfollowResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::unfollow(self, token, request.into_inner().user).await.map(Response::new)
    }

    async fn block(&self, request: Request<pb::BlockRequest>) -> Answer<pb::BlockResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::block(self, token, request.into_inner().user).await.map(Response::new)
    }

    async fn unblock(&self, request: Request<pb::UnblockRequest>) -> Answer<pb::UnblockResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::unblock(self, token, request.into_inner().user).await.map(Response::new)
    }

    async fn mute(&self, request: Request<pb::MuteRequest>) -> Answer<pb::MuteResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::mute(self, token, request.into_inner().user).await.map(Response::new)
    }

    async fn unmute(&self, request: Request<pb::UnmuteRequest>) -> Answer<pb::UnmuteResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::unmute(self, token, request.into_inner().user).await.map(Response::new)
    }

    async fn remove_follower(
        &self,
        request: Request<pb::RemoveFollowerRequest>,
    ) -> Answer<pb::RemoveFollowerResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::remove_follower(self, token, request.into_inner().user).await.map(Response::new)
    }

    async fn view_following(
        &self,
        request: Request<pb::ViewFollowingRequest>,
    ) -> Answer<pb::ViewFollowingResponse> {
        let token = Token::optional(request.metadata())?;
        let pb::ViewFollowingRequest { user, page_size, page_token } = request.into_inner();
        let page = self.view_list(List::Following, token, user, page_size, page_token).await?;
        let Page { entries: users, next_page_token } = page;
        Ok(Response::new(pb::ViewFollowingResponse { users, next_page_token }))
    }

    async fn view_followers(
        &self,
        request: Request<pb::ViewFollowersRequest>,
    ) -> Answer<pb::ViewFollowersResponse> {
        let token = Token::optional(request.metadata())?;
        let pb::ViewFollowersRequest { user, page_size, page_token } = request.into_inner();
        let page = self.view_list(List::Followers, token, user, page_size, page_token).await?;
        let Page { entries: users, next_page_token } = page;
        Ok(Response::new(pb::ViewFollowersResponse { users, next_page_token }))
    }

    async fn view_mutuals(
        &self,
        request: Request<pb::ViewMutualsRequest>,
    ) -> Answer<pb::ViewMutualsResponse> {
        let token = Token::optional(request.metadata())?;
        let pb::ViewMutualsRequest { user, page_size, page_token } = request.into_inner();
        let page = self.view_list(List::Mutuals, token, user, page_size, page_token).await?;
        let Page { entries: users, next_page_token } = page;
        Ok(Response::new(pb::ViewMutualsResponse { users, next_page_token }))
    }

    async fn view_common_following(
        &self,
        request: Request<pb::ViewCommonFollowingRequest>,
    ) -> Answer<pb::ViewCommonFollowingResponse> {
        let token = Token::required(request.metadata())?;
        let pb::ViewCommonFollowingRequest { user, page_size, page_token } = request.into_inner();
        let list = List::CommonFollowing;
        let page = self.view_shared_list(list, token, user, page_size, page_token).await?;
        let Page { entries: users, next_page_token } = page;
        Ok(Response::new(pb::ViewCommonFollowingResponse { users, next_page_token }))
    }

    async fn view_followers_i_follow(
        &self,
        request: Request<pb::ViewFollowersIFollowRequest>,
    ) -> Answer<pb::ViewFollowersIFollowResponse> {
        let token = Token::required(request.metadata())?;
        let pb::ViewFollowersIFollowRequest { user, page_size, page_token } = request.into_inner();
        let list = List::FollowersIFollow;
        let page = self.view_shared_list(list, token, user, page_size, page_token).await?;
        let Page { entries: users, next_page_token } = page;
        Ok(Response::new(pb::ViewFollowersIFollowResponse { users, next_page_token }))
    }

    async fn view_blocks(
        &self,
        request: Request<pb::ViewBlocksRequest>,
    ) -> Answer<pb::ViewBlocksResponse> {
        let token = Token::required(request.metadata())?;
        let pb::ViewBlocksRequest { page_size, page_token } = request.into_inner();
        let page = self.view_own_list(List::Blocks, token, page_size, page_token).await?;
        let Page { entries: users, next_page_token } = page;
        Ok(Response::new(pb::ViewBlocksResponse { users, next_page_token }))
    }

    async fn view_mutes(
        &self,
        request: Request<pb::ViewMutesRequest>,
    ) -> Answer<pb::ViewMutesResponse> {
        let token = Token::required(request.metadata())?;
        let pb::ViewMutesRequest { page_size, page_token } = request.into_inner();
        let page = self.view_own_list(List::Mutes, token, page_size, page_token).await?;
        let Page { entries: users, next_page_token } = page;
        Ok(Response::new(pb::ViewMutesResponse { users, next_page_token }))
    }

    async fn publish(&self, request: Request<pb::PublishRequest>) -> Answer<pb::PublishResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::publish(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn repost(&self, request: Request<pb::RepostRequest>) -> Answer<pb::RepostResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::repost(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn delete_post(
        &self,
        request: Request<pb::DeletePostRequest>,
    ) -> Answer<pb::DeletePostResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::delete_post(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn view_post(
        &self,
        request: Request<pb::ViewPostRequest>,
    ) -> Answer<pb::ViewPostResponse> {
        let token = Token::optional(request.metadata())?;
        Gateway::view_post(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn like(&self, request: Request<pb::LikeRequest>) -> Answer<pb::LikeResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::like(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn unlike(&self, request: Request<pb::UnlikeRequest>) -> Answer<pb::UnlikeResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::unlike(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn view_likers(
        &self,
        request: Request<pb::ViewLikersRequest>,
    ) -> Answer<pb::ViewLikersResponse> {
        let token = Token::optional(request.metadata())?;
        Gateway::view_likers(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn comment(&self, request: Request<pb::CommentRequest>) -> Answer<pb::CommentResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::comment(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn delete_comment(
        &self,
        request: Request<pb::DeleteCommentRequest>,
    ) -> Answer<pb::DeleteCommentResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::delete_comment(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn view_comments(
        &self,
        request: Request<pb::ViewCommentsRequest>,
    ) -> Answer<pb::ViewCommentsResponse> {
        let token = Token::optional(request.metadata())?;
        Gateway::view_comments(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn view_reposts(
        &self,
        request: Request<pb::ViewRepostsRequest>,
    ) -> Answer<pb::ViewRepostsResponse> {
        let token = Token::optional(request.metadata())?;
        Gateway::view_reposts(self, token, request.into_inner()).await.map(Response::new)
    }
}
