//! Streams of batches: the server's side against a client of the test, and the client's side against
//! servers of the test.

use std::{
    convert::Infallible,
    net::TcpListener,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, join_all},
};
use http::uri::PathAndQuery;
use microblog_chassis::{Config, Peer};
use microblog_proto::{
    common::{BatchedCall, BatchedMetadata, BatchedReply, CallBatch, ReplyBatch},
    user::{GetUserByNameRequest, GetUserByNameResponse, User, VerifyRequest},
};
use microblog_testkit::PATIENCE;
use prost::Message as _;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    sync::{Semaphore, mpsc},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Status, Streaming, body::Body, client, server, transport::Channel};
use tonic_prost::ProstCodec;

use crate::support::{Server, Stub, config, eventually, get};

const PATH: &str = "/microblog.common.v1.BatchService/Exchange";
const GET: &str = "/microblog.user.v1.UserService/GetUserByName";
const VERIFY: &str = "/microblog.user.v1.UserService/Verify";

/// A client's side of a stream.
struct Exchange {
    batches: Option<mpsc::UnboundedSender<CallBatch>>,
    replies: Streaming<ReplyBatch>,
}

impl Exchange {
    async fn open(server: &Server) -> Result<Self, Status> {
        Self::open_on(server.channel()).await
    }

    async fn open_on(channel: Channel) -> Result<Self, Status> {
        let (batches, mut sent) = mpsc::unbounded_channel();
        let sent = futures::stream::poll_fn(move |waker| sent.poll_recv(waker));
        let mut client = client::Grpc::new(channel);
        client.ready().await.unwrap();
        let codec = ProstCodec::<CallBatch, ReplyBatch>::default();
        let path = PathAndQuery::from_static(PATH);
        let replies = client.streaming(Request::new(sent), path, codec).await?.into_inner();
        Ok(Self { batches: Some(batches), replies })
    }

    fn send(&self, calls: Vec<BatchedCall>, cancelled_ids: Vec<u64>) {
        self.batches.as_ref().unwrap().send(CallBatch { calls, cancelled_ids }).unwrap();
    }

    async fn next(&mut self) -> Option<ReplyBatch> {
        timeout(PATIENCE, self.replies.message()).await.expect("a reply").unwrap()
    }

    /// Returns that many replies, by id.
    async fn replies(&mut self, count: usize) -> Vec<BatchedReply> {
        let mut replies = Vec::new();
        while replies.len() < count {
            replies.extend(self.next().await.expect("a reply").replies);
        }
        replies.sort_by_key(|reply| reply.id);
        replies
    }
}

fn framed(message: &impl prost::Message) -> Bytes {
    let message = message.encode_to_vec();
    [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat().into()
}

fn call(id: u64, name: &str) -> BatchedCall {
    let body = framed(&GetUserByNameRequest { name: name.to_owned() });
    BatchedCall { id, path: GET.to_owned(), metadata: Vec::new(), body }
}

fn name(reply: &BatchedReply) -> String {
    GetUserByNameResponse::decode(&reply.body[5..]).unwrap().user.unwrap().name
}

fn within_50_ms(call: BatchedCall) -> BatchedCall {
    let timeout = BatchedMetadata { name: "grpc-timeout".into(), value: "50m".into() };
    BatchedCall { metadata: vec![timeout], ..call }
}

/// A stub on which calls of the name "slow" wait for a permit; and how many wait.
fn slow_stub() -> (Stub, Arc<Semaphore>, Arc<AtomicUsize>) {
    struct Waiting(Arc<AtomicUsize>);
    impl Drop for Waiting {
        fn drop(&mut self) {
            self.0.fetch_sub(1, SeqCst);
        }
    }
    let (permits, slow) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let of_stub = (permits.clone(), slow.clone());
    let stub = Stub::new().get(move |request: Request<GetUserByNameRequest>| {
        let (permits, slow) = of_stub.clone();
        async move {
            let name = request.into_inner().name;
            match name.as_str() {
                "slow" => {
                    slow.fetch_add(1, SeqCst);
                    let _waiting = Waiting(slow);
                    permits.acquire().await.unwrap().forget();
                }
                "fails" => return Err(Status::not_found("nobody")),
                "panics" => panic!("as the test wants"),
                _ => {}
            }
            Ok(name)
        }
    });
    (stub, permits, slow)
}

/// The calls of a stream must outlast the test.
fn patient() -> Config {
    let mut config = config();
    config.default_timeout_ms = 10 * PATIENCE.as_millis() as u64;
    config
}

#[tokio::test]
async fn each_call_of_a_batch_ends_alone() {
    let (stub, permits, slow) = slow_stub();
    let server = Server::start(stub.service(), patient());
    let mut exchange = Exchange::open(&server).await.unwrap();
    let late = within_50_ms(call(4, "slow"));
    let unknown = BatchedCall { path: "/microblog.user.v1.UserService/None".into(), ..call(5, "") };
    let no_path = BatchedCall { path: "none".into(), ..call(6, "") };
    let streaming =
        BatchedCall { path: VERIFY.into(), body: framed(&VerifyRequest::default()), ..call(7, "") };
    let name_of_none = BatchedMetadata { name: "a header".into(), value: Bytes::new() };
    let invalid = BatchedCall { metadata: vec![name_of_none], ..call(8, "") };
    let with_query = BatchedCall { path: format!("{VERIFY}?x"), ..streaming.clone() };
    let with_query = BatchedCall { id: 11, ..with_query };
    let many = vec![BatchedMetadata::default(); 30_000];
    let crowded = BatchedCall { metadata: many, ..call(12, "") };
    let garbage = BatchedCall { body: Bytes::from_static(&[0, 0, 0, 0, 1, 255]), ..call(9, "") };
    let calls = [late, unknown, no_path, streaming, invalid, garbage, with_query, crowded];
    let calls = [call(1, "slow"), call(2, "anna"), call(3, "fails"), call(10, "panics")]
        .into_iter()
        .chain(calls);
    exchange.send(calls.collect(), Vec::new());
    let replies = exchange.replies(11).await;
    let codes: Vec<_> =
        replies.iter().map(|reply| (reply.id, Code::from_i32(reply.code as i32))).collect();
    let expected = [
        (2, Code::Ok),
        (3, Code::NotFound),
        (4, Code::DeadlineExceeded),
        (5, Code::Unimplemented),
        (6, Code::InvalidArgument),
        (7, Code::InvalidArgument),
        (8, Code::InvalidArgument),
        (9, Code::InvalidArgument),
        (10, Code::Internal),
        (11, Code::InvalidArgument),
        (12, Code::InvalidArgument),
    ];
    assert_eq!(codes, expected);
    assert_eq!(name(&replies[0]), "anna");
    let message = replies[1].metadata.iter().find(|one| one.name == "grpc-message");
    assert_eq!(message.unwrap().value, "nobody");
    assert_eq!(slow.load(SeqCst), 1, "the slow one still runs");
    permits.add_permits(1);
    assert_eq!(name(&exchange.replies(1).await[0]), "slow");
}

#[tokio::test]
async fn calls_beyond_the_limit_wait_and_cancelled_ones_make_room() {
    let (stub, permits, slow) = slow_stub();
    let mut limited = patient();
    limited.max_streams = 2;
    let server = Server::start(stub.service(), limited);
    let mut exchange = Exchange::open(&server).await.unwrap();
    let ids = 1..=4;
    exchange.send(ids.map(|id| call(id, "slow")).chain([call(5, "anna")]).collect(), Vec::new());
    eventually("two run", async || slow.load(SeqCst) == 2).await;
    // First those that wait, then those that run: only then is there room for the last one.
    exchange.send(Vec::new(), vec![3, 4]);
    exchange.send(Vec::new(), vec![1]);
    assert_eq!(exchange.replies(1).await[0].id, 5);
    eventually("one runs", async || slow.load(SeqCst) == 1).await;
    permits.add_permits(1);
    assert_eq!(exchange.replies(1).await[0].id, 2);
    assert_eq!(slow.load(SeqCst), 0);
    // The calls of a client that goes end, too.
    exchange.send(vec![call(6, "slow")], Vec::new());
    eventually("it runs", async || slow.load(SeqCst) == 1).await;
    drop(exchange);
    eventually("it is cancelled", async || slow.load(SeqCst) == 0).await;
}

#[tokio::test]
async fn calls_of_a_client_that_reads_no_replies_end() {
    let (stub, _permits, slow) = slow_stub();
    let server = Server::start(stub.service(), patient());
    let exchange = Exchange::open_on(server.unread_channel(100)).await.unwrap();
    exchange.send(vec![call(1, &"long".repeat(100)), call(2, "slow")], Vec::new());
    eventually("it runs", async || slow.load(SeqCst) == 1).await;
    exchange.send(vec![call(3, &"long".repeat(100)), within_50_ms(call(4, "slow"))], Vec::new());
    eventually("the other one runs", async || slow.load(SeqCst) == 2).await;
    eventually("its deadline ends it", async || slow.load(SeqCst) == 1).await;
    exchange.send(Vec::new(), vec![2]);
    eventually("it is cancelled", async || slow.load(SeqCst) == 0).await;
}

#[tokio::test]
async fn an_error_ends_the_calls_of_a_client_that_reads_no_replies() {
    let (stub, _permits, slow) = slow_stub();
    let server = Server::start(stub.service(), patient());
    let exchange = Exchange::open_on(server.unread_channel(100)).await.unwrap();
    // One reply is on its way, one waits for its turn, and further ones for that.
    for running in 1..=4 {
        let id = 2 * running as u64;
        exchange.send(vec![call(id, &"long".repeat(100)), call(id + 1, "slow")], Vec::new());
        eventually("it runs", async || slow.load(SeqCst) == running).await;
    }
    exchange.send((100..1125).map(|id| call(id, "anna")).collect(), Vec::new());
    eventually("all are cancelled", async || slow.load(SeqCst) == 0).await;
}

#[tokio::test]
async fn a_client_that_reads_no_errors_gets_no_further_calls_started() {
    const ALL: u64 = 10_000;
    let started = Arc::new(AtomicUsize::new(0));
    let stub = Stub::new().get({
        let started = started.clone();
        move |_| {
            started.fetch_add(1, SeqCst);
            async { Err(Status::not_found("long".repeat(250))) }
        }
    });
    let mut limited = patient();
    limited.max_streams = 100;
    let server = Server::start(stub.service(), limited);
    let exchange = Exchange::open_on(server.unread_channel(100)).await.unwrap();
    for first in (0..ALL).step_by(100) {
        exchange.send((first..first + 100).map(|id| call(id, "anna")).collect(), Vec::new());
        // Each batch wakes the stream.
        sleep(Duration::from_millis(5)).await;
    }
    eventually("some are started", async || started.load(SeqCst) >= 100).await;
    let started = started.load(SeqCst);
    assert!(started < 2_000, "{started} of {ALL} calls are started");
}

#[tokio::test]
async fn the_deadline_of_a_call_that_waits_goes_on() {
    let (stub, permits, _) = slow_stub();
    let mut limited = patient();
    limited.max_streams = 1;
    let server = Server::start(stub.service(), limited);
    let mut exchange = Exchange::open(&server).await.unwrap();
    exchange.send(vec![call(1, "slow"), within_50_ms(call(2, "anna"))], Vec::new());
    sleep(Duration::from_millis(100)).await;
    permits.add_permits(1);
    let replies = exchange.replies(2).await;
    assert_eq!(Code::from_i32(replies[1].code as i32), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_batch_of_too_many_calls_ends_the_stream() {
    let server = Server::start(Stub::new().service(), config());
    let mut exchange = Exchange::open(&server).await.unwrap();
    exchange.send((0..1025).map(|id| call(id, "anna")).collect(), Vec::new());
    let end = timeout(PATIENCE, exchange.replies.message()).await.expect("an end");
    assert_eq!(end.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn stream_ends_after_its_last_call_when_the_server_stops() {
    let (stub, permits, slow) = slow_stub();
    let mut server = Server::start(stub.service(), patient());
    let mut exchange = Exchange::open(&server).await.unwrap();
    exchange.send(vec![call(1, "slow")], Vec::new());
    eventually("it runs", async || slow.load(SeqCst) == 1).await;
    server.stop();
    let told = exchange.next().await.unwrap();
    assert_eq!((told.closing, told.replies), (true, vec![]));
    // Sent before the client knew.
    exchange.send(vec![call(2, "anna")], Vec::new());
    exchange.batches = None;
    assert_eq!(name(&exchange.replies(1).await[0]), "anna");
    permits.add_permits(1);
    assert_eq!(name(&exchange.replies(1).await[0]), "slow");
    assert_eq!(exchange.next().await, None);
    server.ended().await;
}

#[tokio::test]
async fn stream_closes_before_its_connection_is_too_old() {
    let mut short = config();
    short.max_connection_age_s = 2;
    let server = Server::start(Stub::new().service(), short);
    let mut exchange = Exchange::open(&server).await.unwrap();
    assert!(exchange.next().await.expect("it is told").closing);
    exchange.send(vec![call(1, "anna")], Vec::new());
    exchange.batches = None;
    assert_eq!(name(&exchange.replies(1).await[0]), "anna");
    assert_eq!(exchange.next().await, None);
}

#[tokio::test]
async fn only_internal_services_take_batches() {
    let mut service = Stub::new().service();
    service.name = "microblog.gateway.v1.GatewayService";
    let server = Server::start(service, config());
    let status = Exchange::open(&server).await.err().unwrap();
    assert_eq!(status.code(), Code::Unimplemented);
}

#[tokio::test]
async fn abandoned_calls_are_cancelled() {
    let (stub, _permits, slow) = slow_stub();
    let server = Server::start(stub.service(), patient());
    let peer = Peer::remote(&server.url(), &patient()).unwrap();
    let calls: Vec<_> = (0..3)
        .map(|_| {
            let peer = peer.clone();
            tokio::spawn(async move { get(peer, "slow").await })
        })
        .collect();
    eventually("they run", async || slow.load(SeqCst) == 3).await;
    calls[1].abort();
    eventually("one is cancelled", async || slow.load(SeqCst) == 2).await;
    assert!(!calls[0].is_finished() && !calls[2].is_finished());
}

#[tokio::test]
async fn each_call_gets_its_own_response() {
    let stub = Stub::new().get(|request: Request<GetUserByNameRequest>| async move {
        let name = request.into_inner().name;
        let delay = name.len() as u64 % 7;
        tokio::time::sleep(Duration::from_millis(delay)).await;
        if delay == 3 { Err(Status::aborted(name[..8].to_owned())) } else { Ok(name) }
    });
    let server = Server::start(stub.service(), config());
    let peer = server.peer();
    let mut random = StdRng::seed_from_u64(7);
    let calls = (0..2_000).map(|number| {
        // Some are too large for a batch.
        let size = if random.random_ratio(1, 20) { 60_000 } else { 300 };
        let name = format!("{number:08}{}", "x".repeat(random.random_range(0..size)));
        // Some callers go before their response.
        let patience = random.random_ratio(1, 10).then(|| random.random_range(0..4));
        let peer = peer.clone();
        async move {
            let response = get(peer, &name);
            let response = match patience {
                Some(patience) => timeout(Duration::from_millis(patience), response).await.ok(),
                None => Some(response.await),
            };
            match response {
                None => {}
                Some(Ok(same)) => assert!(same == name, "{name}: {same}"),
                Some(Err(status)) => {
                    assert_eq!((status.code(), status.message()), (Code::Aborted, &name[..8]));
                }
            }
        }
    });
    let mut calls = futures::stream::iter(calls).buffer_unordered(100);
    while calls.next().await.is_some() {}
}

/// A server without the chassis, which notes the numbers of calls of the batches that it takes.
#[derive(Clone)]
struct Foreign {
    stub: Stub,
    batches: Option<Arc<Mutex<Vec<usize>>>>,
}

impl Foreign {
    /// Starts the server. It ends with the runtime.
    fn start(batches: Option<Arc<Mutex<Vec<usize>>>>) -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let server = Self { stub: Stub::new(), batches };
        let serve = tonic::transport::Server::builder().serve_with_incoming_shutdown(
            server,
            incoming,
            CancellationToken::new().cancelled_owned(),
        );
        tokio::spawn(serve);
        Peer::remote(&url, &config()).unwrap()
    }
}

impl tower::Service<http::Request<Body>> for Foreign {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match self.batches.clone().filter(|_| request.uri().path() == PATH) {
            Some(batches) => exchange(batches, request).map(Ok).boxed(),
            None => self.stub.call(request),
        }
    }
}

/// Echoes the names of calls.
async fn exchange(
    batches: Arc<Mutex<Vec<usize>>>,
    request: http::Request<Body>,
) -> http::Response<Body> {
    let handler = tower::service_fn(move |request: Request<Streaming<CallBatch>>| {
        let batches = batches.clone();
        let replies = request.into_inner().map(move |batch| {
            let calls = batch?.calls;
            batches.lock().unwrap().push(calls.len());
            let replies = calls.into_iter().map(|call| {
                let name = GetUserByNameRequest::decode(&call.body[5..]).unwrap().name;
                let user = Some(User { name, ..User::default() });
                let body = framed(&GetUserByNameResponse { user });
                BatchedReply { id: call.id, body, ..BatchedReply::default() }
            });
            Ok(ReplyBatch { replies: replies.collect(), closing: false })
        });
        futures::future::ready(Ok::<_, Status>(tonic::Response::new(replies)))
    });
    let codec = ProstCodec::<ReplyBatch, CallBatch>::default();
    server::Grpc::new(codec).streaming(handler, request).await
}

#[tokio::test]
async fn concurrent_calls_share_messages() {
    let batches = Arc::new(Mutex::new(Vec::new()));
    let peer = Foreign::start(Some(batches.clone()));
    get(peer.clone(), "first").await.unwrap();
    assert_eq!(*batches.lock().unwrap(), [1], "a single call waits for no other");
    let calls = join_all((0..40).map(|number| {
        let peer = peer.clone();
        async move { get(peer, &number.to_string()).await.unwrap() == number.to_string() }
    }));
    assert!(calls.await.into_iter().all(|is_own| is_own));
    let batches = batches.lock().unwrap();
    assert_eq!(batches.iter().sum::<usize>(), 41);
    assert!(batches.len() < 10, "{batches:?}");
}

#[tokio::test]
async fn server_that_takes_no_batches_gets_requests() {
    let peer = Foreign::start(None);
    for name in ["anna", "bert"] {
        assert_eq!(get(peer.clone(), name).await.unwrap(), name);
    }
}
