//! The service on the wire: decode, call, encode; nothing else.

use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use microblog_chassis as chassis;
use microblog_domain::UserId;
use microblog_proto::timeline::{self as pb, timeline_service_server::TimelineService};
use tonic::{Request, Response, Status};

use crate::{
    delivery::Delivery,
    error::Error,
    list::{HOME_MAX, Wanted},
    metrics::Metrics,
    reader::Reader,
    store::Store,
    watch::Watch,
    wire::{self, PageAnswer, PageRequest},
};

type Answer<T> = Result<Response<T>, Status>;

/// The service's calls.
pub(crate) struct Rpc {
    pub(crate) store: Store,
    pub(crate) reader: Reader,
    pub(crate) delivery: Delivery,
    pub(crate) metrics: Metrics,
}

// A request for a page, whatever the timeline.
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
    fn refuse(&self, error: Error) -> Status {
        let status = Status::from(error);
        self.metrics.refused(status.code());
        status
    }

    async fn user_page(&self, request: &PageRequest<'_>) -> Result<PageAnswer, Error> {
        let (user, wanted) = request.read()?;
        Ok(request.answer(user, self.reader.user(user, &wanted).await?))
    }

    async fn home_page(&self, request: &PageRequest<'_>) -> Result<PageAnswer, Error> {
        let (user, wanted) = request.read()?;
        Ok(request.answer(user, self.reader.home(user, &wanted).await?))
    }

    async fn friends_page(&self, request: &PageRequest<'_>) -> Result<PageAnswer, Error> {
        let (user, wanted) = request.read()?;
        Ok(request.answer(user, self.reader.friends(user, &wanted).await?))
    }

    async fn count(&self, request: &pb::CountNewRequest) -> Result<u32, Error> {
        let user = UserId::parse("user_id", request.user_id)?;
        let since = wire::since(wire::HOME, user, &request.since_token)?;
        let wanted = Wanted { size: HOME_MAX, place: None, since };
        Ok(self.reader.count(user, &wanted).await? as u32)
    }
}

#[tonic::async_trait]
impl TimelineService for Rpc {
    async fn deliver(&self, request: Request<pb::DeliverRequest>) -> Answer<pb::DeliverResponse> {
        let posts = wire::posts(&request.into_inner().deliveries);
        let posts = posts.map_err(|error| self.refuse(error))?;
        let delivery = self.delivery.clone();
        let work = async move { delivery.deliver(&posts).await.map_err(Status::from) };
        chassis::mutate(work).await.inspect_err(|status| self.metrics.refused(status.code()))?;
        Ok(Response::new(pb::DeliverResponse {}))
    }

    async fn get_user_timeline(
        &self,
        request: Request<pb::GetUserTimelineRequest>,
    ) -> Answer<pb::GetUserTimelineResponse> {
        let request = request.into_inner();
        let page = self.user_page(&page_request!("GetUserTimeline", request)).await;
        let PageAnswer { entries, next_page_token, since_token, older_than_id, .. } =
            page.map_err(|error| self.refuse(error))?;
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
    ) -> Answer<pb::GetHomeTimelineResponse> {
        let request = request.into_inner();
        let page = self.home_page(&page_request!(wire::HOME, request)).await;
        let PageAnswer { entries, next_page_token, since_token, older_than_id, relations } =
            page.map_err(|error| self.refuse(error))?;
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
    ) -> Answer<pb::GetFriendsTimelineResponse> {
        let request = request.into_inner();
        let page = self.friends_page(&page_request!("GetFriendsTimeline", request)).await;
        let PageAnswer { entries, next_page_token, since_token, older_than_id, relations } =
            page.map_err(|error| self.refuse(error))?;
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
    ) -> Answer<pb::CountNewResponse> {
        let count = self.count(&request.into_inner()).await;
        let count = count.map_err(|error| self.refuse(error))?;
        Ok(Response::new(pb::CountNewResponse { count }))
    }

    type WatchHomeTimelineStream =
        BoxStream<'static, Result<pb::WatchHomeTimelineResponse, Status>>;

    async fn watch_home_timeline(
        &self,
        request: Request<pb::WatchHomeTimelineRequest>,
    ) -> Answer<Self::WatchHomeTimelineStream> {
        let request = request.into_inner();
        let begin = || {
            let user = UserId::parse("user_id", request.user_id)?;
            Ok((user, wire::since(wire::HOME, user, &request.since_token)?))
        };
        let (user, since) = begin().map_err(|error| self.refuse(error))?;
        chassis::context::watch().inspect_err(|status| self.metrics.refused(status.code()))?;
        let watch = Watch::new(self.reader.clone(), self.store.clone(), user, since);
        let metrics = self.metrics.clone();
        let news = watch.pages().map_ok(move |page| wire::news(user, page));
        let news = news.map_err(move |error| {
            let status = Status::from(error);
            metrics.refused(status.code());
            status
        });
        Ok(Response::new(news.boxed()))
    }

    async fn forget_user(
        &self,
        request: Request<pb::ForgetUserRequest>,
    ) -> Answer<pb::ForgetUserResponse> {
        let user = UserId::parse("user_id", request.into_inner().user_id);
        let user = user.map_err(|invalid| self.refuse(invalid.into()))?;
        let forgotten = self.store.forget(user).await;
        forgotten.map_err(|error| self.refuse(error.into()))?;
        Ok(Response::new(pb::ForgetUserResponse {}))
    }

    async fn verify(&self, _request: Request<pb::VerifyRequest>) -> Answer<pb::VerifyResponse> {
        let backlog = self.store.backlog().await.map_err(|error| self.refuse(error.into()))?;
        Ok(Response::new(pb::VerifyResponse {
            jobs_in_flight: backlog.depth,
            oldest_job_age_ms: backlog.age().as_millis() as u64,
        }))
    }
}
