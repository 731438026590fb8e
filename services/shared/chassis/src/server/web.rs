//! The calls of a public server in the protocols of browsers and of `curl`: gRPC-Web and Connect, over
//! HTTP/1.1 and HTTP/2. Each becomes a gRPC call of the same process, which passes the same
//! middleware. A gRPC call costs one comparison of its content type.

mod connect;
mod cors;
mod files;

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context as Waker, Poll},
    time::Duration,
};

use bytes::Bytes;
use connectrpc::{ConnectRpcBody, ConnectRpcService, Limits};
use futures::{
    FutureExt as _,
    future::{self, BoxFuture, Either},
};
use http::{HeaderMap, Request, Response, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Either as EitherBody, Full, LengthLimitError, Limited};
use tokio::time::timeout;
use tonic::{Status, body::Body};
use tonic_web::GrpcWebLayer;
use tower::{Layer as _, Service, util::BoxCloneSyncService};

use self::connect::Transcoder;
use super::call_batches::BatchedCalls;
use crate::{
    call::context::ServerState,
    config::Config,
    middleware::{CallBody, message_too_large, overloaded},
    service::{File, Web},
    status,
};

const GRPC: &[u8] = b"application/grpc";
const GRPC_WEB: &[u8] = b"application/grpc-web";

type Served = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// The calls of one server in one worker, in all protocols that it serves.
#[derive(Clone)]
pub(super) struct PublicCalls {
    calls: BatchedCalls,
    /// `None` if the server serves only gRPC.
    web: Option<Served>,
}

impl PublicCalls {
    pub(super) fn new(
        calls: BatchedCalls,
        service: &'static str,
        web: Option<Web>,
        config: &Config,
        server_state: Arc<ServerState>,
    ) -> Self {
        let web = web.map(|web| {
            let protocols = Protocols::new(calls.clone(), service, web.files, config, server_state);
            match &web.allowed_origins[..] {
                [] => BoxCloneSyncService::new(protocols),
                origins => BoxCloneSyncService::new(cors::layer(origins).layer(protocols)),
            }
        });
        Self { calls, web }
    }
}

type CallsBody = EitherBody<CallBody, Body>;
type Answered = Result<Response<EitherBody<CallsBody, Body>>, Infallible>;
type ToEither = fn(Result<Response<CallsBody>, Infallible>) -> Answered;
type CallsFuture = <BatchedCalls as Service<Request<Body>>>::Future;

impl Service<Request<Body>> for PublicCalls {
    type Response = Response<EitherBody<CallsBody, Body>>;
    type Error = Infallible;
    type Future = Either<future::Map<CallsFuture, ToEither>, BoxFuture<'static, Answered>>;

    fn poll_ready(&mut self, _: &mut Waker<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match &mut self.web {
            Some(web) if !is_grpc(request.headers()) => {
                let response = web.call(request);
                Either::Right(
                    response.map(|served| served.map(|one| one.map(EitherBody::Right))).boxed(),
                )
            }
            _ => {
                let to_either: ToEither =
                    |answered| answered.map(|response| response.map(EitherBody::Left));
                Either::Left(self.calls.call(request).map(to_either))
            }
        }
    }
}

/// Returns whether a request is a gRPC call, and not one of gRPC-Web.
fn is_grpc(headers: &HeaderMap) -> bool {
    content_type(headers).starts_with(GRPC) && !content_type(headers).starts_with(GRPC_WEB)
}

fn content_type(headers: &HeaderMap) -> &[u8] {
    headers.get(CONTENT_TYPE).map_or(&[], |value| value.as_bytes())
}

/// The protocols besides gRPC.
#[derive(Clone)]
struct Protocols {
    grpc_web: tonic_web::GrpcWebService<BatchedCalls>,
    connect: ConnectRpcService<Transcoder>,
    server_state: Arc<ServerState>,
    message_max: usize,
    read_timeout: Duration,
    files: &'static [File],
}

impl Protocols {
    fn new(
        calls: BatchedCalls,
        service: &'static str,
        files: &'static [File],
        config: &Config,
        server_state: Arc<ServerState>,
    ) -> Self {
        let message_max = config.max_message_bytes;
        let limits = Limits::default()
            .with_max_request_body_size(message_max)
            .with_max_message_size(message_max);
        let connect =
            ConnectRpcService::new(Transcoder::new(calls.clone(), service)).with_limits(limits);
        Self {
            grpc_web: GrpcWebLayer::new().layer(calls),
            connect,
            server_state,
            message_max,
            read_timeout: Duration::from_millis(config.default_timeout_ms),
            files,
        }
    }

    /// Reads the message of a Connect call, which is admitted again when it is complete.
    async fn read(&self, request: Request<Body>) -> Result<Request<Full<Bytes>>, Status> {
        let _permit = self.server_state.admission.try_admit().ok_or_else(overloaded)?;
        let (parts, body) = request.into_parts();
        let body = Limited::new(body, self.message_max).collect();
        match timeout(self.read_timeout, body).await {
            Ok(Ok(body)) => Ok(Request::from_parts(parts, Full::new(body.to_bytes()))),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(message_too_large()),
            Ok(Err(_broken)) => Err(Status::cancelled("the message has no end")),
            Err(_elapsed) => Err(status::deadline_exceeded()),
        }
    }
}

impl Service<Request<Body>> for Protocols {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Waker<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if content_type(request.headers()).starts_with(GRPC_WEB) {
            return self.grpc_web.call(request).boxed();
        }
        if let Some(response) = files::response(self.files, &request) {
            return future::ready(Ok(response)).boxed();
        }
        let mut this = self.clone();
        Box::pin(async move {
            let headers = request.headers().clone();
            let Ok(response) = match this.read(request).await {
                Ok(request) => this.connect.call(request).await,
                Err(status) => Ok(connect::error(&status).into_http_response(&headers)),
            };
            Ok(response.map(|body| match body {
                // Of a known length.
                ConnectRpcBody::Full(whole) => Body::new(whole),
                other => Body::new(other),
            }))
        })
    }
}
