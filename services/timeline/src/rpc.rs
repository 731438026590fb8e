//! The gRPC handlers: decode, call, encode.

use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use microblog_chassis as chassis;
use microblog_domain::UserId;
use microblog_proto::timeline::{self as pb, timeline_service_server::TimelineService};
use tonic::{Request, Response, Status};

use crate::{
    delivery::Delivery,
    error::Error,
    list::{HOME_MAX, PageQuery},
    metrics::Metrics,
    reader::Reader,
    store::Store,
    watch::Watch,
    wire::{self, PageRequest, PageResponse},
};

type RpcResult<T> = Result<Response<T>, Status>;

/// The handlers of `TimelineService`.
pub(crate) struct Rpc {
    pub(crate) store: Store,
    pub(crate) reader: Reader,
    pub(crate) delivery: Delivery,
    pub(crate) metrics: Metrics,
}

// Builds a page request from the request of any timeline.
macro_rules! page_request {
    ($timeline:expr, $request:expr) => {
        PageRequest {
            timeline: $timeline,
            user_id: $request.user_id,
            page_size: $request.page_size,
            page_token: &$request.page_token,
            since_token: &$request.since_token,
        }
    };
}

impl Rpc {
    fn reject(&self, error: Error) -> Status {
        let status = Status::from(error);
        self.metrics.rejected(status.code());
        status
    }

    async fn user_page(&self, request: &PageRequest<'_>) -> Result<PageResponse, Error> {
        let (user, query) = request.decode()?;
        Ok(request.encode(user, self.reader.user(user, &query).await?))
    }

    async fn home_page(&self, request: &PageRequest<'_>) -> Result<PageResponse, Error> {
        let (user, query) = request.decode()?;
        Ok(request.encode(user, self.reader.home(user, &query).await?))
    }

    async fn friends_page(&self, request: &PageRequest<'_>) -> Result<PageResponse, Error> {
        let (user, query) = request.decode()?;
        Ok(request.encode(user, self.reader.friends(user, &query).await?))
    }

    async fn count(&self, request: &pb::CountNewRequest) -> Result<u32, Error> {
        let user = UserId::parse("user_id", request.user_id)?;
        let since = wire::since(wire::HOME, user, &request.since_token)?;
        let query = PageQuery { size: HOME_MAX, cursor: None, since };
        Ok(self.reader.count(user, &query).await? as u32)
    }
}

#[tonic::async_trait]
impl TimelineService for Rpc {
    async fn deliver(
        &self,
        request: Request<pb::DeliverRequest>,
    ) -> RpcResult<pb::DeliverResponse> {
        let posts = wire::posts(&request.into_inner().deliveries);
        let posts = posts.map_err(|error| self.reject(error))?;
        let delivery = self.delivery.clone();
        let work = async move { delivery.deliver(&posts).await.map_err(Status::from) };
        chassis::mutate(work).await.inspect_err(|status| self.metrics.rejected(status.code()))?;
        Ok(Response::new(pb::DeliverResponse {}))
    }

    async fn get_user_timeline(
        &self,
        request: Request<pb::GetUserTimelineRequest>,
    ) -> RpcResult<pb::GetUserTimelineResponse> {
        let request = request.into_inner();
        let page = self.user_page(&page_request!("GetUserTimeline", request)).await;
        let PageResponse { entries, next_page_token, since_token, older_than_id, .. } =
            page.map_err(|error| self.reject(error))?;
        Ok(Response::new(pb::GetUserTimelineResponse {
            entries,
            next_page_token,
            since_token,
            older_than_id,
        }))
    }

    async fn get_home_timeline(
        &self,
        request: Request<pb::GetHomeTimelineRequest>,
    ) -> RpcResult<pb::GetHomeTimelineResponse> {
        let request = request.into_inner();
        let page = self.home_page(&page_request!(wire::HOME, request)).await;
        let PageResponse { entries, next_page_token, since_token, older_than_id, relations } =
            page.map_err(|error| self.reject(error))?;
        Ok(Response::new(pb::GetHomeTimelineResponse {
            entries,
            next_page_token,
            since_token,
            older_than_id,
            relations,
        }))
    }

    async fn get_friends_timeline(
        &self,
        request: Request<pb::GetFriendsTimelineRequest>,
    ) -> RpcResult<pb::GetFriendsTimelineResponse> {
        let request = request.into_inner();
        let page = self.friends_page(&page_request!("GetFriendsTimeline", request)).await;
        let PageResponse { entries, next_page_token, since_token, older_than_id, relations } =
            page.map_err(|error| self.reject(error))?;
        Ok(Response::new(pb::GetFriendsTimelineResponse {
            entries,
            next_page_token,
            since_token,
            relations,
            older_than_id,
        }))
    }

    async fn count_new(
        &self,
        request: Request<pb::CountNewRequest>,
    ) -> RpcResult<pb::CountNewResponse> {
        let count = self.count(&request.into_inner()).await;
        let count = count.map_err(|error| self.reject(error))?;
        Ok(Response::new(pb::CountNewResponse { count }))
    }

    type WatchHomeTimelineStream =
        BoxStream<'static, Result<pb::WatchHomeTimelineResponse, Status>>;

    async fn watch_home_timeline(
        &self,
        request: Request<pb::WatchHomeTimelineRequest>,
    ) -> RpcResult<Self::WatchHomeTimelineStream> {
        let request = request.into_inner();
        let begin = || {
            let user = UserId::parse("user_id", request.user_id)?;
            Ok((user, wire::since(wire::HOME, user, &request.since_token)?))
        };
        let (user, since) = begin().map_err(|error| self.reject(error))?;
        chassis::context::watch().inspect_err(|status| self.metrics.rejected(status.code()))?;
        let watch = Watch::new(self.reader.clone(), self.store.clone(), user, since);
        let metrics = self.metrics.clone();
        let updates = watch.pages().map_ok(move |page| wire::updates(user, page));
        let updates = updates.map_err(move |error| {
            let status = Status::from(error);
            metrics.rejected(status.code());
            status
        });
        Ok(Response::new(updates.boxed()))
    }

    async fn forget_user(
        &self,
        request: Request<pb::ForgetUserRequest>,
    ) -> RpcResult<pb::ForgetUserResponse> {
        let user = UserId::parse("user_id", request.into_inner().user_id);
        let user = user.map_err(|invalid| self.reject(invalid.into()))?;
        let forgotten = self.store.forget(user).await;
        forgotten.map_err(|error| self.reject(error.into()))?;
        Ok(Response::new(pb::ForgetUserResponse {}))
    }

    async fn verify(&self, _request: Request<pb::VerifyRequest>) -> RpcResult<pb::VerifyResponse> {
        let backlog = self.store.backlog().await.map_err(|error| self.reject(error.into()))?;
        Ok(Response::new(pb::VerifyResponse {
            jobs_in_flight: backlog.depth,
            oldest_job_age_ms: backlog.age().as_millis() as u64,
        }))
    }
}
