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
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{CACHE_CONTROL, CONTENT_TYPE, EXPECT, ORIGIN, X_CONTENT_TYPE_OPTIONS},
    request::Parts,
};
use http_body_util::{BodyExt as _, Either as EitherBody, Full, LengthLimitError, Limited};
use microblog_domain::Invalid;
use tokio::{
    sync::Mutex,
    task::spawn_blocking,
    time::{Instant, timeout_at},
};
use tonic::{Status, body::Body};
use tonic_web::GrpcWebLayer;
use tower::{Layer as _, Service, util::BoxCloneSyncService};

use self::connect::Transcoder;
use super::call_batches::BatchedCalls;
use crate::{
    call::{context::ServerState, metadata},
    config::Config,
    methods,
    middleware::{Arrived, ArrivingBody, CallBody, message_too_large, overloaded},
    service::{File, Web},
    status,
    telemetry::prometheus,
};

const GRPC: &[u8] = b"application/grpc";
const GRPC_WEB: &[u8] = b"application/grpc-web";

/// How much of a message that is rejected is read.
const DISCARDED_MAX: usize = 16 << 20;
/// The largest body of a health check or of reflection, which take no slot.
const INFRASTRUCTURE_MAX: usize = 4 << 10;
/// The prefix of a message in a stream: its flags and its length.
const ENVELOPE: usize = 5;

const CONNECT_TIMEOUT: &str = "connect-timeout-ms";
/// How the page that makes a request relates to this server; only browsers send it
/// (<https://www.w3.org/TR/fetch-metadata/>).
const SEC_FETCH_SITE: &str = "sec-fetch-site";

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
            let origins = web.allowed_origins.clone();
            let protocols = Protocols::new(calls.clone(), service, web, config, server_state);
            match &origins[..] {
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
    let content_type = content_type(headers);
    content_type.starts_with(GRPC) && !content_type.starts_with(GRPC_WEB)
}

fn is_grpc_web(headers: &HeaderMap) -> bool {
    content_type(headers).starts_with(GRPC_WEB)
}

fn content_type(headers: &HeaderMap) -> &[u8] {
    headers.get(CONTENT_TYPE).map_or(&[], |value| value.as_bytes())
}

/// Returns whether a caller sends its message only after a response with status 100.
fn awaits_continue(parts: &Parts) -> bool {
    let expected = parts.headers.get(EXPECT).map_or(&[][..], |value| value.as_bytes());
    parts.version == Version::HTTP_11 && expected.eq_ignore_ascii_case(b"100-continue")
}

/// Reads the caller's timeout. A malformed one is rejected, not ignored: the caller relies on it.
fn timeout_of(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    if is_grpc_web(headers) {
        return metadata::timeout(headers).map_err(|invalid| status::invalid([invalid]));
    }
    let Some(value) = headers.get(CONNECT_TIMEOUT) else { return Ok(None) };
    let is_number = |text: &&str| {
        (1..=10).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let millis = value.to_str().ok().filter(is_number).and_then(|text| text.parse().ok());
    let invalid = || status::invalid([Invalid::new(CONNECT_TIMEOUT, "must be 1 to 10 digits")]);
    millis.map(|millis| Some(Duration::from_millis(millis))).ok_or_else(invalid)
}

/// The protocols besides gRPC.
#[derive(Clone)]
struct Protocols {
    grpc_web: tonic_web::GrpcWebService<BatchedCalls>,
    connect: ConnectRpcService<Transcoder>,
    server_state: Arc<ServerState>,
    message_max: usize,
    read_timeout: Duration,
    files: Arc<[File]>,
    metrics: bool,
    allowed_origins: Arc<[HeaderValue]>,
}

impl Protocols {
    fn new(
        calls: BatchedCalls,
        service: &'static str,
        Web { allowed_origins, files, metrics }: Web,
        config: &Config,
        server_state: Arc<ServerState>,
    ) -> Self {
        let message_max = config.max_message_bytes;
        let limits = Limits::default()
            .with_max_request_body_size(message_max + ENVELOPE)
            .with_max_message_size(message_max);
        let connect =
            ConnectRpcService::new(Transcoder::new(calls.clone(), service)).with_limits(limits);
        Self {
            grpc_web: GrpcWebLayer::new().layer(calls),
            connect,
            server_state,
            message_max,
            read_timeout: Duration::from_millis(config.default_timeout_ms),
            files: files.into(),
            // Without them, the page says so.
            metrics: metrics && config.metrics_listen.is_some(),
            allowed_origins: allowed_origins.into(),
        }
    }

    /// Reads the message of a call, which is admitted again when it is complete. Its deadline counts from
    /// its arrival.
    async fn read(
        &self,
        request: Request<Body>,
        arrived: Instant,
    ) -> Result<Request<Full<Bytes>>, Status> {
        let (mut parts, mut body) = request.into_parts();
        let is_infrastructure = methods::find(parts.uri.path()).is_infrastructure;
        if !is_infrastructure {
            // An overloaded server also closes a connection of HTTP/1.1.
            let permit = self.server_state.admission.try_admit().ok_or_else(overloaded)?;
            let until = arrived + self.read_timeout;
            body = Body::new(ArrivingBody::new(body, permit, self.server_state.clone(), until));
        }
        let checked = self.check(&parts.headers);
        let awaits_answer = checked.is_err() && awaits_continue(&parts);
        let message = match checked {
            Ok(timeout) => {
                let max =
                    if is_infrastructure { INFRASTRUCTURE_MAX } else { self.body_max(&parts) };
                read_body(&mut body, max, arrived + timeout).await
            }
            Err(status) => Err(status),
        };
        match message {
            Ok(message) => {
                parts.extensions.insert(Arrived(arrived));
                Ok(Request::from_parts(parts, Full::new(message)))
            }
            Err(status) => {
                if parts.version < Version::HTTP_2 && !awaits_answer {
                    let end = arrived + self.discard_timeout(&parts.headers);
                    let _ = timeout_at(end, discard(body)).await;
                }
                Err(status)
            }
        }
    }

    /// Returns how long a message is waited for; or why the call is rejected without it.
    fn check(&self, headers: &HeaderMap) -> Result<Duration, Status> {
        if self.is_foreign(headers) {
            let text = "scripts and pages of this origin may not call";
            return Err(Status::permission_denied(text));
        }
        let call_timeout = timeout_of(headers)?.unwrap_or(self.read_timeout);
        Ok(call_timeout.min(self.read_timeout))
    }

    /// Returns how long a rejected message is read. tonic ends a call of gRPC-Web at its timeout.
    fn discard_timeout(&self, headers: &HeaderMap) -> Duration {
        let timeout = if is_grpc_web(headers) { timeout_of(headers).ok().flatten() } else { None };
        timeout.map_or(self.read_timeout, |timeout| timeout.min(self.read_timeout))
    }

    /// Returns the largest body. Those of gRPC-Web may be in base64; the gRPC call limits their messages.
    fn body_max(&self, parts: &Parts) -> usize {
        let factor = if is_grpc_web(&parts.headers) { 2 } else { 1 };
        factor * (self.message_max + ENVELOPE)
    }

    /// Returns whether a browser sends a request for a page of another site that may not call. A browser
    /// withholds answers from such a page, but sends GET requests without asking first.
    fn is_foreign(&self, headers: &HeaderMap) -> bool {
        let site = headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes);
        let is_allowed =
            || headers.get(ORIGIN).is_some_and(|origin| self.allowed_origins.contains(origin));
        matches!(site, Some(b"cross-site" | b"same-site")) && !is_allowed()
    }
}

impl Service<Request<Body>> for Protocols {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Waker<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        // Media types are case-insensitive; the libraries compare them as they are.
        if let Some(value) = request.headers_mut().get_mut(CONTENT_TYPE) {
            let lower_case = value.as_bytes().to_ascii_lowercase();
            *value = HeaderValue::from_bytes(&lower_case).unwrap_or_else(|_| value.clone());
        }
        if let Some(response) = files::response(&self.files, &request) {
            return future::ready(Ok(response)).boxed();
        }
        if self.metrics && request.uri().path() == prometheus::PATH {
            return match self.is_foreign(request.headers()) {
                true => future::ready(Ok(failed(StatusCode::FORBIDDEN))).boxed(),
                false => read_metrics(request.method().clone()).boxed(),
            };
        }
        // Here, before tonic starts its own timer for `grpc-timeout`, which answers with another code.
        let arrived = Instant::now();
        let mut this = self.clone();
        Box::pin(async move {
            let (mut headers, is_get) =
                (request.headers().clone(), request.method() == Method::GET);
            if is_grpc_web(&headers) {
                return match this.read(request, arrived).await {
                    Ok(request) => this.grpc_web.call(request.map(Body::new)).await,
                    Err(status) => {
                        let mut response = status.into_http();
                        if let Some(media_type) = headers.remove(CONTENT_TYPE) {
                            response.headers_mut().insert(CONTENT_TYPE, media_type);
                        }
                        Ok(response)
                    }
                };
            }
            let Ok(response) = match this.read(request, arrived).await {
                Ok(request) => this.connect.call(request).await,
                Err(status) => Ok(connect::error(&status).into_http_response(&headers)),
            };
            let mut response = response.map(|body| match body {
                // Of a known length.
                ConnectRpcBody::Full(whole) => Body::new(whole),
                other => Body::new(other),
            });
            if is_get {
                // Each viewer has another answer.
                response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            }
            Ok(response)
        })
    }
}

async fn read_body(body: &mut Body, max: usize, deadline: Instant) -> Result<Bytes, Status> {
    match timeout_at(deadline, Limited::new(body, max).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(message_too_large()),
        Ok(Err(error)) => Err(match error.downcast::<Status>() {
            // Of `ArrivingBody`; that of a broken connection has none.
            Ok(status) if status::reason_of(&status).is_some() => *status,
            _ => Status::cancelled("the message is incomplete"),
        }),
        Err(_elapsed) => Err(status::deadline_exceeded()),
    }
}

/// Reads the rest of a message that is rejected. With unread data, a connection of HTTP/1.1 would be
/// reset, and the caller might not get the error.
async fn discard(body: Body) {
    let mut rest = Limited::new(body, DISCARDED_MAX);
    while let Some(Ok(_)) = rest.frame().await {}
}

/// Returns the metrics. Collecting them takes milliseconds, in which the worker has other calls. One
/// caller at a time: whoever reaches the page may ask.
async fn read_metrics(method: Method) -> Result<Response<Body>, Infallible> {
    static COLLECTING: Mutex<()> = Mutex::const_new(());
    let _turn = COLLECTING.lock().await;
    let collected = spawn_blocking(move || prometheus::respond(&method, prometheus::PATH)).await;
    let Ok(response) = collected else { return Ok(failed(StatusCode::INTERNAL_SERVER_ERROR)) };
    let mut response = response.map(Body::new);
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

fn failed(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}
