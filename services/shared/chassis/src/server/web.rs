//! The calls of a public server in the protocols of browsers and of `curl`: gRPC-Web and Connect, over
//! HTTP/1.1 and HTTP/2. Each becomes a gRPC call of the same process, which passes the same
//! middleware. A gRPC call costs one comparison of its content type.

mod connect;
mod cors;
mod envelope;
mod files;
mod head;
mod rejection;

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context as Waker, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{
    FutureExt as _,
    future::{self, BoxFuture, Either},
};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, Version,
    header::{CACHE_CONTROL, CONTENT_TYPE, ORIGIN, X_CONTENT_TYPE_OPTIONS},
    request::Parts,
};
use http_body_util::{BodyExt as _, Either as EitherBody, Full, LengthLimitError, Limited};
use microblog_proto::common::ErrorReason;
use tokio::{
    sync::Mutex,
    task::spawn_blocking,
    time::{Instant, timeout_at},
};
use tonic::{Code, Status, body::Body};
use tonic_web::GrpcWebLayer;
use tower::{Layer as _, Service, util::BoxCloneSyncService};

pub(super) use self::head::is_grpc;
use self::{
    connect::{Connect, is_exchange},
    envelope::PREFIX,
    head::{Form, awaits_continue, is_grpc_web},
    rejection::Rejection,
};
use super::{call_batches::BatchedCalls, connection::Connection, health::HealthState, health_path};
use crate::{
    call::context::ServerState,
    config::Config,
    methods,
    middleware::{Arrived, ArrivingBody, CallBody, message_too_large, overloaded},
    service::{File, Web},
    status,
    telemetry::prometheus,
};

/// How much of a message that is rejected is read.
const DISCARDED_MAX: usize = 16 << 20;
/// The largest body of a health check or of reflection, which take no slot.
const INFRASTRUCTURE_MAX: usize = 4 << 10;

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
    health: Arc<[Arc<HealthState>]>,
}

impl PublicCalls {
    pub(super) fn new(
        calls: BatchedCalls,
        service: &'static str,
        web: Option<Web>,
        config: &Config,
        server_state: Arc<ServerState>,
        health: Arc<HealthState>,
    ) -> Self {
        let web = web.map(|web| {
            let origins = web.allowed_origins.clone();
            let protocols = Protocols::new(calls.clone(), service, web, config, server_state);
            match &origins[..] {
                [] => BoxCloneSyncService::new(protocols),
                origins => BoxCloneSyncService::new(cors::layer(origins).layer(protocols)),
            }
        });
        Self { calls, web, health: [health].into() }
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
        if let Some(response) = health_path::response(&self.health, &request) {
            return Either::Right(future::ready(Ok(response.map(EitherBody::Right))).boxed());
        }
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

/// The protocols besides gRPC.
#[derive(Clone)]
struct Protocols {
    grpc_web: tonic_web::GrpcWebService<BatchedCalls>,
    connect: Connect,
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
        Web { allowed_origins, files, metrics, proxy_protocol: _ }: Web,
        config: &Config,
        server_state: Arc<ServerState>,
    ) -> Self {
        let message_max = config.max_message_bytes;
        let connect = Connect::new(calls.clone(), service, message_max);
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
    /// its arrival. `asked` is what it asks for, by its head.
    async fn read<T>(
        &self,
        request: Request<Body>,
        arrived: Instant,
        asked: Result<T, Rejection>,
    ) -> Result<(T, Request<Bytes>), Rejection> {
        let (mut parts, mut body) = request.into_parts();
        let is_infrastructure = methods::find(parts.uri.path()).is_infrastructure;
        if !is_infrastructure {
            // An overloaded server also closes a connection of HTTP/1.1.
            let connection_call = parts.extensions.get().map(Connection::start_call);
            let permit = self.server_state.admission.try_admit(connection_call);
            let permit = permit.ok_or_else(overloaded)?;
            let until = arrived + self.read_timeout;
            body = Body::new(ArrivingBody::new(body, permit, self.server_state.clone(), until));
        }
        let checked = self.check(&parts.headers).map_err(Rejection::from);
        let checked = checked.and_then(|timeout| Ok((timeout, asked?)));
        let awaits_answer = checked.is_err() && awaits_continue(&parts);
        let message = match checked {
            Ok((timeout, asked)) => {
                let max =
                    if is_infrastructure { INFRASTRUCTURE_MAX } else { self.body_max(&parts) };
                let message = read_body(&mut body, max, arrived + timeout).await;
                message.map(|message| (asked, message)).map_err(Rejection::from)
            }
            Err(rejection) => Err(rejection),
        };
        match message {
            Ok((asked, message)) => {
                parts.extensions.insert(Arrived(arrived));
                Ok((asked, Request::from_parts(parts, message)))
            }
            Err(rejection) => {
                if parts.version < Version::HTTP_2 && !awaits_answer {
                    let end = arrived + self.discard_timeout(&parts.headers);
                    let _ = timeout_at(end, discard(body)).await;
                }
                Err(rejection)
            }
        }
    }

    /// Returns how long a message is waited for; or why the call is rejected without it.
    fn check(&self, headers: &HeaderMap) -> Result<Duration, Status> {
        if self.is_foreign(headers) {
            return Err(foreign());
        }
        let call_timeout = head::timeout(headers)?.unwrap_or(self.read_timeout);
        Ok(call_timeout.min(self.read_timeout))
    }

    /// Returns how long a rejected message is read. tonic ends a call of gRPC-Web at its timeout.
    fn discard_timeout(&self, headers: &HeaderMap) -> Duration {
        let timeout =
            if is_grpc_web(headers) { head::timeout(headers).ok().flatten() } else { None };
        timeout.map_or(self.read_timeout, |timeout| timeout.min(self.read_timeout))
    }

    /// Returns the largest body. Those of gRPC-Web may be in base64; the gRPC call limits their messages.
    fn body_max(&self, parts: &Parts) -> usize {
        let factor = if is_grpc_web(&parts.headers) { 2 } else { 1 };
        factor * (self.message_max + PREFIX)
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
        // Media types are case-insensitive; `tonic-web` compares them as they are.
        if let Some(value) = request.headers_mut().get_mut(CONTENT_TYPE) {
            let lower_case = value.as_bytes().to_ascii_lowercase();
            *value = HeaderValue::from_bytes(&lower_case).unwrap_or_else(|_| value.clone());
        }
        if let Some(response) = files::response(&self.files, &request) {
            return future::ready(Ok(response)).boxed();
        }
        if self.metrics && request.uri().path() == prometheus::PATH {
            return match self.is_foreign(request.headers()) {
                true => future::ready(Ok(failed(foreign()))).boxed(),
                false => read_metrics(request.method().clone()).map(Ok).boxed(),
            };
        }
        // Here, before tonic starts its own timer for `grpc-timeout`, which answers with another code.
        let arrived = Instant::now();
        let mut this = self.clone();
        Box::pin(async move {
            Ok(match is_grpc_web(request.headers()) {
                true => this.answer_grpc_web(request, arrived).await,
                false => this.answer_connect(request, arrived).await,
            })
        })
    }
}

impl Protocols {
    async fn answer_grpc_web(
        &mut self,
        request: Request<Body>,
        arrived: Instant,
    ) -> Response<Body> {
        let content_type = request.headers().get(CONTENT_TYPE).cloned();
        let known = match (request.method(), head::is_known_grpc_web(request.headers())) {
            (&Method::POST, true) => Ok(()),
            (&Method::POST, false) => Err(Rejection::media_type(
                "application/grpc-web+proto or application/grpc-web-text+proto",
            )),
            _ => Err(Rejection::http_method("POST", "call this method by POST")),
        };
        match self.read(request, arrived, known).await {
            Ok(((), mut request)) => {
                let media_type = HeaderValue::from_bytes(head::media_type(request.headers()));
                if let Ok(media_type) = media_type {
                    request.headers_mut().insert(CONTENT_TYPE, media_type);
                }
                let Ok(response) = self.grpc_web.call(request.map(Full::new)).await;
                response
            }
            Err(rejection) => rejection.into_grpc_web(content_type),
        }
    }

    async fn answer_connect(&mut self, request: Request<Body>, arrived: Instant) -> Response<Body> {
        let (form, is_get) = (Form::of(&request), request.method() == Method::GET);
        let answered = if is_exchange(&request) {
            match self.check(request.headers()) {
                Ok(_timeout) => self.connect.exchange(request).await,
                Err(status) => Err(status.into()),
            }
        } else {
            let asked = self.connect.asked(&request);
            match self.read(request, arrived, asked).await {
                Ok((asked, request)) => self.connect.call(asked, request).await,
                Err(rejection) => Err(rejection),
            }
        };
        let mut response = answered.unwrap_or_else(|rejection| rejection.into_response(form));
        if is_get {
            // Each viewer has another answer.
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        response
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
async fn read_metrics(method: Method) -> Response<Body> {
    static COLLECTING: Mutex<()> = Mutex::const_new(());
    let _turn = COLLECTING.lock().await;
    let collected = spawn_blocking(move || prometheus::respond(&method, prometheus::PATH)).await;
    let Ok(response) = collected else { return failed(status::internal()) };
    let mut response = response.map(Body::new);
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns PERMISSION_DENIED for a page of another site.
fn foreign() -> Status {
    let text = "scripts and pages of this origin may not call";
    status::with_reason(Code::PermissionDenied, ErrorReason::OriginNotAllowed, text)
}

fn failed(status: Status) -> Response<Body> {
    Rejection::from(status).into_response(Form::Unary)
}
