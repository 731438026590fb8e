//! The gRPC handlers: decode, call, encode.

use std::{future::Future, sync::Arc};

use futures::{
    StreamExt as _, TryStreamExt as _,
    stream::{self, BoxStream},
};
use microblog_chassis as chassis;
use microblog_domain::UserId;
use microblog_proto::relation::{self as pb, relation_service_server::RelationService};
use microblog_record::stream_changes;
use microblog_storage::{Writer, changes::FeedChanges};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use crate::{
    changes::GraphChanges,
    error::Error,
    graph::{Edge, EdgeKind, Include, ListSet, State},
    group::Steps,
    import, listing,
    lists::Lists,
    steps::{Outcome, Seen, Step},
    verify, wire,
};

type RpcResult<T> = Result<Response<T>, Status>;

/// The handlers of `RelationService`.
pub(crate) struct Rpc {
    lists: Lists,
    writer: Writer<Steps>,
    bulk_writer: Writer<Steps>,
    /// One check at a time: its statements take long, and writes need connections, too.
    checks: Arc<Semaphore>,
}

impl Rpc {
    pub(crate) fn new(lists: Lists, writer: Writer<Steps>, bulk_writer: Writer<Steps>) -> Self {
        Self { lists, writer, bulk_writer, checks: Arc::new(Semaphore::new(1)) }
    }

    // Takes a step.
    async fn step(&self, step: Step) -> Result<Seen, Status> {
        let writer = self.writer.clone();
        self.write(async move {
            let outcomes = writer.write(vec![step]).await?;
            outcomes.first().map_or(Ok(Seen::default()), |outcome| check(step, *outcome))
        })
        .await
    }

    // Runs a write to completion, even if the caller disconnects.
    async fn write<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Status> {
        chassis::mutate(async move { work.await.map_err(Status::from) }).await
    }
}

// Maps a rejected outcome to its error.
fn check(step: Step, outcome: Outcome) -> Result<Seen, Error> {
    match outcome {
        Outcome::Done(seen) | Outcome::Unchanged(seen) => Ok(seen),
        Outcome::BlockedByTarget => Err(Error::BlockedByTarget),
        Outcome::TargetBlocked => Err(Error::TargetBlocked),
        Outcome::Limit if matches!(step, Step::Create(EdgeKind::Follow, _)) => {
            Err(Error::FollowingLimit)
        }
        Outcome::Limit => Err(Error::ListLimit),
        Outcome::Deleted => Err(Error::Deleted),
    }
}

fn user_and_target(user_id: u64, target_id: u64) -> Result<Edge, Error> {
    wire::proper_edge(("user_id", user_id), ("target_id", target_id))
}

#[tonic::async_trait]
impl RelationService for Rpc {
    type StreamFollowersStream = BoxStream<'static, Result<pb::StreamFollowersResponse, Status>>;
    type VerifyStream = BoxStream<'static, Result<pb::VerifyResponse, Status>>;
    type StreamChangesStream = BoxStream<'static, Result<pb::StreamChangesResponse, Status>>;

    async fn follow(&self, request: Request<pb::FollowRequest>) -> RpcResult<pb::FollowResponse> {
        let request = request.into_inner();
        let ids = (("follower_id", request.follower_id), ("target_id", request.target_id));
        let edge = wire::proper_edge(ids.0, ids.1)?;
        let seen = self.step(Step::Create(EdgeKind::Follow, edge)).await?;
        let state = State::of(true, seen.is_follower);
        let edge = Some(wire::entry(request.target_id, edge, seen.since_ms));
        Ok(Response::new(pb::FollowResponse { edge, state: wire::state(state).into() }))
    }

    async fn unfollow(
        &self,
        request: Request<pb::UnfollowRequest>,
    ) -> RpcResult<pb::UnfollowResponse> {
        let request = request.into_inner();
        let ids = (("follower_id", request.follower_id), ("target_id", request.target_id));
        let edge = wire::proper_edge(ids.0, ids.1)?;
        let seen = self.step(Step::End(EdgeKind::Follow, edge)).await?;
        let state = State::of(false, seen.is_follower);
        Ok(Response::new(pb::UnfollowResponse { state: wire::state(state).into() }))
    }

    async fn remove_follower(
        &self,
        request: Request<pb::RemoveFollowerRequest>,
    ) -> RpcResult<pb::RemoveFollowerResponse> {
        let request = request.into_inner();
        let ids = (("user_id", request.user_id), ("follower_id", request.follower_id));
        let edge = wire::proper_edge(ids.0, ids.1)?;
        let seen = self.step(Step::End(EdgeKind::Follow, edge.reversed())).await?;
        // The user is the target of the step.
        let state = State::of(seen.is_follower, false);
        Ok(Response::new(pb::RemoveFollowerResponse { state: wire::state(state).into() }))
    }

    async fn block(&self, request: Request<pb::BlockRequest>) -> RpcResult<pb::BlockResponse> {
        let request = request.into_inner();
        let edge = user_and_target(request.user_id, request.target_id)?;
        self.step(Step::Create(EdgeKind::Block, edge)).await?;
        Ok(Response::new(pb::BlockResponse {}))
    }

    async fn unblock(
        &self,
        request: Request<pb::UnblockRequest>,
    ) -> RpcResult<pb::UnblockResponse> {
        let request = request.into_inner();
        let edge = user_and_target(request.user_id, request.target_id)?;
        self.step(Step::End(EdgeKind::Block, edge)).await?;
        Ok(Response::new(pb::UnblockResponse {}))
    }

    async fn mute(&self, request: Request<pb::MuteRequest>) -> RpcResult<pb::MuteResponse> {
        let pb::MuteRequest { user_id, target_id } = request.into_inner();
        let edge = user_and_target(user_id, target_id)?;
        self.step(Step::Create(EdgeKind::Mute, edge)).await?;
        Ok(Response::new(pb::MuteResponse {}))
    }

    async fn unmute(&self, request: Request<pb::UnmuteRequest>) -> RpcResult<pb::UnmuteResponse> {
        let pb::UnmuteRequest { user_id, target_id } = request.into_inner();
        let edge = user_and_target(user_id, target_id)?;
        self.step(Step::End(EdgeKind::Mute, edge)).await?;
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
            self.lists.relations(from, &[to], include).await.map_err(Error::from)?;
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
        let (relations, newest_following_ms) =
            self.lists.relations(viewer, &targets, include).await.map_err(Error::from)?;
        Ok(Response::new(pb::BatchGetRelationsResponse {
            following_since: relations.iter().filter_map(wire::following_since).collect(),
            relations: UserId::answers(
                &request.target_ids,
                relations.into_iter().map(wire::relation),
                wire::no_relation,
            ),
            newest_following_version: wire::following_version(viewer, newest_following_ms),
        }))
    }

    async fn list_edges(
        &self,
        request: Request<pb::ListEdgesRequest>,
    ) -> RpcResult<pb::ListEdgesResponse> {
        let request = request.into_inner();
        let (listing, scope, count) = wire::listing(&request)?;
        let page = listing.page(&self.lists, scope, &request.page_token, count).await?;
        let relations = match wire::listing_viewer(&request, &page)? {
            Some((viewer, targets)) => {
                let include = Include { lists: ListSet::private(), ..Include::default() };
                self.lists.relations(viewer, &targets, include).await.map_err(Error::from)?.0
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
        let page = list.page(&self.lists, scope, &request.page_token).await?;
        Ok(Response::new(wire::id_page(&request, list, &page, scope)))
    }

    async fn count_edges(
        &self,
        request: Request<pb::CountEdgesRequest>,
    ) -> RpcResult<pb::CountEdgesResponse> {
        let (intersection, newest) = wire::intersection(request.get_ref())?;
        let (count, newest) = intersection.count(&self.lists, newest).await.map_err(Error::from)?;
        let (count, newest) = (count as u64, wire::entries(intersection.first(), &newest));
        Ok(Response::new(pb::CountEdgesResponse { count, newest }))
    }

    async fn batch_get_counts(
        &self,
        request: Request<pb::BatchGetCountsRequest>,
    ) -> RpcResult<pb::BatchGetCountsResponse> {
        let user_ids = request.into_inner().user_ids;
        let users = wire::batch("user_ids", &user_ids)?;
        let counts = self.lists.counts(&users).await.map_err(Error::from)?;
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
        let pages = listing::followers(self.lists.clone(), user, after, count);
        let batches = pages.map_ok(move |page| wire::followers(&page, scope));
        Ok(Response::new(batches.map_err(Status::from).boxed()))
    }

    async fn import_follows(
        &self,
        request: Request<pb::ImportFollowsRequest>,
    ) -> RpcResult<pb::ImportFollowsResponse> {
        let follows = wire::follows(&request.into_inner().follows)?;
        let writer = self.bulk_writer.clone();
        let imported = self.write(async move { import::import(&writer, follows).await }).await?;
        Ok(Response::new(wire::imported(imported)))
    }

    async fn forget_user(
        &self,
        request: Request<pb::ForgetUserRequest>,
    ) -> RpcResult<pb::ForgetUserResponse> {
        let user = wire::user("user_id", request.into_inner().user_id)?;
        self.step(Step::Delete(user)).await?;
        Ok(Response::new(pb::ForgetUserResponse {}))
    }

    async fn verify(&self, request: Request<pb::VerifyRequest>) -> RpcResult<Self::VerifyStream> {
        let user = match request.into_inner().user_id {
            0 => None,
            id => Some(wire::user("user_id", id)?),
        };
        let (lists, checks) = (self.lists.clone(), self.checks.clone());
        // The semaphore is never closed.
        let reports = stream::once(async move { (checks.acquire_owned().await, lists) });
        let reports = reports.flat_map(move |(turn, lists)| {
            verify::reports(lists, user).inspect(move |_| _ = &turn)
        });
        Ok(Response::new(reports.map_ok(wire::report).map_err(Status::from).boxed()))
    }

    async fn stream_changes(
        &self,
        request: Request<pb::StreamChangesRequest>,
    ) -> RpcResult<Self::StreamChangesStream> {
        let query = request.into_inner().query.unwrap_or_default();
        let changes = FeedChanges::<GraphChanges>::new(self.lists.tables().clone());
        let pages = stream_changes(changes, query).await?;
        let response = |page| pb::StreamChangesResponse { page: Some(page) };
        Ok(Response::new(pages.map_ok(response).boxed()))
    }
}
