//! Health checks and server reflection.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context as Waker, Poll},
};

use bytes::Bytes;
use futures::{FutureExt as _, Stream, StreamExt as _};
use http::{Request, Version};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use microblog_chassis::{Service, Web};
use microblog_testkit::PATIENCE;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
    time::timeout,
};
use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    exchange::{
        Protocol::{Json, JsonStream, ProtoStream},
        enveloped, envelopes, send,
    },
    support::{self, NAME, Server, Stub, config, eventually},
};

async fn health(server: &Server, service: &str) -> Result<ServingStatus, Code> {
    let request = HealthCheckRequest { service: service.to_owned() };
    let response = HealthClient::new(server.channel()).check(request).await;
    response.map(|response| response.get_ref().status()).map_err(|status| status.code())
}

async fn eventually_is(server: &Server, service: &str, status: ServingStatus) {
    let what = format!("{service:?} is {status:?}");
    eventually(&what, async || health(server, service).await == Ok(status)).await;
}

#[tokio::test]
async fn health_follows_the_readiness_probe_and_liveness_does_not() {
    let ready = Arc::new(AtomicBool::new(false));
    let mut service = Stub::new().service();
    let probe = ready.clone();
    service.ready = Arc::new(move || futures::future::ready(probe.load(SeqCst)).boxed());
    let server = Server::start(service, config());

    for name in ["", NAME] {
        assert_eq!(health(&server, name).await, Ok(ServingStatus::NotServing));
    }
    assert_eq!(health(&server, "liveness").await, Ok(ServingStatus::Serving));
    ready.store(true, SeqCst);
    eventually_is(&server, "", ServingStatus::Serving).await;
    eventually_is(&server, NAME, ServingStatus::Serving).await;
    ready.store(false, SeqCst);
    eventually_is(&server, NAME, ServingStatus::NotServing).await;
    assert_eq!(health(&server, "liveness").await, Ok(ServingStatus::Serving));
    assert_eq!(health(&server, "no.such.Service").await, Err(Code::NotFound));
}

#[tokio::test]
async fn draining_server_reports_not_serving_and_still_answers() {
    let mut config = config();
    config.drain_delay_ms = 60_000;
    let mut server = Server::start(Stub::new().service(), config);
    eventually_is(&server, "", ServingStatus::Serving).await;
    server.stop();
    eventually_is(&server, "", ServingStatus::NotServing).await;
    assert_eq!(health(&server, "liveness").await, Ok(ServingStatus::Serving));
    server.client().get_user_by_name(support::request(None)).await.unwrap();
}

#[tokio::test]
async fn health_watch_reports_the_drain_and_ends() {
    let mut server = Server::start(Stub::new().service(), config());
    eventually_is(&server, "", ServingStatus::Serving).await;
    let watch = |service: &str| {
        let request = HealthCheckRequest { service: service.to_owned() };
        let mut client = HealthClient::new(server.channel());
        async move { client.watch(request).await.unwrap().into_inner() }
    };
    let mut known = watch("").await;
    let mut alive = watch("liveness").await;
    let mut unknown = watch("no.such.Service").await;
    let status = async |stream: &mut tonic::Streaming<_>| {
        let response: tonic_health::pb::HealthCheckResponse = stream.next().await.unwrap().unwrap();
        response.status()
    };
    assert_eq!(status(&mut known).await, ServingStatus::Serving);
    assert_eq!(status(&mut alive).await, ServingStatus::Serving);
    assert_eq!(status(&mut unknown).await, ServingStatus::ServiceUnknown);
    server.stop();
    assert_eq!(status(&mut known).await, ServingStatus::NotServing);
    assert!(known.next().await.is_none());
    tokio::time::timeout(PATIENCE, server.ended()).await.expect("the drain ends");
}

/// Returns the status code and the body of a response to a request without a message.
async fn answer(address: SocketAddr, version: Version, method: &str, path: &str) -> (u16, String) {
    let request = Request::builder().method(method).uri(path).body(Vec::new()).unwrap();
    let answer = send(address, version, request).await;
    (answer.status.as_u16(), String::from_utf8(answer.body.to_vec()).unwrap())
}

#[tokio::test]
async fn health_has_a_path_with_a_status_code() {
    for web in [None, Some(Web::default())] {
        let ready = Arc::new(AtomicBool::new(false));
        let probe = ready.clone();
        let mut service = Service { web, ..Stub::new().service() };
        let versions: &[Version] = if service.web.is_some() {
            &[Version::HTTP_11, Version::HTTP_2]
        } else {
            &[Version::HTTP_2]
        };
        service.ready = Arc::new(move || futures::future::ready(probe.load(SeqCst)).boxed());
        let mut config = config();
        config.drain_delay_ms = 60_000;
        let mut server = Server::start(service, config);
        let address = server.address;
        let all = async |method: &str, expected: (u16, &str)| {
            for version in versions {
                let (status, text) = answer(address, *version, method, "/healthz").await;
                if (status, text.as_str()) != expected {
                    return false;
                }
            }
            true
        };
        assert!(all("GET", (503, "NOT_SERVING\n")).await);
        ready.store(true, SeqCst);
        eventually("it serves", async || all("GET", (200, "SERVING\n")).await).await;
        assert!(all("HEAD", (200, "")).await);
        assert!(all("POST", (405, "GET or HEAD\n")).await);
        ready.store(false, SeqCst);
        eventually("the store is away", async || all("GET", (503, "NOT_SERVING\n")).await).await;
        assert!(all("HEAD", (503, "")).await);
        ready.store(true, SeqCst);
        eventually("it serves again", async || all("GET", (200, "SERVING\n")).await).await;
        server.stop();
        eventually("it drains", async || all("GET", (503, "NOT_SERVING\n")).await).await;
    }
}

#[tokio::test]
async fn health_path_answers_http_1_0() {
    let server =
        Server::start(Service { web: Some(Web::default()), ..Stub::new().service() }, config());
    eventually("it serves", async || {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response.starts_with("HTTP/1.0 200 OK\r\n") && response.ends_with("\r\n\r\nSERVING\n")
    })
    .await;
}

#[tokio::test]
async fn reflection_is_there_over_connect() {
    use prost::Message as _;
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, ServerReflectionResponse,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let server =
        Server::start(Service { web: Some(Web::default()), ..Stub::new().service() }, config());
    const PATH: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let ask = |message| {
        let request =
            ServerReflectionRequest { host: String::new(), message_request: Some(message) };
        enveloped(0, &request.encode_to_vec())
    };
    let list = ask(MessageRequest::ListServices(String::new()));
    let stream = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    // The answer comes while the request goes on.
    let (requests, body) = mpsc::unbounded_channel();
    let body = StreamBody::new(UnboundedReceiverStream(body));
    let request = Request::post(format!("http://localhost{PATH}"));
    let request = request.header("content-type", "application/connect+proto").body(body).unwrap();
    let response = sender.send_request(request);
    requests.send(list.clone()).unwrap();
    let mut response = timeout(PATIENCE, response).await.unwrap().unwrap();
    assert_eq!(response.headers()["content-type"], "application/connect+proto");
    let mut next = async || {
        let frame = timeout(PATIENCE, response.frame()).await.unwrap().unwrap().unwrap();
        envelopes(&frame.into_data().unwrap()).pop().unwrap()
    };
    for _ in 0..2 {
        let (flags, message) = next().await;
        assert_eq!(flags, 0);
        let answer = ServerReflectionResponse::decode(&message[..]).unwrap();
        let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
            panic!("{answer:?}")
        };
        assert!(list.service.iter().any(|service| service.name == NAME), "{list:?}");
        let _ = requests.send(ask(MessageRequest::ListServices(String::new())));
    }
    drop(requests);
    loop {
        match next().await {
            (0, _) => {}
            end => break assert_eq!(end, (2, b"{}".to_vec())),
        }
    }

    let unknown = ask(MessageRequest::FileContainingSymbol("a.B".to_owned()));
    let request = ProtoStream.post(PATH).body(unknown).unwrap();
    let answer = send(server.address, Version::HTTP_2, request).await;
    assert_eq!(answer.error(), ("not_found".to_owned(), "NAME_UNKNOWN".to_owned()), "{answer:?}");
    for protocol in [Json, JsonStream] {
        let request = protocol.post(PATH).body(protocol.body(0, b"{}")).unwrap();
        let answer = send(server.address, Version::HTTP_2, request).await;
        let expected = ("unimplemented".to_owned(), "PROTOCOL_UNSUPPORTED".to_owned());
        assert_eq!(answer.error(), expected, "{answer:?}");
    }
}

struct UnboundedReceiverStream(mpsc::UnboundedReceiver<Vec<u8>>);

impl Stream for UnboundedReceiverStream {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, waker: &mut Waker<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(waker).map(|next| next.map(|bytes| Ok(Frame::data(bytes.into()))))
    }
}

fn is_complete(mut services: Vec<String>, files: &[String]) {
    let expected_services = [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        NAME,
    ];
    let expected_files = [
        "microblog/user/v1/user.proto",
        "microblog/common/v1/error.proto",
        "google/protobuf/timestamp.proto",
        "google/rpc/error_details.proto",
        "google/rpc/status.proto",
    ];
    services.sort();
    assert_eq!(services, expected_services);
    assert_eq!(files, expected_files);
}

macro_rules! reflection_test {
    ($name:ident, $version:ident) => {
        #[tokio::test]
        async fn $name() {
            use prost::Message as _;
            use tonic_reflection::pb::$version::{
                ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
                server_reflection_request::MessageRequest,
                server_reflection_response::MessageResponse,
            };
            let server = Server::start(Stub::new().service(), config());
            let ask = [
                MessageRequest::ListServices(String::new()),
                MessageRequest::FileContainingSymbol(NAME.to_owned()),
                MessageRequest::FileContainingSymbol("microblog.common.v1.ErrorReason".to_owned()),
                MessageRequest::FileByFilename("google/protobuf/timestamp.proto".to_owned()),
                // With these, callers print the details of errors.
                MessageRequest::FileContainingSymbol("google.rpc.ErrorInfo".to_owned()),
                MessageRequest::FileContainingSymbol("google.rpc.Status".to_owned()),
            ];
            let requests = ask.map(|message| ServerReflectionRequest {
                host: String::new(),
                message_request: Some(message),
            });
            let mut client = ServerReflectionClient::new(server.channel());
            let requests = futures::stream::iter(requests);
            let answers = client.server_reflection_info(requests).await.unwrap().into_inner();
            let (mut services, mut files) = (Vec::new(), Vec::new());
            for answer in answers.collect::<Vec<_>>().await {
                match answer.unwrap().message_response.unwrap() {
                    MessageResponse::ListServicesResponse(list) => {
                        services.extend(list.service.into_iter().map(|service| service.name));
                    }
                    MessageResponse::FileDescriptorResponse(response) => {
                        let file = &response.file_descriptor_proto[0][..];
                        let file = prost_types::FileDescriptorProto::decode(file).unwrap();
                        files.push(file.name().to_owned());
                    }
                    other => panic!("{other:?}"),
                }
            }
            is_complete(services, &files);
        }
    };
}

reflection_test!(reflection_v1_lists_and_describes_the_services, v1);
reflection_test!(reflection_v1alpha_lists_and_describes_the_services, v1alpha);
