//! The gRPC interface: decodes each request, calls its view or action, and encodes the response.
//! The function of a call documents what it does, and which calls of services it costs.

use std::sync::Arc;

use microblog_domain::UserId;
use microblog_proto::gateway::{
    self as pb,
    change_service_server::{ChangeService, ChangeServiceServer},
    gateway_service_server::{GatewayService, GatewayServiceServer},
};
use tonic::{Request, Response, Status, codec::CompressionEncoding, service::Routes};

use crate::{
    actions::{accounts, external_accounts, notices as seen_notices, posts, relations},
    audit::CallerMetrics,
    callers::{AuthenticatedCaller, Callers, not_allowed},
    credentials::{Credentials, Principal, check_no_viewer},
    state::Gateway,
    views::{
        account_list, changes, notices, post, posts as viewed_posts, timeline, user, users,
        watch_home, watch_notices,
    },
};

type Answer<T> = Result<Response<T>, Status>;

/// The gRPC services.
pub(crate) struct Rpc {
    gateway: Gateway,
    metrics: CallerMetrics,
}

impl Rpc {
    /// Returns the gRPC services, which reject requests larger than `max_message_bytes`, also when they
    /// are decompressed.
    pub(crate) fn into_routes(gateway: Gateway, max_message_bytes: usize) -> Routes {
        let rpc = Arc::new(Self { gateway, metrics: CallerMetrics::register() });
        let changes = ChangeServiceServer::from_arc(rpc.clone());
        let gateway = GatewayServiceServer::from_arc(rpc);
        let gateway = gateway.accept_compressed(CompressionEncoding::Gzip);
        let changes = changes.accept_compressed(CompressionEncoding::Gzip);
        Routes::new(gateway.max_decoding_message_size(max_message_bytes))
            .add_service(changes.max_decoding_message_size(max_message_bytes))
    }

    /// Answers a call without a viewer, which checks the limits of the client's address.
    async fn open<'a, Q, A, F>(
        &'a self,
        method: &'static str,
        request: Request<Q>,
        call: impl FnOnce(&'a Gateway, Request<Q>) -> F,
    ) -> Answer<A>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let Principal { caller, .. } = self.identified(Principal::without_viewer, &request)?;
        let has_no_viewer = check_no_viewer(request.metadata());
        let answer = call(&self.gateway, request);
        self.authorized(caller, None, method, checked(has_no_viewer, answer)).await
    }

    /// Answers a call that needs a viewer.
    async fn signed_in<'a, Q, A, F>(
        &'a self,
        method: &'static str,
        request: Request<Q>,
        call: impl FnOnce(&'a Gateway, Credentials, Q) -> F,
    ) -> Answer<A>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let call = |gateway, principal: Principal, message| async move {
            call(gateway, principal.required()?, message).await
        };
        self.explained(method, request, call).await
    }

    /// Answers a call that works without a viewer, too.
    async fn public<'a, Q, A, F>(
        &'a self,
        method: &'static str,
        request: Request<Q>,
        call: impl FnOnce(&'a Gateway, Option<Credentials>, Q) -> F,
    ) -> Answer<A>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let call =
            |gateway, principal: Principal, message| call(gateway, principal.credentials, message);
        self.explained(method, request, call).await
    }

    /// Answers a call that works without a viewer, too, and returns more to service callers.
    async fn explained<'a, Q, A, F>(
        &'a self,
        method: &'static str,
        request: Request<Q>,
        call: impl FnOnce(&'a Gateway, Principal, Q) -> F,
    ) -> Answer<A>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let principal = self.identified(Principal::of, &request)?;
        let (caller, acts_for) = (principal.caller.clone(), principal.acts_for());
        let answer = call(&self.gateway, principal, request.into_inner());
        self.authorized(caller, acts_for, method, answer).await
    }

    /// Answers a call that only service callers may make, for themselves.
    async fn by_service<'a, Q, A, F>(
        &'a self,
        method: &'static str,
        request: Request<Q>,
        call: impl FnOnce(&'a Gateway, AuthenticatedCaller, Q) -> F,
    ) -> Answer<A>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let Principal { caller, .. } = self.identified(Principal::without_viewer, &request)?;
        let only = || not_allowed(format!("only service callers may call {method}"));
        let caller = caller.ok_or_else(only)?;
        let has_no_viewer = check_no_viewer(request.metadata());
        let answer = call(&self.gateway, caller.clone(), request.into_inner());
        self.authorized(Some(caller), None, method, checked(has_no_viewer, answer)).await
    }

    /// Returns who makes a call, and counts invalid service callers.
    fn identified<Q>(
        &self,
        identify: fn(&Request<Q>, Option<&Callers>) -> Result<Principal, Status>,
        request: &Request<Q>,
    ) -> Result<Principal, Status> {
        let principal = identify(request, self.gateway.callers.as_ref());
        principal.inspect_err(|status| self.metrics.count_invalid(status))
    }

    /// Runs a call if the service caller may make it, and records its outcome. People may make every
    /// call.
    async fn authorized<A>(
        &self,
        caller: Option<AuthenticatedCaller>,
        acts_for: Option<UserId>,
        method: &'static str,
        call: impl Future<Output = Result<A, Status>>,
    ) -> Answer<A> {
        let Some(caller) = caller else { return call.await.map(Response::new) };
        let record = self.metrics.start(&caller, acts_for, method);
        let result = match caller.authorize(method, acts_for) {
            Ok(()) => call.await,
            Err(rejection) => Err(rejection),
        };
        record.end(&result);
        result.map(Response::new)
    }
}

/// Answers a call if a check has passed.
async fn checked<A>(
    check: Result<(), Status>,
    answer: impl Future<Output = Result<A, Status>>,
) -> Result<A, Status> {
    check?;
    answer.await
}

/// Returns the name of a method, whose request has the name `<method>Request`.
fn method(request: &'static str) -> &'static str {
    request.strip_suffix("Request").unwrap_or(request)
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
                self.$kind(method(stringify!($request)), request, $module::$method).await
            })*)*

            type WatchHomeStream = watch_home::HomeUpdates;

            async fn watch_home(
                &self,
                request: Request<pb::WatchHomeRequest>,
            ) -> Answer<Self::WatchHomeStream> {
                self.signed_in(watch_home::METHOD, request, watch_home::watch_home).await
            }

            type WatchNoticesStream = watch_notices::NoticeUpdates;

            async fn watch_notices(
                &self,
                request: Request<pb::WatchNoticesRequest>,
            ) -> Answer<Self::WatchNoticesStream> {
                self.signed_in(watch_notices::METHOD, request, watch_notices::watch_notices).await
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
    by_service external_accounts {
        ensure_user(EnsureUserRequest) -> EnsureUserResponse;
        batch_resolve_external_ids(BatchResolveExternalIdsRequest)
            -> BatchResolveExternalIdsResponse;
    }
    signed_in user {
        me(MeRequest) -> MeResponse;
    }
    public user {
        view_user(ViewUserRequest) -> ViewUserResponse;
    }
    explained users {
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
    explained viewed_posts {
        view_posts(ViewPostsRequest) -> ViewPostsResponse;
    }
    signed_in timeline {
        view_home(ViewHomeRequest) -> ViewHomeResponse;
        view_friends(ViewFriendsRequest) -> ViewFriendsResponse;
        count_new(CountNewRequest) -> CountNewResponse;
    }
    signed_in notices {
        view_notices(ViewNoticesRequest) -> ViewNoticesResponse;
        count_unread(CountUnreadRequest) -> CountUnreadResponse;
        view_mentions(ViewMentionsRequest) -> ViewMentionsResponse;
    }
    signed_in seen_notices {
        mark_seen(MarkSeenRequest) -> MarkSeenResponse;
    }
    public timeline {
        view_user_timeline(ViewUserTimelineRequest) -> ViewUserTimelineResponse;
    }
}

#[tonic::async_trait]
impl ChangeService for Rpc {
    type WatchStream = changes::Changes;
    type SnapshotStream = changes::SnapshotPages;

    async fn watch(&self, request: Request<pb::WatchRequest>) -> Answer<Self::WatchStream> {
        self.by_service(changes::WATCH, request, changes::watch).await
    }

    async fn snapshot(
        &self,
        request: Request<pb::SnapshotRequest>,
    ) -> Answer<Self::SnapshotStream> {
        self.by_service(changes::SNAPSHOT, request, changes::snapshot).await
    }
}
