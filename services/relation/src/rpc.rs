//! The gRPC handlers: decode, call, encode.

use std::future::Future;

use futures::{
    StreamExt as _, TryStreamExt as _,
    stream::{self, BoxStream},
};
use microblog_chassis as chassis;
use microblog_domain::{PageSize, Partition, Scope, UserId};
use microblog_keyspace::{Entry, Order, Range};
use microblog_proto::relation::{self as pb, relation_service_server::RelationService};
use tonic::{Request, Response, Status};

use crate::{
    edge_saga::{EdgeSaga, check_outcome},
    error::Error,
    graph::{Edge, Include, List},
    intersection::Intersection,
    not_followed_back,
    store::Store,
    verify::{self, Report},
    wire,
};

type RpcResult<T> = Result<Response<T>, Status>;

/// Followers per message of a stream: one read takes about a millisecond of Redis' time.
const STREAM_BATCH_DEFAULT: usize = 1_000;
const STREAM_BATCH_MAX: usize = 2_000;

/// The handlers of `RelationService`.
pub(crate) struct Rpc {
    store: Store,
    edges: EdgeSaga,
}

impl Rpc {
    pub(crate) fn new(store: Store) -> Self {
        Self { edges: EdgeSaga::new(store.clone()), store }
    }

    async fn list(
        &self,
        list: List,
        user_id: u64,
        page_size: i32,
        page_token: &str,
    ) -> Result<(Vec<pb::Edge>, String), Error> {
        let user = UserId::parse("user_id", user_id)?;
        let count = PageSize::parse(page_size)?.get();
        let scope = Scope::new(name(list)).with(user_id);
        let after = Entry::from_token(scope, page_token)?;
        let page = self.store.page(list, user, after, None, count).await?;
        Ok((wire::entries(&page.entries), page.next_token(scope)))
    }

    async fn list_not_followed_back(
        &self,
        request: pb::ListFollowersRequest,
    ) -> Result<pb::ListFollowersResponse, Error> {
        let user = UserId::parse("user_id", request.user_id)?;
        let count = PageSize::parse(request.page_size)?.get();
        let scope = Scope::new("ListFollowers/not_followed_back").with(request.user_id);
        let after = Entry::from_token(scope, &request.page_token)?;
        let found = not_followed_back::page(&self.store, user, after, count).await?;
        let token = |last: Entry| scope.token([last.score, last.member]);
        let next_page_token = found.next.map_or_else(String::new, token);
        Ok(pb::ListFollowersResponse { edges: wire::entries(&found.entries), next_page_token })
    }

    async fn list_common(
        &self,
        intersection: Intersection,
        scope: Scope,
        page_size: i32,
        page_token: &str,
    ) -> Result<(Vec<pb::Edge>, String), Error> {
        let count = PageSize::parse(page_size)?.get();
        let cursor = match wire::cursor(scope, page_token)? {
            Some(cursor) => cursor,
            None => intersection.start(&self.store).await?,
        };
        let found = intersection.page(&self.store, cursor, count).await?;
        Ok((wire::entries(&found.entries), wire::next_cursor_token(scope, &found)))
    }

    // Runs a write to completion, even if the caller disconnects.
    async fn write<T, F>(&self, work: impl FnOnce(EdgeSaga) -> F) -> Result<T, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let work = work(self.edges.clone());
        chassis::mutate(async move { work.await.map_err(Status::from) }).await
    }
}

// Returns the token scope of a list.
fn name(list: List) -> &'static str {
    match list {
        List::Following => "ListFollowing",
        List::Followers => "ListFollowers",
        List::Mutuals => "ListMutuals",
        List::Blocks => "ListBlocks",
        List::BlockedBy => "ListBlockedBy",
        List::Mutes => "ListMutes",
    }
}

fn user_and_target(user_id: u64, target_id: u64) -> Result<Edge, Error> {
    wire::proper_edge(("user_id", user_id), ("target_id", target_id))
}

#[tonic::async_trait]
impl RelationService for Rpc {
    type StreamFollowersStream = BoxStream<'static, Result<pb::StreamFollowersResponse, Status>>;
    type VerifyStream = BoxStream<'static, Result<pb::VerifyResponse, Status>>;

    async fn follow(&self, request: Request<pb::FollowRequest>) -> RpcResult<pb::FollowResponse> {
        let request = request.into_inner();
        let ids = (("follower_id", request.follower_id), ("target_id", request.target_id));
        let edge = wire::proper_edge(ids.0, ids.1)?;
        let (version, state) = self.write(|edges| async move { edges.follow(edge).await }).await?;
        let edge = Some(wire::entry(request.target_id, version));
        Ok(Response::new(pb::FollowResponse { edge, state: wire::state(state).into() }))
    }

    async fn unfollow(
        &self,
        request: Request<pb::UnfollowRequest>,
    ) -> RpcResult<pb::UnfollowResponse> {
        let request = request.into_inner();
        let ids = (("follower_id", request.follower_id), ("target_id", request.target_id));
        let edge = wire::proper_edge(ids.0, ids.1)?;
        let state = self.write(|edges| async move { edges.unfollow(edge).await }).await?;
        Ok(Response::new(pb::UnfollowResponse { state: wire::state(state).into() }))
    }

    async fn remove_follower(
        &self,
        request: Request<pb::RemoveFollowerRequest>,
    ) -> RpcResult<pb::RemoveFollowerResponse> {
        let request = request.into_inner();
        let ids = (("user_id", request.user_id), ("follower_id", request.follower_id));
        let Edge { from: user, to: follower } = wire::proper_edge(ids.0, ids.1)?;
        let edge = Edge { from: follower, to: user };
        self.write(|edges| async move { edges.unfollow(edge).await }).await?;
        let (relations, _) = self
            .store
            .relations(user, &[follower], Include::default())
            .await
            .map_err(Error::from)?;
        let state = relations.first().map_or(pb::RelationState::None, |r| wire::state(r.state));
        Ok(Response::new(pb::RemoveFollowerResponse { state: state.into() }))
    }

    async fn block(&self, request: Request<pb::BlockRequest>) -> RpcResult<pb::BlockResponse> {
        let request = request.into_inner();
        let edge = user_and_target(request.user_id, request.target_id)?;
        self.write(|edges| async move { edges.block(edge).await }).await?;
        Ok(Response::new(pb::BlockResponse {}))
    }

    async fn unblock(
        &self,
        request: Request<pb::UnblockRequest>,
    ) -> RpcResult<pb::UnblockResponse> {
        let request = request.into_inner();
        let edge = user_and_target(request.user_id, request.target_id)?;
        self.write(|edges| async move { edges.unblock(edge, false).await }).await?;
        Ok(Response::new(pb::UnblockResponse {}))
    }

    async fn mute(&self, request: Request<pb::MuteRequest>) -> RpcResult<pb::MuteResponse> {
        let request = request.into_inner();
        let Edge { from, to } = user_and_target(request.user_id, request.target_id)?;
        let store = self.store.clone();
        self.write(|_| async move { check_outcome(store.mute(from, to).await?, Error::ListLimit) })
            .await?;
        Ok(Response::new(pb::MuteResponse {}))
    }

    async fn unmute(&self, request: Request<pb::UnmuteRequest>) -> RpcResult<pb::UnmuteResponse> {
        let request = request.into_inner();
        let Edge { from, to } = user_and_target(request.user_id, request.target_id)?;
        let store = self.store.clone();
        self.write(|_| async move { Ok(store.unmute(from, to).await?) }).await?;
        Ok(Response::new(pb::UnmuteResponse {}))
    }

    async fn get_relation(
        &self,
        request: Request<pb::GetRelationRequest>,
    ) -> RpcResult<pb::GetRelationResponse> {
        let request = request.into_inner();
        let ids = (("viewer_id", request.viewer_id), ("target_id", request.target_id));
        let Edge { from, to } = wire::edge(ids.0, ids.1)?;
        let include = Include { blocks: true, mutes: true, newest_following: false };
        let (relations, _) =
            self.store.relations(from, &[to], include).await.map_err(Error::from)?;
        let relation = relations.first().copied().map(wire::relation);
        Ok(Response::new(pb::GetRelationResponse { relation }))
    }

    async fn batch_get_relations(
        &self,
        request: Request<pb::BatchGetRelationsRequest>,
    ) -> RpcResult<pb::BatchGetRelationsResponse> {
        let request = request.into_inner();
        let viewer = UserId::parse("viewer_id", request.viewer_id).map_err(Error::from)?;
        let targets = wire::batch("target_ids", &request.target_ids).map_err(Error::from)?;
        let include = Include {
            blocks: request.include_blocks,
            mutes: request.include_mutes,
            newest_following: request.include_newest_following_version,
        };
        let (relations, newest_following_version) =
            self.store.relations(viewer, &targets, include).await.map_err(Error::from)?;
        let relations = relations.into_iter().map(wire::relation).collect();
        Ok(Response::new(pb::BatchGetRelationsResponse { relations, newest_following_version }))
    }

    async fn list_following(
        &self,
        request: Request<pb::ListFollowingRequest>,
    ) -> RpcResult<pb::ListFollowingResponse> {
        let request = request.into_inner();
        let user = UserId::parse("user_id", request.user_id).map_err(Error::from)?;
        let count = PageSize::parse(request.page_size).map_err(Error::from)?.get();
        let above = wire::newer_than(request.newer_than_version).map_err(Error::from)?;
        let order = wire::order(request.order).map_err(Error::from)?;
        let mut scope = Scope::new(name(List::Following))
            .with(request.user_id)
            .with(request.newer_than_version);
        if order == Order::Oldest {
            scope = scope.with(pb::FollowOrder::OldestFirst as u64);
        }
        let after = Entry::from_token(scope, &request.page_token).map_err(Error::from)?;
        let range = Range { order, after, above, count };
        let page = self.store.range(List::Following, user, range).await.map_err(Error::from)?;
        let next_page_token = page.next_token(scope);
        let settled_version = match (order, after, page.entries.first()) {
            (Order::Newest, None, Some(newest)) => self.store.settled(user, newest.score).await,
            _ => Ok(0),
        };
        let settled_version = settled_version.map_err(Error::from)?;
        let edges = wire::entries(&page.entries);
        let response = pb::ListFollowingResponse { edges, next_page_token, settled_version };
        Ok(Response::new(response))
    }

    async fn list_followers(
        &self,
        request: Request<pb::ListFollowersRequest>,
    ) -> RpcResult<pb::ListFollowersResponse> {
        let r = request.into_inner();
        if r.not_followed_back {
            return Ok(Response::new(self.list_not_followed_back(r).await?));
        }
        let (edges, next_page_token) =
            self.list(List::Followers, r.user_id, r.page_size, &r.page_token).await?;
        Ok(Response::new(pb::ListFollowersResponse { edges, next_page_token }))
    }

    async fn list_mutuals(
        &self,
        request: Request<pb::ListMutualsRequest>,
    ) -> RpcResult<pb::ListMutualsResponse> {
        let r = request.into_inner();
        let (edges, next_page_token) =
            self.list(List::Mutuals, r.user_id, r.page_size, &r.page_token).await?;
        Ok(Response::new(pb::ListMutualsResponse { edges, next_page_token }))
    }

    async fn list_common_following(
        &self,
        request: Request<pb::ListCommonFollowingRequest>,
    ) -> RpcResult<pb::ListCommonFollowingResponse> {
        let r = request.into_inner();
        let ids = (("user_id", r.user_id), ("other_id", r.other_id));
        let Edge { from, to } = wire::edge(ids.0, ids.1)?;
        let scope = Scope::new("ListCommonFollowing").with(r.user_id).with(r.other_id);
        let intersection = Intersection::following(from, to);
        let (edges, next_page_token) =
            self.list_common(intersection, scope, r.page_size, &r.page_token).await?;
        Ok(Response::new(pb::ListCommonFollowingResponse { edges, next_page_token }))
    }

    async fn count_common_following(
        &self,
        request: Request<pb::CountCommonFollowingRequest>,
    ) -> RpcResult<pb::CountCommonFollowingResponse> {
        let r = request.into_inner();
        let ids = (("user_id", r.user_id), ("other_id", r.other_id));
        let Edge { from, to } = wire::edge(ids.0, ids.1)?;
        let count = Intersection::following(from, to).count(&self.store).await? as u64;
        Ok(Response::new(pb::CountCommonFollowingResponse { count }))
    }

    async fn count_followers_i_follow(
        &self,
        request: Request<pb::CountFollowersIFollowRequest>,
    ) -> RpcResult<pb::CountFollowersIFollowResponse> {
        let r = request.into_inner();
        let ids = (("user_id", r.user_id), ("viewer_id", r.viewer_id));
        let Edge { from, to } = wire::edge(ids.0, ids.1)?;
        let newest = wire::newest(r.newest).map_err(Error::from)?;
        let intersection = Intersection::followers_followed(from, to);
        let (count, newest) = intersection.count_with_newest(&self.store, newest).await?;
        let (count, newest) = (count as u64, wire::entries(&newest));
        Ok(Response::new(pb::CountFollowersIFollowResponse { count, newest }))
    }

    async fn list_followers_i_follow(
        &self,
        request: Request<pb::ListFollowersIFollowRequest>,
    ) -> RpcResult<pb::ListFollowersIFollowResponse> {
        let r = request.into_inner();
        let ids = (("user_id", r.user_id), ("viewer_id", r.viewer_id));
        let Edge { from, to } = wire::edge(ids.0, ids.1)?;
        let scope = Scope::new("ListFollowersIFollow").with(r.user_id).with(r.viewer_id);
        let intersection = Intersection::followers_followed(from, to);
        let (edges, next_page_token) =
            self.list_common(intersection, scope, r.page_size, &r.page_token).await?;
        Ok(Response::new(pb::ListFollowersIFollowResponse { edges, next_page_token }))
    }

    async fn list_blocks(
        &self,
        request: Request<pb::ListBlocksRequest>,
    ) -> RpcResult<pb::ListBlocksResponse> {
        let r = request.into_inner();
        let (edges, next_page_token) =
            self.list(List::Blocks, r.user_id, r.page_size, &r.page_token).await?;
        Ok(Response::new(pb::ListBlocksResponse { edges, next_page_token }))
    }

    async fn list_mutes(
        &self,
        request: Request<pb::ListMutesRequest>,
    ) -> RpcResult<pb::ListMutesResponse> {
        let r = request.into_inner();
        let (edges, next_page_token) =
            self.list(List::Mutes, r.user_id, r.page_size, &r.page_token).await?;
        Ok(Response::new(pb::ListMutesResponse { edges, next_page_token }))
    }

    async fn batch_get_counts(
        &self,
        request: Request<pb::BatchGetCountsRequest>,
    ) -> RpcResult<pb::BatchGetCountsResponse> {
        let request = request.into_inner();
        let users = wire::batch("user_ids", &request.user_ids).map_err(Error::from)?;
        let counts = self.store.counts(&users).await.map_err(Error::from)?;
        let counts = users.iter().zip(counts).map(|(&user, c)| wire::counts(user, c)).collect();
        Ok(Response::new(pb::BatchGetCountsResponse { counts }))
    }

    async fn stream_followers(
        &self,
        request: Request<pb::StreamFollowersRequest>,
    ) -> RpcResult<Self::StreamFollowersStream> {
        let request = request.into_inner();
        let user = UserId::parse("user_id", request.user_id).map_err(Error::from)?;
        let size = PageSize::parse_field(
            "batch_size",
            request.batch_size,
            STREAM_BATCH_DEFAULT,
            STREAM_BATCH_MAX,
        );
        let count = size.map_err(Error::from)?.get();
        let scope = Scope::new("StreamFollowers").with(request.user_id);
        let after = Entry::from_token(scope, &request.page_token).map_err(Error::from)?;
        let store = self.store.clone();
        let batches = stream::try_unfold(Some(after), move |cursor| {
            let store = store.clone();
            async move {
                let Some(after) = cursor else { return Ok(None) };
                let page = store.page(List::Followers, user, after, None, count).await;
                let page = page.map_err(Error::from)?;
                let next = page.more.then(|| page.entries.last().copied());
                let next_page_token = page.next_token(scope);
                let user_ids = page.entries.iter().map(|entry| entry.member).collect();
                Ok(Some((pb::StreamFollowersResponse { user_ids, next_page_token }, next)))
            }
        });
        Ok(Response::new(batches.map_err(|error: Error| Status::from(error)).boxed()))
    }

    async fn import_follows(
        &self,
        request: Request<pb::ImportFollowsRequest>,
    ) -> RpcResult<pb::ImportFollowsResponse> {
        let follows = wire::follows(&request.into_inner().follows).map_err(Error::from)?;
        let imported = self.write(|edges| async move { edges.import(follows).await }).await?;
        Ok(Response::new(wire::imported(imported)))
    }

    async fn forget_user(
        &self,
        request: Request<pb::ForgetUserRequest>,
    ) -> RpcResult<pb::ForgetUserResponse> {
        let user = UserId::parse("user_id", request.into_inner().user_id).map_err(Error::from)?;
        let store = self.store.clone();
        self.write(|_| async move { Ok(store.forget(user).await?) }).await?;
        Ok(Response::new(pb::ForgetUserResponse {}))
    }

    async fn verify(&self, request: Request<pb::VerifyRequest>) -> RpcResult<Self::VerifyStream> {
        let store = self.store.clone();
        let pb::VerifyRequest { user_id, repair } = request.into_inner();
        // The clocks first, since repairs issue versions in any partition.
        let clocks = match repair {
            true => Some(store.repair_clocks().await.map_err(Error::from)?),
            false => None,
        };
        let clocks = clocks.map(|repairs| Ok(Report { repairs, ..Report::default() }));
        let reports = match user_id {
            0 => stream::iter(Partition::all())
                .then(move |partition| {
                    let store = store.clone();
                    async move { verify::partition(&store, partition, repair).await }
                })
                .boxed(),
            id => {
                let user = UserId::parse("user_id", id).map_err(Error::from)?;
                stream::once(async move { verify::user(&store, user, repair).await }).boxed()
            }
        };
        let reports =
            stream::iter(clocks).chain(reports).map_ok(wire::report).map_err(Status::from);
        Ok(Response::new(reports.boxed()))
    }
}
