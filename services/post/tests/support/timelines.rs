//! A fake timeline service: it records every delivery, and the test sets how it answers.

use std::{
    future,
    net::TcpListener,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
};

use futures::stream;
use microblog_chassis::{Service, serve};
use microblog_post::Config;
use microblog_proto::timeline::{
    self, DeliverRequest, DeliverResponse, Delivery,
    timeline_service_server::{SERVICE_NAME, TimelineService, TimelineServiceServer},
};
use tonic::{Request, Response, Status, service::Routes};

/// How it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mode {
    /// It succeeds.
    Ok,
    /// It is unavailable.
    Unavailable,
    /// It records the delivery, and does not answer.
    Hanging,
    /// It records the delivery, and answers with an error.
    Failing,
}

/// A fake timeline service.
#[derive(Clone, Default)]
pub(crate) struct Timelines {
    heard: Arc<Mutex<Vec<Delivery>>>,
    largest: Arc<AtomicUsize>,
    rejected: Arc<Mutex<Option<u64>>>,
    mode: Arc<AtomicU8>,
}

impl Timelines {
    /// Returns every delivery so far, in order, including repeated ones.
    pub(crate) fn deliveries(&self) -> Vec<Delivery> {
        self.heard.lock().unwrap().clone()
    }

    /// Returns how often a post was delivered.
    pub(crate) fn times(&self, post_id: u64) -> usize {
        self.heard.lock().unwrap().iter().filter(|heard| heard.post_id == post_id).count()
    }

    /// Returns the number of posts of the largest call so far.
    pub(crate) fn largest(&self) -> usize {
        self.largest.load(Ordering::SeqCst)
    }

    pub(crate) fn answer(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::SeqCst);
    }

    /// Rejects any call that delivers this post; `None` rejects none.
    pub(crate) fn reject(&self, post_id: Option<u64>) {
        *self.rejected.lock().unwrap() = post_id;
    }

    /// Returns it as a service, to be called in this process or served.
    pub(crate) fn service(&self) -> Service {
        Service {
            name: SERVICE_NAME,
            routes: Routes::new(TimelineServiceServer::new(self.clone())),
            handler: None,
            web: None,
            ready: Arc::new(|| Box::pin(future::ready(true))),
            background: Vec::new(),
        }
    }

    /// Serves it on a free port and returns its address.
    pub(crate) fn listen(&self, config: &Config) -> String {
        super::run(self.service(), config)
    }

    /// Serves it on a port that was reserved before.
    pub(crate) fn listen_on(&self, listener: TcpListener, config: &Config) {
        let (service, chassis) = (self.service(), config.chassis.clone());
        tokio::spawn(async move {
            serve(listener, service, &chassis, future::pending()).await.unwrap();
        });
    }
}

#[tonic::async_trait]
impl TimelineService for Timelines {
    async fn deliver(
        &self,
        request: Request<DeliverRequest>,
    ) -> Result<Response<DeliverResponse>, Status> {
        let mode = self.mode.load(Ordering::SeqCst);
        if mode == Mode::Unavailable as u8 {
            return Err(Status::unavailable("unavailable"));
        }
        let deliveries = request.into_inner().deliveries;
        let rejected = *self.rejected.lock().unwrap();
        if deliveries.iter().any(|delivery| Some(delivery.post_id) == rejected) {
            return Err(Status::invalid_argument("rejected"));
        }
        self.largest.fetch_max(deliveries.len(), Ordering::SeqCst);
        self.heard.lock().unwrap().extend(deliveries);
        if mode == Mode::Hanging as u8 {
            future::pending::<()>().await;
        }
        if mode == Mode::Failing as u8 {
            return Err(Status::internal("failed"));
        }
        Ok(Response::new(DeliverResponse {}))
    }

    // The post service calls nothing else.

    async fn get_timeline(
        &self,
        _: Request<timeline::GetTimelineRequest>,
    ) -> Result<Response<timeline::GetTimelineResponse>, Status> {
        Err(Status::unimplemented("not called"))
    }

    async fn list_authors(
        &self,
        _: Request<timeline::ListAuthorsRequest>,
    ) -> Result<Response<timeline::ListAuthorsResponse>, Status> {
        Err(Status::unimplemented("not called"))
    }

    async fn count_new(
        &self,
        _: Request<timeline::CountNewRequest>,
    ) -> Result<Response<timeline::CountNewResponse>, Status> {
        Err(Status::unimplemented("not called"))
    }

    async fn forget_user(
        &self,
        _: Request<timeline::ForgetUserRequest>,
    ) -> Result<Response<timeline::ForgetUserResponse>, Status> {
        Err(Status::unimplemented("not called"))
    }

    async fn verify(
        &self,
        _: Request<timeline::VerifyRequest>,
    ) -> Result<Response<timeline::VerifyResponse>, Status> {
        Err(Status::unimplemented("not called"))
    }

    type WatchHomeTimelineStream =
        stream::Pending<Result<timeline::WatchHomeTimelineResponse, Status>>;

    async fn watch_home_timeline(
        &self,
        _: Request<timeline::WatchHomeTimelineRequest>,
    ) -> Result<Response<Self::WatchHomeTimelineStream>, Status> {
        Err(Status::unimplemented("not called"))
    }
}
