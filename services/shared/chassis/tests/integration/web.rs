//! gRPC-Web and Connect, over HTTP/1.1, as browsers and `curl` call a public server.

use std::{
    sync::{Arc, atomic::AtomicBool, atomic::Ordering::SeqCst},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{Method, Request, Response, StatusCode, request};
use http_body_util::BodyExt as _;
use microblog_chassis::{File, Service, Web, context, status};
use microblog_domain::Invalid;
use microblog_proto::user::{GetUserByNameRequest, GetUserByNameResponse, VerifyResponse};
use microblog_testkit::{PATIENCE, http, http_stream};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Semaphore,
    time::{sleep, timeout},
};
use tonic::Status;

use crate::exchange::{self, envelopes};
use crate::support::{NAME, Server, Stub, config, eventually, request as grpc_request};

const GET: &str = "/microblog.user.v1.UserService/GetUserByName";
const VERIFY: &str = "/microblog.user.v1.UserService/Verify";
/// Between the headers and the message of a slow caller.
const MESSAGE_DELAY: Duration = Duration::from_millis(100);
const ORIGIN: &str = "https://example.org";
const FILES: &[File] =
    &[File { path: "/", content_type: "text/html; charset=utf-8", contents: "<p>a page</p>" }];

fn web(stub: Stub) -> Service {
    let allowed_origins = vec![ORIGIN.parse().unwrap()];
    Service {
        web: Some(Web { allowed_origins, files: FILES.into(), ..Web::default() }),
        ..stub.service()
    }
}

fn post(path: &str, content_type: &str) -> request::Builder {
    Request::post(path).header("content-type", content_type)
}

/// Calls a method with JSON.
async fn call(server: &Server, path: &str, message: &str) -> (StatusCode, Value) {
    let request = post(path, "application/json").body(message.to_owned()).unwrap();
    answer(http(server.address, request).await)
}

fn answer(response: Response<Bytes>) -> (StatusCode, Value) {
    assert_eq!(response.headers()["content-type"], "application/json");
    (response.status(), serde_json::from_slice(response.body()).unwrap())
}

/// Returns the code of an error, and its reason.
fn code_and_reason(error: &Value) -> (&str, &str) {
    let details = error["details"].as_array().map(Vec::as_slice).unwrap_or_default();
    let info = details.iter().find(|detail| detail["type"] == "google.rpc.ErrorInfo");
    let reason = info.and_then(|info| info["debug"]["reason"].as_str());
    (error["code"].as_str().unwrap(), reason.unwrap_or_default())
}

fn enveloped(message: &[u8]) -> Vec<u8> {
    exchange::enveloped(0, message)
}

#[tokio::test]
async fn a_call_with_json_is_a_call_of_the_same_handler() {
    let stub = Stub::new().get(|request| async move {
        // Metadata of the caller arrives; headers of its protocol do not.
        let metadata = request.metadata();
        assert_eq!(metadata.get("authorization").unwrap(), "Bearer token");
        assert_eq!(metadata.get("connect-protocol-version"), None);
        let timeout = metadata.get("grpc-timeout").unwrap().to_str().unwrap();
        assert!((1..=5_000_000).contains(&timeout.trim_end_matches('u').parse().unwrap()));
        Ok(request.into_inner().name)
    });
    let server = Server::start(web(stub), config());
    let call = |content_type, message: Vec<u8>| {
        let request = post(GET, content_type).header("authorization", "Bearer token");
        let request = request.header("connect-protocol-version", "1");
        // A caller of Connect has no use for it.
        let request = request.header("grpc-timeout", "1n");
        http(server.address, request.header("connect-timeout-ms", "5000").body(message).unwrap())
    };
    for content_type in ["application/json", "application/json; charset=utf-8"] {
        let json = call(content_type, br#"{"name": "ada", "unknown": {}}"#.to_vec()).await;
        assert_eq!(answer(json), (StatusCode::OK, json!({"user": {"name": "ada"}})));
    }
    let message = GetUserByNameRequest { name: "ada".to_owned() }.encode_to_vec();
    let proto = call("application/proto", message).await;
    let user = GetUserByNameResponse::decode(proto.into_body()).unwrap().user.unwrap();
    assert_eq!(user.name, "ada");
}

#[tokio::test]
async fn only_reads_have_get() {
    let server = Server::start(web(Stub::new()), config());
    let get = |path: &str, message: &str| {
        let query = format!("{path}?connect=v1&encoding=json&message={message}");
        http(server.address, Request::get(query).body("").unwrap())
    };
    let read = get(GET, "%7B%22name%22%3A%22ada%22%7D").await;
    assert_eq!(answer(read), (StatusCode::OK, json!({"user": {"name": "ada"}})));
    let write = get("/microblog.user.v1.UserService/Register", "%7B%7D").await;
    assert_eq!(write.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn errors_have_the_code_and_the_details_of_grpc() {
    let stub = Stub::new()
        .get(|_| async { Err(status::invalid([Invalid::new("name", "must not be empty")])) });
    let server = Server::start(web(stub), config());
    let (http_status, error) = call(&server, GET, "{}").await;
    assert_eq!(http_status, StatusCode::BAD_REQUEST);
    assert_eq!(code_and_reason(&error), ("invalid_argument", "INVALID_FIELD"));
    assert_eq!(error["message"], "name: must not be empty");
    let fields = &error["details"][1];
    assert_eq!(fields["type"], "google.rpc.BadRequest");
    let expected = json!([{"field": "name", "description": "must not be empty"}]);
    assert_eq!(fields["debug"]["fieldViolations"], expected);
    let status = server.client().get_user_by_name(grpc_request(None)).await.unwrap_err();
    let details = tonic_types::pb::Status::decode(status.details()).unwrap().details;
    let value = STANDARD.encode(&details[1].value);
    assert_eq!(fields["value"], value.trim_end_matches('='));
}

#[tokio::test]
async fn a_call_ends_at_its_deadline_and_with_its_connection() {
    let dropped = Arc::new(AtomicBool::new(false));
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let (on_drop, gate) = (dropped.clone(), Arc::new(Semaphore::new(0)));
    let started = gate.clone();
    let stub = Stub::new().get(move |_| {
        let (dropped, started) = (Dropped(on_drop.clone()), started.clone());
        async move {
            started.add_permits(1);
            std::future::pending::<()>().await;
            drop(dropped);
            Ok(String::new())
        }
    });
    let server = Server::start(web(stub), config());
    let request = post(GET, "application/json").header("connect-timeout-ms", "50");
    let (http_status, error) = answer(http(server.address, request.body("{}").unwrap()).await);
    assert_eq!(http_status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(code_and_reason(&error).0, "deadline_exceeded");
    assert!(dropped.swap(false, SeqCst));
    gate.acquire().await.unwrap().forget();
    let address = server.address;
    let caller = tokio::spawn(async move {
        http(address, post(GET, "application/json").body("{}").unwrap()).await
    });
    gate.acquire().await.unwrap().forget();
    caller.abort();
    let _ = caller.await;
    eventually("the call is cancelled", async || dropped.load(SeqCst)).await;
}

/// A stream of one message and an error.
fn verify() -> Stub {
    Stub::new().verify(|| {
        let first = VerifyResponse { users_checked: 7, ..Default::default() };
        stream::iter([Ok(first), Err(Status::not_found("no more"))]).boxed()
    })
}

#[tokio::test]
async fn a_stream_ends_with_its_status() {
    let server = Server::start(web(verify()), config());
    let request = post(VERIFY, "application/connect+json").body(enveloped(b"{}")).unwrap();
    let response = http(server.address, request).await;
    assert_eq!(response.status(), StatusCode::OK);
    let [(0, first), (2, end)] = &envelopes(response.body())[..] else { panic!("{response:?}") };
    let (first, end): (Value, Value) =
        (serde_json::from_slice(first).unwrap(), serde_json::from_slice(end).unwrap());
    assert_eq!(first, json!({"usersChecked": "7"}));
    assert_eq!(end["error"]["code"], "not_found");
}

#[tokio::test]
async fn messages_of_a_stream_come_at_once() {
    let stub = Stub::new()
        .verify(|| stream::iter([Ok(VerifyResponse::default())]).chain(stream::pending()).boxed());
    let server = Server::start(web(stub), config());
    for (content_type, body) in
        [("application/connect+json", enveloped(b"{}")), ("application/grpc-web", enveloped(b""))]
    {
        let request = post(VERIFY, content_type).body(body).unwrap();
        let mut response = http_stream(server.address, request).await;
        let first = timeout(PATIENCE, response.frame()).await.unwrap().unwrap().unwrap();
        assert!(first.into_data().unwrap().len() >= 5, "{content_type}");
    }
}

#[tokio::test]
async fn grpc_web_is_binary_or_text() {
    let server = Server::start(web(Stub::new()), config());
    let message = enveloped(&GetUserByNameRequest { name: "ada".to_owned() }.encode_to_vec());
    let binary = post(GET, "application/grpc-web+proto").body(message.clone()).unwrap();
    let binary = http(server.address, binary).await.into_body();
    let [(0, answer), (128, trailers)] = &envelopes(&binary)[..] else { panic!("{binary:?}") };
    let user = GetUserByNameResponse::decode(&answer[..]).unwrap().user.unwrap();
    assert_eq!(user.name, "ada");
    assert!(String::from_utf8_lossy(trailers).contains("grpc-status:0"));
    let text = post(GET, "application/grpc-web-text").header("accept", "application/grpc-web-text");
    let text = http(server.address, text.body(STANDARD.encode(message)).unwrap()).await;
    // The trailers are encoded by themselves.
    let first = STANDARD.encode(enveloped(answer));
    assert!(text.body().starts_with(first.as_bytes()), "{text:?}");
}

#[tokio::test]
async fn scripts_of_allowed_origins_may_call() {
    let server = Server::start(web(Stub::new()), config());
    for (origin, allowed) in [(ORIGIN, Some(ORIGIN)), ("https://example.com", None), ("null", None)]
    {
        let preflight = Request::builder()
            .method(Method::OPTIONS)
            .uri(GET)
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,content-type");
        let preflight = http(server.address, preflight.body("").unwrap()).await;
        let call = post(GET, "application/json").header("origin", origin).body("{}").unwrap();
        let call = http(server.address, call).await;
        for response in [preflight, call] {
            let header = response.headers().get("access-control-allow-origin");
            assert_eq!(header.map(|value| value.to_str().unwrap()), allowed, "{response:?}");
            assert_eq!(response.headers().get("access-control-allow-credentials"), None);
            let exposed = response.headers().get("access-control-expose-headers");
            if allowed.is_some()
                && response.status() == StatusCode::OK
                && let Some(exposed) = exposed
            {
                let exposed = exposed.to_str().unwrap();
                for name in ["grpc-status", "grpc-retry-pushback-ms", "retry-after"] {
                    assert!(exposed.split(',').any(|one| one == name), "{exposed}");
                }
            }
        }
    }
}

#[tokio::test]
async fn pages_of_other_origins_cause_no_reads() {
    let server = Server::start(web(Stub::new()), config());
    let get = async |site, origin| {
        let path = format!("{GET}?connect=v1&encoding=json&message=%7B%7D");
        let request = Request::get(path).header("sec-fetch-site", site).header("origin", origin);
        http(server.address, request.body("").unwrap()).await
    };
    for (site, origin, expected) in [
        ("cross-site", "https://example.com", StatusCode::FORBIDDEN),
        ("same-site", "null", StatusCode::FORBIDDEN),
        ("cross-site", ORIGIN, StatusCode::OK),
        ("same-origin", "http://localhost", StatusCode::OK),
        ("none", "null", StatusCode::OK),
    ] {
        let response = get(site, origin).await;
        assert_eq!(response.status(), expected, "{site} {origin}");
        assert_eq!(response.headers()["cache-control"], "no-store");
    }
}

#[tokio::test]
async fn what_is_not_a_call_is_rejected() {
    let mut limited = config();
    limited.max_message_bytes = 10_000;
    let server = Server::start(web(Stub::new()), limited);
    let large = format!(r#"{{"name": "{}"}}"#, "x".repeat(10_000));
    let deep = format!(r#"{{"name": "ada", "unknown": {}{}}}"#, "[".repeat(4000), "]".repeat(4000));
    let malformed = ("invalid_argument", "MALFORMED_MESSAGE");
    let messages: [(&[u8], _); 6] = [
        (b"", malformed),
        (b"[]", malformed),
        (br#"{"name": 1}"#, malformed),
        (br#"{"name": "ada"} {}"#, malformed),
        (b"{\"name\": \"\xff\"}", malformed),
        (large.as_bytes(), ("resource_exhausted", "MESSAGE_TOO_LARGE")),
    ];
    for (message, expected) in messages {
        let request = post(GET, "application/json").body(message.to_vec()).unwrap();
        let (http_status, error) = answer(http(server.address, request).await);
        assert_eq!(code_and_reason(&error), expected, "{error}");
        assert!(http_status.is_client_error(), "{http_status}");
    }
    // What is unknown is skipped, at any depth.
    assert_eq!(call(&server, GET, &deep).await.0, StatusCode::OK);
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp"] {
        let response = http(server.address, post(GET, content_type).body("{}").unwrap()).await;
        assert_eq!(response.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    for timeout in ["", "1s", "-1", "12345678901"] {
        let request = post(GET, "application/json").header("connect-timeout-ms", timeout);
        let (_, error) = answer(http(server.address, request.body("{}").unwrap()).await);
        assert_eq!(code_and_reason(&error), ("invalid_argument", "INVALID_FIELD"), "{timeout}");
    }
    // As one message, a stream would never end.
    let stream = post(VERIFY, "application/json").body("{}").unwrap();
    let rejected = http(server.address, stream).await.status();
    assert_eq!(rejected, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let unknown = format!("/{NAME}/Invented");
    assert_eq!(call(&server, &unknown, "{}").await.0, StatusCode::NOT_FOUND);
    assert_eq!(call(&server, "/", "{}").await.0, StatusCode::NOT_FOUND);
    let other = "/microblog.post.v1.PostService/GetPost";
    assert_eq!(call(&server, other, "{}").await.0, StatusCode::NOT_FOUND);
    let head = Request::head(GET).body("").unwrap();
    assert_eq!(http(server.address, head).await.status(), StatusCode::METHOD_NOT_ALLOWED);
    server.client().get_user_by_name(grpc_request(None)).await.unwrap();
}

fn head_of(length: usize) -> String {
    format!(
        "POST {GET} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// Begins a message of nine bytes, after other bytes, and does not go on.
async fn slow_message(server: &Server, before: &str) -> TcpStream {
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    let bytes = format!("{before}{}{{", head_of(9));
    slow.write_all(bytes.as_bytes()).await.unwrap();
    slow
}

async fn status_line(connection: &mut TcpStream) -> Option<[u8; 12]> {
    let mut line = [0; 12];
    let read = timeout(Duration::from_millis(200), connection.read_exact(&mut line)).await;
    matches!(read, Ok(Ok(_))).then_some(line)
}

#[tokio::test]
async fn a_slow_message_keeps_no_other_call_out() {
    let mut patient = config();
    (patient.default_timeout_ms, patient.max_calls) = (600_000, 1);
    let server = Server::start(web(Stub::new()), patient);
    // After the first answer, the slow message has arrived before those of later connections.
    let mut slow = slow_message(&server, &format!("{}{{}}", head_of(2))).await;
    let mut answer = [0; 12];
    timeout(PATIENCE, slow.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    eventually("a call with its message is admitted, and no other one", async || {
        let mut other = slow_message(&server, "").await;
        let is_rejected = status_line(&mut other).await.as_ref() == Some(b"HTTP/1.1 429");
        is_rejected && call(&server, GET, "{}").await.0 == StatusCode::OK
    })
    .await;
    assert_eq!(call(&server, "/grpc.health.v1.Health/Check", "{}").await.0, StatusCode::OK);
    let last = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    slow.write_all(format!("       }}{last}").as_bytes()).await.unwrap();
    let mut answers = String::new();
    timeout(PATIENCE, slow.read_to_string(&mut answers)).await.unwrap().unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
    assert!(answers.ends_with(FILES[0].contents), "{answers}");
}

#[tokio::test]
async fn a_slow_message_is_not_waited_for() {
    let mut impatient = config();
    impatient.default_timeout_ms = 200;
    let server = Server::start(web(Stub::new()), impatient);
    let mut slow = slow_message(&server, "").await;
    let mut response = String::new();
    timeout(PATIENCE, slow.read_to_string(&mut response)).await.unwrap().unwrap();
    assert!(response.starts_with("HTTP/1.1 504"), "{response}");
    assert_eq!(call(&server, GET, "{}").await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_connection_goes_on_after_a_call_that_is_rejected_before_its_message_comes() {
    let server = Server::start(web(Stub::new()), config());
    let unknown = VERIFY.replace("Verify", "Nope");
    let calls = [
        (GET, "application/json\r\nsec-fetch-site: cross-site", "HTTP/1.1 403"),
        (GET, "application/json\r\nconnect-timeout-ms: soon", "HTTP/1.1 400"),
        (GET, "application/json\r\nconnect-timeout-ms: +5", "HTTP/1.1 400"),
        (GET, "application/json\r\nconnect-timeout-ms: 5", "HTTP/1.1 504"),
        (&unknown, "application/grpc-web+proto", "HTTP/1.1 200"),
        (GET, "application/grpc-web+proto\r\nsec-fetch-site: cross-site", "HTTP/1.1 200"),
    ];
    for (path, headers, expected) in calls {
        let mut connection = TcpStream::connect(server.address).await.unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: {headers}\r\ncontent-length: 5\r\n\r\n"
        );
        connection.write_all(head.as_bytes()).await.unwrap();
        // A server that answers at once would do so in this time.
        sleep(Duration::from_millis(200)).await;
        connection.write_all(&[0; 5]).await.unwrap();
        let last = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        connection.write_all(last.as_bytes()).await.unwrap();
        let mut answers = String::new();
        timeout(PATIENCE, connection.read_to_string(&mut answers)).await.unwrap().unwrap();
        assert!(answers.starts_with(expected), "{headers}: {answers}");
        let media_type = headers.split("\r\n").next().unwrap();
        assert_eq!(answers.matches("content-type: application/").count(), 1, "{answers}");
        assert!(answers.contains(media_type), "{answers}");
        assert!(answers.ends_with(FILES[0].contents), "{headers}: {answers}");
    }
}

/// Sends a request in two parts, the second one after a while, and returns the response. A call that waits
/// to be asked for its message has begun before that while.
async fn send_slowly(server: &Server, path: &str, headers: &str, message: &[u8]) -> Vec<u8> {
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    let length = message.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\
         content-type: {headers}\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    if headers.contains("100-continue") {
        timeout(PATIENCE, connection.read_buf(&mut answer)).await.unwrap().unwrap();
    }
    sleep(MESSAGE_DELAY).await;
    // The server may have answered, and closed the connection.
    let _ = connection.write_all(message).await;
    timeout(PATIENCE, connection.read_to_end(&mut answer)).await.unwrap().unwrap();
    answer
}

#[tokio::test]
async fn a_timeout_includes_the_time_of_the_message() {
    let stub =
        Stub::new().get(|_| async { Ok(context::remaining().unwrap().as_millis().to_string()) });
    let server = Server::start(web(stub), config());
    for (headers, message) in [
        ("application/json\r\nconnect-timeout-ms: 60000", b"{}".to_vec()),
        ("application/grpc-web+proto\r\ngrpc-timeout: 60S", enveloped(b"")),
    ] {
        let headers = format!("{headers}\r\nexpect: 100-continue");
        let answer = send_slowly(&server, GET, &headers, &message).await;
        let text = String::from_utf8_lossy(&answer);
        // The heads of "continue" and of the response come before it.
        let body = text.split("\r\n\r\n").nth(2).unwrap();
        let digits = body.split(|c: char| !c.is_ascii_digit()).max_by_key(|digits| digits.len());
        let remaining = Duration::from_millis(digits.unwrap().parse().unwrap());
        let longest = Duration::from_secs(60) - MESSAGE_DELAY;
        assert!(remaining > Duration::from_secs(10) && remaining <= longest, "{text}");
    }
}

#[tokio::test]
async fn a_call_of_grpc_web_ends_at_its_timeout_while_its_message_is_read() {
    let server = Server::start(web(Stub::new()), config());
    let headers = "application/grpc-web+proto\r\ngrpc-timeout: 20m";
    let answer = send_slowly(&server, GET, headers, &enveloped(b"")).await;
    let text = String::from_utf8_lossy(&answer);
    assert!(text.contains("content-type: application/grpc-web+proto\r\n"), "{text}");
    assert!(text.contains("grpc-status: 4\r\n"), "{text}");
}

#[tokio::test]
async fn calls_of_grpc_web_end_at_their_timeout() {
    let stub = Stub::new().get(|_| async { std::future::pending().await });
    let server = Server::start(web(stub), config());
    // tonic has a timer of its own, which must not be the first.
    let calls = stream::iter(0..1_000).map(|_| async {
        let request = post(GET, "application/grpc-web+proto").header("grpc-timeout", "20m");
        let response = http(server.address, request.body(enveloped(b"")).unwrap()).await;
        assert_eq!(response.headers()["content-type"], "application/grpc-web+proto");
        assert_eq!(response.headers()["grpc-status"], "4");
    });
    calls.buffer_unordered(40).collect::<Vec<_>>().await;
}

#[tokio::test]
async fn a_caller_that_waits_to_be_asked_gets_its_rejection_at_once() {
    let server = Server::start(web(Stub::new()), config());
    let headers = "application/json\r\nexpect: 100-continue";
    let rejected = format!("{headers}\r\nconnect-timeout-ms: soon");
    for (headers, expected) in [(&*rejected, "HTTP/1.1 400 "), (headers, "HTTP/1.1 100 ")] {
        let answer = send_slowly(&server, GET, headers, b"{}").await;
        let text = String::from_utf8_lossy(&answer);
        assert!(text.starts_with(expected), "{text}");
    }
}

#[tokio::test]
async fn messages_have_limits_of_their_methods() {
    let mut limited = config();
    limited.max_message_bytes = 10_000;
    let server = Server::start(web(verify()), limited);
    let padded = |size: usize| [&b"{}"[..], &vec![b' '; size - 2]].concat();
    // Of the largest size, in its envelope.
    for (size, expected) in [(10_000, "not_found"), (10_001, "resource_exhausted")] {
        let request = post(VERIFY, "application/connect+json").body(enveloped(&padded(size)));
        let body = http(server.address, request.unwrap()).await.into_body();
        assert!(String::from_utf8_lossy(&body).contains(expected), "{body:?}");
    }
    // Decoded, JSON takes far more memory.
    let server = Server::start(web(verify()), config());
    for (size, expected) in [(256 << 10, "not_found"), ((256 << 10) + 1, "resource_exhausted")] {
        let request = post(VERIFY, "application/connect+json").body(enveloped(&padded(size)));
        let body = http(server.address, request.unwrap()).await.into_body();
        assert!(String::from_utf8_lossy(&body).contains(expected), "{body:?}");
    }
}

#[tokio::test]
async fn calls_without_a_slot_have_small_messages() {
    let server = Server::start(web(verify()), config());
    let padded = |size: usize| [&b"{}"[..], &vec![b' '; size - 2]].concat();
    let health = "/grpc.health.v1.Health/Check";
    let request = post(health, "application/json").body(padded(5_000)).unwrap();
    let (_, error) = answer(http(server.address, request).await);
    assert_eq!(code_and_reason(&error), ("resource_exhausted", "MESSAGE_TOO_LARGE"));
}

#[tokio::test]
async fn media_types_are_case_insensitive() {
    let server = Server::start(web(Stub::new()), config());
    let request = post(GET, "Application/JSON").body("{}").unwrap();
    assert_eq!(answer(http(server.address, request).await).0, StatusCode::OK);
}

#[tokio::test]
async fn files_run_no_scripts_from_elsewhere() {
    let server = Server::start(web(Stub::new()), config());
    for method in [Method::GET, Method::HEAD] {
        let request = Request::builder().method(&method).uri("/?a").body("").unwrap();
        let response = http(server.address, request).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], FILES[0].content_type);
        let policy = response.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        let expected = if method == Method::GET { FILES[0].contents } else { "" };
        assert_eq!(response.body(), expected);
    }
}

#[tokio::test]
async fn a_server_behind_the_gateway_has_only_grpc() {
    let server = Server::start(Stub::new().service(), config());
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(format!("POST {GET} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
    let mut response = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut response)).await.unwrap();
    assert!(!response.starts_with(b"HTTP/1.1"), "{response:?}");
}

#[tokio::test]
async fn health_is_readable_with_json() {
    let server = Server::start(web(Stub::new()), config());
    let path = "/grpc.health.v1.Health/Check";
    eventually("it serves", async || {
        call(&server, path, "{}").await == (StatusCode::OK, json!({"status": "SERVING"}))
    })
    .await;
    let (_, error) = call(&server, path, r#"{"service": "unknown"}"#).await;
    assert_eq!(error["code"], "not_found");
}
