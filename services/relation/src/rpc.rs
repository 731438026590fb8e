//! The gRPC handlers: decode, call, encode.

use std::{future::Future, sync::Arc};

use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use microblog_chassis as chassis;
use microblog_domain::UserId;
use microblog_proto::relation::{self as pb, relation_service_server::RelationService};
use microblog_record::{Recorder, restore, stream_changes};
use tonic::{Request, Response, Status};

use crate::{
    edge_saga::{EdgeSaga, check_outcome},
    error::Error,
    graph::{Edge, Include, List, ListSet},
    listing,
    record::GraphTables,
    store::Store,
    verify, wire,
};

type RpcResult<T> = Result<Response<T>, Status>;

/// The handlers of `RelationService`.
pub(crate) struct Rpc {
    store: Store,
    edges: EdgeSaga,
    recorder: Option<Arc<Recorder<GraphTables>>>,
}

impl Rpc {
    pub(crate) fn new(store: Store, recorder: Option<Arc<Recorder<GraphTables>>>) -> Self {
        Self { edges: EdgeSaga::new(store.clone()), store, recorder }
    }

    // Adds an account to a private list without inverse edges.
    async fn add(&self, list: List, user_id: u64, target_id: u64) -> Result<(), Status> {
        let Edge { from, to } = user_and_target(user_id, target_id)?;
        let store = self.store.clone();
        let add = async move { check_outcome(store.add(list, from, to).await?, Error::ListLimit) };
        self.write(|_| add).await
    }

    // Removes an account from a private list without inverse edges.
    async fn remove(&self, list: List, user_id: u64, target_id: u64) -> Result<(), Status> {
        let Edge { from, to } = user_and_target(user_id, target_id)?;
        let store = self.store.clone();
        self.write(|_| async move { Ok(store.remove(list, from, to).await?) }).await
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

fn user_and_target(user_id: u64, target_id: u64) -> Result<Edge, Error> {
    wire::proper_edge(("user_id", user_id), ("target_id", target_id))
}

#[tonic::async_trait]
impl RelationService for Rpc {
    type StreamFollowersStream = BoxStream<'static, Result<pb::StreamFollowersResponse, Status>>;
    type VerifyStream = BoxStream<'static, Result<pb::VerifyResponse, Status>>;
    type RestoreStream = BoxStream<'static, Result<pb::RestoreResponse, Status>>;
    type StreamChangesStream = BoxStream<'static, Result<pb::StreamChangesResponse, Status>>;

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
        let pb::MuteRequest { user_id, target_id } = request.into_inner();
        self.add(List::Mutes, user_id, target_id).await?;
        Ok(Response::new(pb::MuteResponse {}))
    }

    async fn unmute(&self, request: Request<pb::UnmuteRequest>) -> RpcResult<pb::UnmuteResponse> {
        let pb::UnmuteRequest { user_id, target_id } = request.into_inner();
        self.remove(List::Mutes, user_id, target_id).await?;
        Ok(Response::new(pb::UnmuteResponse {}))
    }

    async fn get_relation(
        &self,
        request: Request<pb::GetRelationRequest>,
    ) -> RpcResult<pb::GetRelationResponse> {
        let request = request.into_inner();
        let ids = (("viewer_id", request.viewer_id), ("target_id", request.target_id));
        let Edge { from, to } = wire::edge(ids.0, ids.1)?;
        let include = Include { lists: ListSet::private(), ..Include::default() };
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
        let viewer = wire::user("viewer_id", request.viewer_id)?;
        let targets = wire::batch("target_ids", &request.target_ids)?;
        let include = wire::include(&request)?;
        let (relations, newest_following_version) =
            self.store.relations(viewer, &targets, include).await.map_err(Error::from)?;
        Ok(Response::new(pb::BatchGetRelationsResponse {
            following_since: relations.iter().filter_map(wire::following_since).collect(),
            relations: UserId::answers(
                &request.target_ids,
                relations.into_iter().map(wire::relation),
                wire::no_relation,
            ),
            newest_following_version,
        }))
    }

    async fn list_edges(
        &self,
        request: Request<pb::ListEdgesRequest>,
    ) -> RpcResult<pb::ListEdgesResponse> {
        let request = request.into_inner();
        let (listing, scope, count) = wire::listing(&request)?;
        let page = listing.page(&self.store, scope, &request.page_token, count).await?;
        let relations = match wire::listing_viewer(&request, &page)? {
            Some((viewer, targets)) => {
                let include = Include { lists: ListSet::private(), ..Include::default() };
                self.store.relations(viewer, &targets, include).await.map_err(Error::from)?.0
            }
            None => Vec::new(),
        };
        Ok(Response::new(wire::listing_page(page, relations)))
    }

    async fn list_edge_ids(
        &self,
        request: Request<pb::ListEdgeIdsRequest>,
    ) -> RpcResult<pb::ListEdgeIdsResponse> {
        let request = request.into_inner();
        let (list, scope) = wire::id_list(&request)?;
        let page = list.page(&self.store, scope, &request.page_token).await?;
        Ok(Response::new(wire::id_page(&page, scope)))
    }

    async fn count_edges(
        &self,
        request: Request<pb::CountEdgesRequest>,
    ) -> RpcResult<pb::CountEdgesResponse> {
        let (intersection, newest) = wire::intersection(request.get_ref())?;
        let (count, newest) = intersection.count(&self.store, newest).await?;
        let (count, newest) = (count as u64, wire::entries(&newest));
        Ok(Response::new(pb::CountEdgesResponse { count, newest }))
    }

    async fn batch_get_counts(
        &self,
        request: Request<pb::BatchGetCountsRequest>,
    ) -> RpcResult<pb::BatchGetCountsResponse> {
        let user_ids = request.into_inner().user_ids;
        let users = wire::batch("user_ids", &user_ids)?;
        let counts = self.store.counts(&users).await.map_err(Error::from)?;
        let counts = users.iter().zip(counts).map(|(&user, c)| wire::counts(user, c));
        let unknown = |user_id| pb::Counts { user_id, ..Default::default() };
        let counts = UserId::answers(&user_ids, counts, unknown);
        Ok(Response::new(pb::BatchGetCountsResponse { counts }))
    }

    async fn stream_followers(
        &self,
        request: Request<pb::StreamFollowersRequest>,
    ) -> RpcResult<Self::StreamFollowersStream> {
        let (user, after, count, scope) = wire::stream(request.get_ref())?;
        let pages = listing::followers(self.store.clone(), user, after, count);
        let batches = pages.map_ok(move |page| wire::followers(&page, scope));
        Ok(Response::new(batches.map_err(Status::from).boxed()))
    }

    async fn import_follows(
        &self,
        request: Request<pb::ImportFollowsRequest>,
    ) -> RpcResult<pb::ImportFollowsResponse> {
        let follows = wire::follows(&request.into_inner().follows)?;
        let imported = self.write(|edges| async move { edges.import(follows).await }).await?;
        Ok(Response::new(wire::imported(imported)))
    }

    async fn forget_user(
        &self,
        request: Request<pb::ForgetUserRequest>,
    ) -> RpcResult<pb::ForgetUserResponse> {
        let user = wire::user("user_id", request.into_inner().user_id)?;
        let store = self.store.clone();
        self.write(|_| async move { Ok(store.forget(user).await?) }).await?;
        Ok(Response::new(pb::ForgetUserResponse {}))
    }

    async fn verify(&self, request: Request<pb::VerifyRequest>) -> RpcResult<Self::VerifyStream> {
        let pb::VerifyRequest { user_id, repair } = request.into_inner();
        let user = match user_id {
            0 => None,
            id => Some(wire::user("user_id", id)?),
        };
        let reports = verify::reports(self.store.clone(), user, repair).await?;
        Ok(Response::new(reports.map_ok(wire::report).map_err(Status::from).boxed()))
    }

    async fn restore(
        &self,
        request: Request<pb::RestoreRequest>,
    ) -> RpcResult<Self::RestoreStream> {
        let request = request.into_inner();
        let partitions = restore(self.recorder.clone(), request.source(), request.force).await?;
        let response = |partition| pb::RestoreResponse { partition: Some(partition) };
        Ok(Response::new(partitions.map_ok(response).boxed()))
    }

    async fn stream_changes(
        &self,
        request: Request<pb::StreamChangesRequest>,
    ) -> RpcResult<Self::StreamChangesStream> {
        let query = request.into_inner().query.unwrap_or_default();
        let pages = stream_changes(self.recorder.clone(), query).await?;
        let response = |page| pb::StreamChangesResponse { page: Some(page) };
        Ok(Response::new(pages.map_ok(response).boxed()))
    }
}
