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
    wire::{self, Timeline},
};

type RpcResult<T> = Result<Response<T>, Status>;

/// The handlers of `TimelineService`.
pub(crate) struct Rpc {
    pub(crate) store: Store,
    pub(crate) reader: Reader,
    pub(crate) delivery: Delivery,
    pub(crate) metrics: Metrics,
}

impl Rpc {
    fn reject(&self, error: Error) -> Status {
        let status = Status::from(error);
        self.metrics.rejected(status.code());
        status
    }

    async fn timeline(
        &self,
        request: &pb::GetTimelineRequest,
    ) -> Result<pb::GetTimelineResponse, Error> {
        let (timeline, query) = Timeline::with_query(request)?;
        let page = self.reader.timeline_page(timeline.reader, timeline.kind, &query).await?;
        Ok(timeline.response(&request.since_token, page))
    }

    async fn authors(&self, request: &pb::ListAuthorsRequest) -> Result<Vec<u64>, Error> {
        let Timeline { reader, kind } = Timeline::of_authors(request)?;
        let authors = self.reader.authors(reader, kind).await?;
        Ok(authors.into_iter().map(UserId::get).collect())
    }

    async fn count(&self, request: &pb::CountNewRequest) -> Result<u32, Error> {
        let timeline = Timeline::home(request.user_id)?;
        let since = timeline.since(&request.since_token)?;
        let query = PageQuery { size: HOME_MAX, cursor: None, since };
        Ok(self.reader.count(timeline.reader, &query).await? as u32)
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

    async fn get_timeline(
        &self,
        request: Request<pb::GetTimelineRequest>,
    ) -> RpcResult<pb::GetTimelineResponse> {
        let page = self.timeline(&request.into_inner()).await;
        Ok(Response::new(page.map_err(|error| self.reject(error))?))
    }

    async fn list_authors(
        &self,
        request: Request<pb::ListAuthorsRequest>,
    ) -> RpcResult<pb::ListAuthorsResponse> {
        let author_ids = self.authors(&request.into_inner()).await;
        let author_ids = author_ids.map_err(|error| self.reject(error))?;
        Ok(Response::new(pb::ListAuthorsResponse { author_ids }))
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
            let timeline = Timeline::home(request.user_id)?;
            Ok((timeline, timeline.since(&request.since_token)?))
        };
        let (timeline, since) = begin().map_err(|error| self.reject(error))?;
        chassis::context::watch().inspect_err(|status| self.metrics.rejected(status.code()))?;
        let watch = Watch::new(self.reader.clone(), self.store.clone(), timeline.reader, since);
        let metrics = self.metrics.clone();
        let updates = watch.pages().map_ok(move |page| timeline.updates(page));
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
