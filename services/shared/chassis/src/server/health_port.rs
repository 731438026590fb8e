//! The port of `--health-listen`: health checks by gRPC, and by HTTP at the path of health.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context as Waker, Poll},
};

use futures::future::{self, Either, Ready};
use http::{Request, Response, StatusCode};
use tonic::{body::Body, service::Routes};
use tower::Service;

use super::{
    health::{self, HealthState},
    health_path,
    web::is_grpc,
};

/// The calls of a port for health checks only.
#[derive(Clone)]
pub(super) struct HealthCalls {
    routes: Routes,
    states: Arc<[Arc<HealthState>]>,
}

impl HealthCalls {
    pub(super) fn new(states: Vec<Arc<HealthState>>) -> Self {
        let routes = Routes::new(health::server(states.clone())).prepare();
        Self { routes, states: states.into() }
    }
}

impl Service<Request<Body>> for HealthCalls {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<
        <Routes as Service<Request<Body>>>::Future,
        Ready<Result<Response<Body>, Infallible>>,
    >;

    fn poll_ready(&mut self, _: &mut Waker<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let response = health_path::response(&self.states, &request).or_else(|| {
            // The routes would answer with HTTP status 200, and a prober that has another path would
            // take that for health.
            let is_other = !is_grpc(request.headers());
            is_other.then(|| health_path::text(StatusCode::NOT_FOUND, "GET /healthz\n"))
        });
        match response {
            Some(response) => Either::Right(future::ready(Ok(response))),
            None => Either::Left(self.routes.call(request)),
        }
    }
}
