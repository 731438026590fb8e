//! Connections in a drain: those of HTTP/1.1 close with their next answer, and those whose clients do
//! not answer are ended.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::{StreamExt as _, stream};
use http::{Method, Request, request::Builder};
use microblog_chassis::{Config, File, Service, Web, context};
use microblog_proto::user::{GetUserByNameRequest, VerifyResponse};
use microblog_testkit::{PATIENCE, http_stream};
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Semaphore,
    time::{sleep, timeout},
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest,
};

use crate::support::{Server, Stub, config, eventually, http2::SilentClient};

const GET: &str = "/microblog.user.v1.UserService/GetUserByName";
const VERIFY: &str = "/microblog.user.v1.UserService/Verify";
const HEALTH: &str = "/grpc.health.v1.Health/Check";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// The largest window of HTTP/2.
const WINDOW: u32 = (1 << 31) - 1;

fn web(stub: Stub) -> Service {
    let files = vec![File { path: "/", content_type: "text/html", contents: "<p>a page</p>" }];
    Service { web: Some(Web { files, ..Web::default() }), ..stub.service() }
}

/// A drain that lasts longer than any test, unless no connection delays it.
fn delayed(drain_delay: Duration) -> Config {
    Config { drain_delay_ms: drain_delay.as_millis() as u64, ..config() }
}

/// A stub that answers its first method when it may, and counts its calls.
fn gated(gate: &Arc<Semaphore>, calls: &Arc<AtomicUsize>) -> Stub {
    let (gate, calls) = (gate.clone(), calls.clone());
    Stub::new().get(move |request| {
        let (gate, calls) = (gate.clone(), calls.clone());
        async move {
            calls.fetch_add(1, SeqCst);
            gate.acquire().await.unwrap().forget();
            Ok(request.into_inner().name)
        }
    })
}

fn watch() -> Stub {
    Stub::new().verify(|| {
        context::watch().unwrap();
        stream::iter([Ok(VerifyResponse::default())]).chain(stream::pending()).boxed()
    })
}

async fn drained(server: &mut Server) {
    server.stop();
    timeout(PATIENCE, server.ended()).await.expect("the drain ends");
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.address).await.unwrap()
}

#[tokio::test]
async fn answers_over_http1_close_their_connection_from_the_begin_of_a_drain() {
    let message = GetUserByNameRequest { name: "ada".to_owned() }.encode_to_vec();
    let envelope = |message: &[u8]| [&[0, 0, 0, 0, message.len() as u8][..], message].concat();
    let post = |path: &str, content_type: &str| {
        Request::post(path.to_owned()).header("content-type", content_type)
    };
    let requests: [(&str, Builder, Vec<u8>); 14] = [
        ("unary", post(GET, "application/json"), b"{}".to_vec()),
        ("Connect", post(GET, "application/proto"), message.clone()),
        ("gRPC-Web", post(GET, "application/grpc-web+proto"), envelope(&message)),
        ("gRPC", post(GET, "application/grpc"), envelope(&message)),
        ("stream", post(VERIFY, "application/connect+json"), envelope(b"{}")),
        ("gRPC-Web stream", post(VERIFY, "application/grpc-web"), envelope(b"")),
        ("malformed", post(GET, "application/json"), b"{".to_vec()),
        ("unknown method", post("/microblog.user.v1.UserService/No", "application/json"), vec![]),
        ("wrong method", Request::put(GET), vec![]),
        ("wrong type", post(GET, "text/plain"), vec![]),
        ("health", post(HEALTH, "application/json"), b"{}".to_vec()),
        ("file", Request::get("/"), vec![]),
        ("head of a file", Request::builder().method(Method::HEAD).uri("/"), vec![]),
        ("no file", Request::get("/none"), vec![]),
    ];
    let mut server = Server::start(web(watch()), delayed(10 * PATIENCE));
    let address = server.address;
    let closes = async |request: &Builder, body: &Vec<u8>| {
        let parts = request.method_ref().unwrap().clone();
        let mut again = Request::builder().method(parts).uri(request.uri_ref().unwrap());
        *again.headers_mut().unwrap() = request.headers_ref().unwrap().clone();
        let response = http_stream(address, again.body(body.clone()).unwrap()).await;
        response.headers().get("connection").is_some_and(|value| value == "close")
    };
    for (name, request, body) in &requests {
        assert!(!closes(request, body).await, "{name}");
    }
    server.stop();
    eventually("the drain begins", async || closes(&requests[0].1, &requests[0].2).await).await;
    let mut kept = Vec::new();
    for (name, request, body) in &requests {
        if !closes(request, body).await {
            kept.push(*name);
        }
    }
    assert_eq!(kept, <[&str; 0]>::default());
}

#[tokio::test]
async fn a_connection_of_http1_that_is_idle_closes_at_the_end_of_the_delay() {
    let mut server = Server::start(web(Stub::new()), delayed(Duration::from_millis(300)));
    let mut connection = connect(&server).await;
    let request = format!(
        "POST {GET} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
         content-length: 2\r\n\r\n{{}}"
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    connection.readable().await.unwrap();
    drained(&mut server).await;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[tokio::test]
async fn clients_that_do_not_answer_do_not_delay_a_drain() {
    let (gate, calls) = (Arc::new(Semaphore::new(1)), Arc::<AtomicUsize>::default());
    let mut server = Server::start(gated(&gate, &calls).service(), config());
    let _begun = SilentClient::begin(connect(&server).await, WINDOW).await;
    let mut called = SilentClient::begin(connect(&server).await, WINDOW).await;
    called.call(GET, b"").await;
    let mut unread = SilentClient::begin(connect(&server).await, 0).await;
    // It does not arrive.
    let _stream = unread.open(GET).await;
    let mut preface = connect(&server).await;
    preface.write_all(b"PRI * HT").await.unwrap();
    eventually("it is called", async || calls.load(SeqCst) == 1).await;
    drained(&mut server).await;
}

#[tokio::test]
async fn a_call_in_flight_of_a_client_that_does_not_answer_is_completed() {
    let (gate, calls) = (Arc::new(Semaphore::new(0)), Arc::<AtomicUsize>::default());
    let mut server = Server::start(gated(&gate, &calls).service(), config());
    let mut client = SilentClient::begin(connect(&server).await, WINDOW).await;
    client.call(GET, &GetUserByNameRequest { name: "ada".to_owned() }.encode_to_vec()).await;
    eventually("it is called", async || calls.load(SeqCst) == 1).await;
    server.stop();
    // Longer than a connection without a call would last.
    sleep(Duration::from_secs(4)).await;
    gate.add_permits(1);
    timeout(PATIENCE, server.ended()).await.expect("the drain ends");
    let received = client.received(PATIENCE).await;
    assert!(received.windows(3).any(|part| part == b"ada"), "{received:?}");
}

#[tokio::test]
async fn watches_whose_clients_do_not_read_do_not_delay_a_drain() {
    let mut server = Server::start(web(watch()), config());
    let mut client = SilentClient::begin(connect(&server).await, 0).await;
    client.call(VERIFY, b"").await;
    client.call("/grpc.health.v1.Health/Watch", b"").await;
    let mut web = connect(&server).await;
    let request = format!(
        "POST {VERIFY} HTTP/1.1\r\nhost: a\r\ncontent-type: application/connect+json\r\n\
         content-length: 7\r\n\r\n\0\0\0\0\x02{{}}"
    );
    web.write_all(request.as_bytes()).await.unwrap();
    web.readable().await.unwrap();
    drained(&mut server).await;
}

#[tokio::test]
async fn requests_over_http1_that_do_not_arrive_do_not_delay_a_drain() {
    let mut server = Server::start(web(Stub::new()), config());
    let mut connections = Vec::new();
    for request in [
        "P".to_owned(),
        format!("POST {GET} HTTP/1.1\r\nhost: "),
        format!(
            "POST {GET} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
             content-length: 2\r\n\r\n{{"
        ),
        format!(
            "POST {HEALTH} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
             content-length: 2\r\n\r\n{{"
        ),
    ] {
        let mut connection = connect(&server).await;
        connection.write_all(request.as_bytes()).await.unwrap();
        connections.push(connection);
    }
    // A call that is answered after them.
    let mut client = server.client();
    client.get_user_by_name(crate::support::request(None)).await.unwrap();
    drained(&mut server).await;
}

#[tokio::test]
async fn reflection_streams_end_when_the_server_drains() {
    let mut server = Server::start(web(Stub::new()), config());
    let mut client = ServerReflectionClient::new(server.channel());
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let requests = stream::iter([request]).chain(stream::pending());
    let mut answers = client.server_reflection_info(requests).await.unwrap().into_inner();
    answers.next().await.unwrap().unwrap();
    // Another one, over HTTP/2 as well, whose client does not answer.
    let mut silent = SilentClient::begin(connect(&server).await, 0).await;
    let _stream = silent.open(REFLECTION).await;
    drained(&mut server).await;
    let status = answers.next().await.unwrap().unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
    assert!(microblog_chassis::status::reason_of(&status).is_some(), "{status:?}");
}
