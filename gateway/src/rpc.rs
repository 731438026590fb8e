//! The gRPC interface: decodes each request, calls its view or action, and encodes the response.
//! The function of a call documents what it does, and which calls of services it costs.

use microblog_proto::gateway::{
    self as pb,
    gateway_service_server::{GatewayService, GatewayServiceServer},
};
use tonic::{Request, Response, Status};

use crate::{
    actions::{accounts, posts, relations},
    context::Token,
    state::Gateway,
    views::{account_list, post, timeline, user, watch_home},
};

type Answer<T> = Result<Response<T>, Status>;

/// The gRPC service.
pub(crate) struct Rpc(Gateway);

impl Rpc {
    /// Returns the gRPC service, which rejects requests larger than `max_message_bytes`.
    pub(crate) fn into_server(
        gateway: Gateway,
        max_message_bytes: usize,
    ) -> GatewayServiceServer<Self> {
        GatewayServiceServer::new(Self(gateway)).max_decoding_message_size(max_message_bytes)
    }

    /// Answers a call that needs a session token.
    async fn signed_in<'a, Q, A, F>(
        &'a self,
        request: Request<Q>,
        call: impl FnOnce(&'a Gateway, Token, Q) -> F,
    ) -> Answer<A>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let token = Token::required(request.metadata())?;
        call(&self.0, token, request.into_inner()).await.map(Response::new)
    }

    /// Answers a call that works without a session token, too.
    async fn public<'a, Q, A, F>(
        &'a self,
        request: Request<Q>,
        call: impl FnOnce(&'a Gateway, Option<Token>, Q) -> F,
    ) -> Answer<A>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let token = Token::optional(request.metadata())?;
        call(&self.0, token, request.into_inner()).await.map(Response::new)
    }
}

#[tonic::async_trait]
impl GatewayService for Rpc {
    type WatchHomeStream = watch_home::HomeUpdates;

    async fn register(
        &self,
        request: Request<pb::RegisterRequest>,
    ) -> Answer<pb::RegisterResponse> {
        self.0.limits.check_registration(&request)?;
        accounts::register(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn check_availability(
        &self,
        request: Request<pb::CheckAvailabilityRequest>,
    ) -> Answer<pb::CheckAvailabilityResponse> {
        self.0.limits.check_availability(&request)?;
        accounts::check_availability(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn login(&self, request: Request<pb::LoginRequest>) -> Answer<pb::LoginResponse> {
        self.0.limits.check_login(&request)?;
        accounts::login(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn logout(&self, request: Request<pb::LogoutRequest>) -> Answer<pb::LogoutResponse> {
        self.signed_in(request, accounts::logout).await
    }

    async fn me(&self, request: Request<pb::MeRequest>) -> Answer<pb::MeResponse> {
        self.signed_in(request, user::me).await
    }

    async fn update_profile(
        &self,
        request: Request<pb::UpdateProfileRequest>,
    ) -> Answer<pb::UpdateProfileResponse> {
        self.signed_in(request, accounts::update_profile).await
    }

    async fn change_password(
        &self,
        request: Request<pb::ChangePasswordRequest>,
    ) -> Answer<pb::ChangePasswordResponse> {
        self.signed_in(request, accounts::change_password).await
    }

    async fn delete_account(
        &self,
        request: Request<pb::DeleteAccountRequest>,
    ) -> Answer<pb::DeleteAccountResponse> {
        self.signed_in(request, accounts::delete_account).await
    }

    async fn view_user(
        &self,
        request: Request<pb::ViewUserRequest>,
    ) -> Answer<pb::ViewUserResponse> {
        self.public(request, user::view_user).await
    }

    async fn follow(&self, request: Request<pb::FollowRequest>) -> Answer<pb::FollowResponse> {
        self.signed_in(request, relations::follow).await
    }

    async fn unfollow(
        &self,
        request: Request<pb::UnfollowRequest>,
    ) -> Answer<pb::UnfollowResponse> {
        self.signed_in(request, relations::unfollow).await
    }

    async fn block(&self, request: Request<pb::BlockRequest>) -> Answer<pb::BlockResponse> {
        self.signed_in(request, relations::block).await
    }

    async fn unblock(&self, request: Request<pb::UnblockRequest>) -> Answer<pb::UnblockResponse> {
        self.signed_in(request, relations::unblock).await
    }

    async fn mute(&self, request: Request<pb::MuteRequest>) -> Answer<pb::MuteResponse> {
        self.signed_in(request, relations::mute).await
    }

    async fn unmute(&self, request: Request<pb::UnmuteRequest>) -> Answer<pb::UnmuteResponse> {
        self.signed_in(request, relations::unmute).await
    }

    async fn remove_follower(
        &self,
        request: Request<pb::RemoveFollowerRequest>,
    ) -> Answer<pb::RemoveFollowerResponse> {
        self.signed_in(request, relations::remove_follower).await
    }

    async fn view_following(
        &self,
        request: Request<pb::ViewFollowingRequest>,
    ) -> Answer<pb::ViewFollowingResponse> {
        self.public(request, account_list::view_following).await
    }

    async fn view_followers(
        &self,
        request: Request<pb::ViewFollowersRequest>,
    ) -> Answer<pb::ViewFollowersResponse> {
        self.public(request, account_list::view_followers).await
    }

    async fn view_mutuals(
        &self,
        request: Request<pb::ViewMutualsRequest>,
    ) -> Answer<pb::ViewMutualsResponse> {
        self.public(request, account_list::view_mutuals).await
    }

    async fn view_common_following(
        &self,
        request: Request<pb::ViewCommonFollowingRequest>,
    ) -> Answer<pb::ViewCommonFollowingResponse> {
        self.signed_in(request, account_list::view_common_following).await
    }

    async fn view_followers_i_follow(
        &self,
        request: Request<pb::ViewFollowersIFollowRequest>,
    ) -> Answer<pb::ViewFollowersIFollowResponse> {
        self.signed_in(request, account_list::view_followers_i_follow).await
    }

    async fn view_blocks(
        &self,
        request: Request<pb::ViewBlocksRequest>,
    ) -> Answer<pb::ViewBlocksResponse> {
        self.signed_in(request, account_list::view_blocks).await
    }

    async fn view_mutes(
        &self,
        request: Request<pb::ViewMutesRequest>,
    ) -> Answer<pb::ViewMutesResponse> {
        self.signed_in(request, account_list::view_mutes).await
    }

    async fn publish(&self, request: Request<pb::PublishRequest>) -> Answer<pb::PublishResponse> {
        self.signed_in(request, posts::publish).await
    }

    async fn repost(&self, request: Request<pb::RepostRequest>) -> Answer<pb::RepostResponse> {
        self.signed_in(request, posts::repost).await
    }

    async fn delete_post(
        &self,
        request: Request<pb::DeletePostRequest>,
    ) -> Answer<pb::DeletePostResponse> {
        self.signed_in(request, posts::delete_post).await
    }

    async fn view_post(
        &self,
        request: Request<pb::ViewPostRequest>,
    ) -> Answer<pb::ViewPostResponse> {
        self.public(request, post::view_post).await
    }

    async fn like(&self, request: Request<pb::LikeRequest>) -> Answer<pb::LikeResponse> {
        self.signed_in(request, posts::like).await
    }

    async fn unlike(&self, request: Request<pb::UnlikeRequest>) -> Answer<pb::UnlikeResponse> {
        self.signed_in(request, posts::unlike).await
    }

    async fn view_likers(
        &self,
        request: Request<pb::ViewLikersRequest>,
    ) -> Answer<pb::ViewLikersResponse> {
        self.public(request, post::view_likers).await
    }

    async fn comment(&self, request: Request<pb::CommentRequest>) -> Answer<pb::CommentResponse> {
        self.signed_in(request, posts::comment).await
    }

    async fn delete_comment(
        &self,
        request: Request<pb::DeleteCommentRequest>,
    ) -> Answer<pb::DeleteCommentResponse> {
        self.signed_in(request, posts::delete_comment).await
    }

    async fn view_comments(
        &self,
        request: Request<pb::ViewCommentsRequest>,
    ) -> Answer<pb::ViewCommentsResponse> {
        self.public(request, post::view_comments).await
    }

    async fn view_reposts(
        &self,
        request: Request<pb::ViewRepostsRequest>,
    ) -> Answer<pb::ViewRepostsResponse> {
        self.public(request, post::view_reposts).await
    }

    async fn view_home(
        &self,
        request: Request<pb::ViewHomeRequest>,
    ) -> Answer<pb::ViewHomeResponse> {
        self.signed_in(request, timeline::view_home).await
    }

    async fn view_friends(
        &self,
        request: Request<pb::ViewFriendsRequest>,
    ) -> Answer<pb::ViewFriendsResponse> {
        self.signed_in(request, timeline::view_friends).await
    }

    async fn view_user_timeline(
        &self,
        request: Request<pb::ViewUserTimelineRequest>,
    ) -> Answer<pb::ViewUserTimelineResponse> {
        self.public(request, timeline::view_user_timeline).await
    }

    async fn count_new(
        &self,
        request: Request<pb::CountNewRequest>,
    ) -> Answer<pb::CountNewResponse> {
        self.signed_in(request, timeline::count_new).await
    }

    async fn watch_home(
        &self,
        request: Request<pb::WatchHomeRequest>,
    ) -> Answer<watch_home::HomeUpdates> {
        self.signed_in(request, watch_home::watch_home).await
    }
}
