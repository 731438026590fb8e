//! Batches of calls from other processes: a stream on which a client sends many unary calls. Each
//! call passes the same middleware as a request of its own, and ends alone; calls that end at the
//! same time share a reply message.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context as Waker, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{
    FutureExt as _, Stream, StreamExt as _,
    future::{self, AbortHandle, Abortable, BoxFuture, Either, abortable},
    stream::FuturesUnordered,
};
use http::{
    HeaderMap, Method, Request, Response, Uri, Version, header::CONTENT_TYPE, uri::PathAndQuery,
};
use http_body::Frame;
use http_body_util::{BodyExt as _, Either as EitherBody, Full};
use microblog_domain::{IdMap, Invalid};
use microblog_proto::common::{BatchedCall, BatchedReply, CallBatch, ReplyBatch};
use prost::Message as _;
use rand::random_range;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};
use tokio_util::{sync::PollSender, task::AbortOnDropHandle};
use tonic::{Code, Status, Streaming, body::Body, server::Grpc};
use tonic_prost::ProstCodec;
use tower::Service;

use super::connection::Connection;
use crate::{
    call::{
        batch::{self, GRPC_CONTENT_TYPE, PATH},
        context::ServerState,
        metadata::GRPC_STATUS,
    },
    config::Config,
    methods,
    middleware::{Arrived, CallBody, CallFuture, Calls},
    status,
};

/// Calls of a stream that wait to be started. With more, it is not read, and so no cancellation
/// either.
const WAITING_MAX: usize = 1024;
const WAITING_BYTES_MAX: usize = 4 << 20;

/// Calls, and cancelled calls, of a message. Clients send far fewer.
const BATCH_MAX: usize = 1024;

/// A reply message is sent when it has this many bytes, so that large replies do not wait for each
/// other.
const REPLY_BYTES_MAX: usize = 32 << 10;

/// The calls of one server in one worker, in batches or not.
#[derive(Clone)]
pub(super) struct BatchedCalls {
    calls: Calls,
    /// `None` if the service takes no batches.
    settings: Option<Settings>,
}

#[derive(Clone)]
struct Settings {
    /// Most calls of a stream that run at the same time.
    running_max: usize,
    /// Age before which a stream ends. `None`: unlimited.
    age: Option<Duration>,
    server_state: Arc<ServerState>,
}

impl BatchedCalls {
    /// Returns the calls of a service. Batches are for services behind the gateway: at a public port,
    /// one small message could cost much work.
    pub(super) fn new(
        calls: Calls,
        service: &str,
        config: &Config,
        server_state: Arc<ServerState>,
    ) -> Self {
        let settings = methods::is_internal(service).then(|| Settings {
            running_max: config.max_streams as usize,
            age: (config.max_connection_age_s > 0)
                .then(|| Duration::from_secs(config.max_connection_age_s)),
            server_state,
        });
        Self { calls, settings }
    }
}

type Answered = Result<Response<EitherBody<CallBody, Body>>, Infallible>;
type ToEither = fn(Result<Response<CallBody>, Infallible>) -> Answered;

impl Service<Request<Body>> for BatchedCalls {
    type Response = Response<EitherBody<CallBody, Body>>;
    type Error = Infallible;
    type Future = Either<future::Map<CallFuture, ToEither>, BoxFuture<'static, Answered>>;

    fn poll_ready(&mut self, _: &mut Waker<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match &self.settings {
            Some(settings) if request.uri().path() == PATH => {
                let exchange = exchange(self.calls.clone(), settings.clone(), request);
                Either::Right(exchange.map(|response| Ok(response.map(EitherBody::Right))).boxed())
            }
            _ => {
                let to_either: ToEither =
                    |answered| answered.map(|response| response.map(EitherBody::Left));
                Either::Left(self.calls.call(request).map(to_either))
            }
        }
    }
}

/// Responds to the request that opens a stream.
async fn exchange(calls: Calls, settings: Settings, request: Request<Body>) -> Response<Body> {
    let uri = request.uri().clone();
    let connection = request.extensions().get::<Connection>().cloned();
    let handler = tower::service_fn(|request: tonic::Request<Streaming<CallBatch>>| {
        let starter =
            Starter { calls: calls.clone(), uri: uri.clone(), connection: connection.clone() };
        let exchange = Exchange {
            starter,
            incoming: Some(request.into_inner()),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            running: FuturesUnordered::new(),
            running_max: settings.running_max,
            handles: IdMap::default(),
            ended: VecDeque::new(),
            ended_bytes: 0,
            closing: Some(closing(settings.clone()).boxed()),
            tells_closing: false,
        };
        let (sender, batches) = mpsc::channel(1);
        let running = AbortOnDropHandle::new(tokio::spawn(run(exchange, sender)));
        future::ready(Ok::<_, Status>(tonic::Response::new(Replies { batches, _running: running })))
    });
    Grpc::new(ProstCodec::<ReplyBatch, CallBatch>::default()).streaming(handler, request).await
}

/// Waits until a stream should end.
async fn closing(settings: Settings) {
    let stopped = settings.server_state.closing.cancelled();
    match settings.age {
        // Either may come first. Before the connection's own age: HTTP/2 would wait for the end of the
        // stream. Not all streams of a moment at once.
        Some(age) => drop(timeout(age.mul_f64(random_range(0.8..0.9)), stopped).await),
        None => stopped.await,
    }
}

/// The replies to the calls of a stream. Dropping it cancels the calls.
struct Replies {
    batches: mpsc::Receiver<Result<ReplyBatch, Status>>,
    _running: AbortOnDropHandle<()>,
}

impl Stream for Replies {
    type Item = Result<ReplyBatch, Status>;

    fn poll_next(mut self: Pin<&mut Self>, waker: &mut Waker<'_>) -> Poll<Option<Self::Item>> {
        self.batches.poll_recv(waker)
    }
}

/// Runs the calls of a stream in a task of their own: HTTP/2 does not ask for replies that its client
/// does not read, and the deadlines and cancellations of the calls must not wait for that.
async fn run(mut exchange: Exchange, batches: mpsc::Sender<Result<ReplyBatch, Status>>) {
    let mut replies = PollSender::new(batches.clone());
    let outcome = future::poll_fn(|waker| exchange.poll(waker, &mut replies)).await;
    // Calls end here. So does the sender: nothing would poll its place in the queue any more, and the
    // error would wait behind it.
    drop((exchange, replies));
    if let Err(status) = outcome {
        // Fails only if the client has gone.
        let _ = batches.send(Err(status)).await;
    }
}

/// A call that is not started yet.
struct WaitingCall {
    call: BatchedCall,
    /// Of its message.
    bytes: usize,
    arrived: Instant,
}

/// A stream of batches: the calls that it receives, and their replies.
struct Exchange {
    starter: Starter,
    /// `None` after its end.
    incoming: Option<Streaming<CallBatch>>,
    waiting: VecDeque<WaitingCall>,
    /// Of their messages: a call may be all path and metadata.
    waiting_bytes: usize,
    running: FuturesUnordered<Abortable<BoxFuture<'static, BatchedReply>>>,
    running_max: usize,
    /// Handles of the running calls, by id.
    handles: IdMap<u64, AbortHandle>,
    /// Replies that are not sent yet, with the sizes of their messages.
    ended: VecDeque<(BatchedReply, usize)>,
    ended_bytes: usize,
    /// Pending until the stream should end; `None` after that.
    closing: Option<BoxFuture<'static, ()>>,
    /// Whether the client is to be told that the stream should end.
    tells_closing: bool,
}

impl Exchange {
    /// Receives, starts and runs calls, and sends their replies. Ends with the stream, or when its
    /// client has gone.
    fn poll(
        &mut self,
        waker: &mut Waker<'_>,
        batches: &mut PollSender<Result<ReplyBatch, Status>>,
    ) -> Poll<Result<(), Status>> {
        if self.closing.as_mut().is_some_and(|one| one.poll_unpin(waker).is_ready()) {
            self.closing = None;
            self.tells_closing = true;
        }
        loop {
            // A client that does not read gets no further calls started.
            if self.ended_bytes < REPLY_BYTES_MAX {
                self.start_calls(waker)?;
            }
            self.run_calls(waker);
            let has_batch = self.tells_closing || !self.ended.is_empty();
            if has_batch {
                match batches.poll_reserve(waker) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_gone)) => return Poll::Ready(Ok(())),
                    Poll::Pending => return Poll::Pending,
                }
                // Fails only if the client has gone: the next reservation finds it.
                let _ = batches.send_item(Ok(self.next_batch()));
                continue;
            }
            // Otherwise a cancelled call that ended, without a reply, made room for one that waits.
            if self.waiting.is_empty() || self.running.len() >= self.running_max {
                break;
            }
        }
        let is_end = self.incoming.is_none() && self.running.is_empty();
        if is_end { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Starts calls until none waits, or as many run as may. Returns when no more can be received.
    fn start_calls(&mut self, waker: &mut Waker<'_>) -> Result<(), Status> {
        loop {
            while self.running.len() < self.running_max
                && let Some(WaitingCall { call, bytes, arrived }) = self.waiting.pop_front()
            {
                let id = call.id;
                self.waiting_bytes -= bytes;
                let (reply, handle) = abortable(self.starter.start(call, arrived));
                self.handles.insert(id, handle);
                self.running.push(reply);
            }
            let has_space =
                self.waiting.len() < WAITING_MAX && self.waiting_bytes < WAITING_BYTES_MAX;
            let Some(incoming) = self.incoming.as_mut().filter(|_| has_space) else {
                return Ok(());
            };
            match incoming.poll_next_unpin(waker)? {
                Poll::Ready(Some(batch)) => self.receive(batch)?,
                Poll::Ready(None) => self.incoming = None,
                Poll::Pending => return Ok(()),
            }
        }
    }

    fn receive(&mut self, batch: CallBatch) -> Result<(), Status> {
        let CallBatch { calls, cancelled_ids } = batch;
        if calls.len() > BATCH_MAX || cancelled_ids.len() > BATCH_MAX {
            return Err(status::invalid([Invalid::new("batch", "must have at most 1024 calls")]));
        }
        let arrived = Instant::now();
        for call in calls {
            let bytes = call.encoded_len();
            self.waiting_bytes += bytes;
            self.waiting.push_back(WaitingCall { call, bytes, arrived });
        }
        cancelled_ids.into_iter().for_each(|id| self.cancel(id));
        Ok(())
    }

    fn cancel(&mut self, id: u64) {
        match self.handles.remove(&id) {
            Some(handle) => handle.abort(),
            None => {
                if let Some(index) = self.waiting.iter().position(|waiting| waiting.call.id == id)
                    && let Some(waiting) = self.waiting.remove(index)
                {
                    self.waiting_bytes -= waiting.bytes;
                }
            }
        }
    }

    /// Lets the calls go on, and keeps the replies of those that have ended.
    fn run_calls(&mut self, waker: &mut Waker<'_>) {
        while let Poll::Ready(Some(ended)) = self.running.poll_next_unpin(waker) {
            // A cancelled call has no reply.
            let Ok(reply) = ended else { continue };
            self.handles.remove(&reply.id);
            let bytes = reply.encoded_len();
            self.ended_bytes += bytes;
            self.ended.push_back((reply, bytes));
        }
    }

    /// Returns the replies of the next message.
    fn next_batch(&mut self) -> ReplyBatch {
        let (mut replies, mut bytes) = (Vec::new(), 0);
        while bytes < REPLY_BYTES_MAX
            && let Some((reply, size)) = self.ended.pop_front()
        {
            bytes += size;
            replies.push(reply);
        }
        self.ended_bytes -= bytes;
        ReplyBatch { replies, closing: std::mem::take(&mut self.tells_closing) }
    }
}

/// Starts the calls of a stream, as if each had come in a request of its own.
struct Starter {
    calls: Calls,
    /// Of the request that opened the stream.
    uri: Uri,
    connection: Option<Connection>,
}

impl Starter {
    fn start(&mut self, call: BatchedCall, arrived: Instant) -> BoxFuture<'static, BatchedReply> {
        let id = call.id;
        match self.request(call, arrived) {
            Ok(request) => reply(id, self.calls.call(request)).boxed(),
            Err(status) => future::ready(failed(id, &status)).boxed(),
        }
    }

    fn request(&self, call: BatchedCall, arrived: Instant) -> Result<Request<Body>, Status> {
        let malformed = || status::invalid([Invalid::new("call", "must be a valid unary call")]);
        let BatchedCall { id: _, path, metadata, body } = call;
        let path: PathAndQuery = path.parse().map_err(|_| malformed())?;
        // Without a query, it is what the call is routed by.
        if methods::find(path.path()).streaming {
            return Err(malformed());
        }
        let mut parts = self.uri.clone().into_parts();
        parts.path_and_query = Some(path);
        let mut request = Request::new(Body::new(Full::new(body)));
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = Uri::from_parts(parts).map_err(|_| malformed())?;
        *request.headers_mut() = batch::headers(metadata).ok_or_else(malformed)?;
        request.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
        request.extensions_mut().insert(Arrived(arrived));
        if let Some(connection) = &self.connection {
            request.extensions_mut().insert(connection.clone());
        }
        Ok(request)
    }
}

/// Returns the reply of a call.
async fn reply(id: u64, call: CallFuture) -> BatchedReply {
    let Ok(response) = call.await;
    let (head, frames) = response.into_parts();
    let mut frames = pin!(frames);
    let (mut headers, mut body) = (head.headers, Bytes::new());
    while let Some(frame) = frames.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) if body.is_empty() => body = data,
            Ok(Ok(data)) => body = [body, data].concat().into(),
            Ok(Err(trailers)) => headers.extend(trailers.into_trailers().unwrap_or_default()),
            Err(status) => return failed(id, &status),
        }
    }
    answered(id, headers, body)
}

fn failed(id: u64, status: &Status) -> BatchedReply {
    answered(id, status.clone().into_http::<()>().into_parts().0.headers, Bytes::new())
}

fn answered(id: u64, mut headers: HeaderMap, body: Bytes) -> BatchedReply {
    let code = headers.remove(GRPC_STATUS).map(|code| Code::from_bytes(code.as_bytes()));
    let code = code.unwrap_or(Code::Unknown) as u32;
    BatchedReply { id, code, metadata: batch::metadata(&headers).collect(), body }
}
