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
    views::{account_list, post, posts as viewed_posts, timeline, user, users, watch_home},
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

    /// Answers a call without a session token, which checks the limits of the client's address.
    async fn open<'a, Q, A, F>(
        &'a self,
        request: Request<Q>,
        call: impl FnOnce(&'a Gateway, Request<Q>) -> F,
    ) -> Answer<A>
    where
        F: Future<Output = Result<A, Status>>,
    {
        call(&self.0, request).await.map(Response::new)
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

/// Implements the methods of the service: their kind, and the module with the functions of the same
/// names that answer them.
macro_rules! methods {
    ($($kind:ident $module:ident { $($method:ident($request:ident) -> $response:ident;)* })*) => {
        #[tonic::async_trait]
        impl GatewayService for Rpc {
            $($(async fn $method(
                &self,
                request: Request<pb::$request>,
            ) -> Answer<pb::$response> {
                self.$kind(request, $module::$method).await
            })*)*

            type WatchHomeStream = watch_home::HomeUpdates;

            async fn watch_home(
                &self,
                request: Request<pb::WatchHomeRequest>,
            ) -> Answer<Self::WatchHomeStream> {
                self.signed_in(request, watch_home::watch_home).await
            }
        }
    };
}

methods! {
    open accounts {
        register(RegisterRequest) -> RegisterResponse;
        check_availability(CheckAvailabilityRequest) -> CheckAvailabilityResponse;
        login(LoginRequest) -> LoginResponse;
    }
    signed_in accounts {
        logout(LogoutRequest) -> LogoutResponse;
        update_profile(UpdateProfileRequest) -> UpdateProfileResponse;
        change_password(ChangePasswordRequest) -> ChangePasswordResponse;
        delete_account(DeleteAccountRequest) -> DeleteAccountResponse;
    }
    signed_in user {
        me(MeRequest) -> MeResponse;
    }
    public user {
        view_user(ViewUserRequest) -> ViewUserResponse;
    }
    public users {
        view_users(ViewUsersRequest) -> ViewUsersResponse;
    }
    signed_in relations {
        follow(FollowRequest) -> FollowResponse;
        unfollow(UnfollowRequest) -> UnfollowResponse;
        block(BlockRequest) -> BlockResponse;
        unblock(UnblockRequest) -> UnblockResponse;
        mute(MuteRequest) -> MuteResponse;
        unmute(UnmuteRequest) -> UnmuteResponse;
        remove_follower(RemoveFollowerRequest) -> RemoveFollowerResponse;
    }
    public account_list {
        view_following(ViewFollowingRequest) -> ViewFollowingResponse;
        view_followers(ViewFollowersRequest) -> ViewFollowersResponse;
        view_mutuals(ViewMutualsRequest) -> ViewMutualsResponse;
    }
    signed_in account_list {
        view_common_following(ViewCommonFollowingRequest) -> ViewCommonFollowingResponse;
        view_followers_i_follow(ViewFollowersIFollowRequest) -> ViewFollowersIFollowResponse;
        view_blocks(ViewBlocksRequest) -> ViewBlocksResponse;
        view_mutes(ViewMutesRequest) -> ViewMutesResponse;
    }
    signed_in posts {
        publish(PublishRequest) -> PublishResponse;
        repost(RepostRequest) -> RepostResponse;
        delete_post(DeletePostRequest) -> DeletePostResponse;
        like(LikeRequest) -> LikeResponse;
        unlike(UnlikeRequest) -> UnlikeResponse;
        comment(CommentRequest) -> CommentResponse;
        delete_comment(DeleteCommentRequest) -> DeleteCommentResponse;
    }
    public post {
        view_post(ViewPostRequest) -> ViewPostResponse;
        view_likers(ViewLikersRequest) -> ViewLikersResponse;
        view_comments(ViewCommentsRequest) -> ViewCommentsResponse;
        view_reposts(ViewRepostsRequest) -> ViewRepostsResponse;
    }
    public viewed_posts {
        view_posts(ViewPostsRequest) -> ViewPostsResponse;
    }
    signed_in timeline {
        view_home(ViewHomeRequest) -> ViewHomeResponse;
        view_friends(ViewFriendsRequest) -> ViewFriendsResponse;
        count_new(CountNewRequest) -> CountNewResponse;
    }
    public timeline {
        view_user_timeline(ViewUserTimelineRequest) -> ViewUserTimelineResponse;
    }
}
