//! The gRPC face of the gateway: takes a call apart (token, request), hands it on, wraps the answer.
//! What a call does, and which calls it costs, stands at the method that it hands on to.

use std::time::Duration;

use microblog_proto::gateway::{self as pb, gateway_service_server::GatewayService};
use tonic::{Request, Response, Status};

use crate::{Limits, Peers, timelines::News, viewer::Token};

type Answer<T> = Result<Response<T>, Status>;

/// The gateway in one worker: no state but the way to its peers, the limits that it shares with the
/// process's other workers, and how it is configured.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(crate) peers: Peers,
    pub(crate) limits: Limits,
    /// How long a stream to which nothing comes goes on before its session is looked at again.
    pub(crate) session_check: Duration,
}

#[tonic::async_trait]
impl GatewayService for Gateway {
    type WatchHomeStream = News;

    async fn register(
        &self,
        request: Request<pb::RegisterRequest>,
    ) -> Answer<pb::RegisterResponse> {
        self.limits.check_registration(&request)?;
        Gateway::register(self, request.into_inner()).await.map(Response::new)
    }

    async fn check_availability(
        &self,
        request: Request<pb::CheckAvailabilityRequest>,
    ) -> Answer<pb::CheckAvailabilityResponse> {
        self.limits.check_availability(&request)?;
        Gateway::check_availability(self, request.into_inner()).await.map(Response::new)
    }

    async fn login(&self, request: Request<pb::LoginRequest>) -> Answer<pb::LoginResponse> {
        self.limits.check_login(&request)?;
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
        Gateway::view_following(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn view_followers(
        &self,
        request: Request<pb::ViewFollowersRequest>,
    ) -> Answer<pb::ViewFollowersResponse> {
        let token = Token::optional(request.metadata())?;
        Gateway::view_followers(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn view_mutuals(
        &self,
        request: Request<pb::ViewMutualsRequest>,
    ) -> Answer<pb::ViewMutualsResponse> {
        let token = Token::optional(request.metadata())?;
        Gateway::view_mutuals(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn view_common_following(
        &self,
        request: Request<pb::ViewCommonFollowingRequest>,
    ) -> Answer<pb::ViewCommonFollowingResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::view_common_following(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn view_followers_i_follow(
        &self,
        request: Request<pb::ViewFollowersIFollowRequest>,
    ) -> Answer<pb::ViewFollowersIFollowResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::view_followers_i_follow(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn view_blocks(
        &self,
        request: Request<pb::ViewBlocksRequest>,
    ) -> Answer<pb::ViewBlocksResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::view_blocks(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn view_mutes(
        &self,
        request: Request<pb::ViewMutesRequest>,
    ) -> Answer<pb::ViewMutesResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::view_mutes(self, token, request.into_inner()).await.map(Response::new)
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

    async fn view_home(
        &self,
        request: Request<pb::ViewHomeRequest>,
    ) -> Answer<pb::ViewHomeResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::view_home(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn view_friends(
        &self,
        request: Request<pb::ViewFriendsRequest>,
    ) -> Answer<pb::ViewFriendsResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::view_friends(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn view_user_timeline(
        &self,
        request: Request<pb::ViewUserTimelineRequest>,
    ) -> Answer<pb::ViewUserTimelineResponse> {
        let token = Token::optional(request.metadata())?;
        Gateway::view_user_timeline(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn count_new(
        &self,
        request: Request<pb::CountNewRequest>,
    ) -> Answer<pb::CountNewResponse> {
        let token = Token::required(request.metadata())?;
        Gateway::count_new(self, token, request.into_inner()).await.map(Response::new)
    }

    async fn watch_home(&self, request: Request<pb::WatchHomeRequest>) -> Answer<News> {
        let token = Token::required(request.metadata())?;
        Gateway::watch_home(self, token, request.into_inner()).await.map(Response::new)
    }
}
