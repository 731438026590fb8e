//! What is the same in every protocol of a public server: errors with a reason, retry delays, and
//! messages that are compressed.

use std::{io::Write as _, time::Duration};

use flate2::{Compression, write::GzEncoder};
use futures::StreamExt as _;
use http::{Request, StatusCode, Version};
use microblog_chassis::{Service, Web, status};
use microblog_proto::{
    common::ErrorReason,
    user::{GetUserByNameRequest, VerifyResponse},
};
use prost::Message as _;
use tonic::Status;

use crate::{
    exchange::{
        Protocol::{self, Grpc, GrpcWeb, GrpcWebText, Json, JsonStream, Proto, ProtoStream},
        send,
    },
    support::{NAME, Server, Stub, config},
};

const GET: &str = "/microblog.user.v1.UserService/GetUserByName";
const VERIFY: &str = "/microblog.user.v1.UserService/Verify";
const WRITE: &str = "/microblog.user.v1.UserService/Register";
const HEALTH: &str = "/grpc.health.v1.Health/Check";

fn web(stub: Stub) -> Service {
    Service { web: Some(Web::default()), ..stub.service() }
}

/// The method that a protocol calls.
fn method(protocol: Protocol) -> &'static str {
    if protocol.is_stream() { VERIFY } else { GET }
}

/// A message for that method.
fn message(protocol: Protocol) -> Vec<u8> {
    match protocol {
        Json => br#"{"name": "ada"}"#.to_vec(),
        JsonStream => b"{}".to_vec(),
        ProtoStream => Vec::new(),
        Grpc | GrpcWeb | GrpcWebText | Proto => {
            GetUserByNameRequest { name: "ada".to_owned() }.encode_to_vec()
        }
    }
}

fn gzip(message: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(message).unwrap();
    encoder.finish().unwrap()
}

/// Sends a request and checks the error: its code, its reason and its HTTP status.
async fn check(
    server: &Server,
    version: Version,
    request: Request<Vec<u8>>,
    (code, reason, status): (&str, &str, u16),
) -> crate::exchange::Answer {
    let what = format!("{version:?} {} {:?}", request.uri(), request.headers());
    let answer = send(server.address, version, request).await;
    assert_eq!(answer.error(), (code.to_owned(), reason.to_owned()), "{what}: {answer:?}");
    assert_eq!(answer.status, status, "{what}: {answer:?}");
    answer
}

#[tokio::test]
async fn errors_have_a_reason_in_every_protocol() {
    let server = Server::start(web(Stub::new()), config());
    for protocol in Protocol::ALL {
        // Errors in streams, and those of gRPC, have HTTP status 200.
        let is_unary = matches!(protocol, Json | Proto);
        let http = |status: u16| if is_unary { status } else { 200 };
        for version in protocol.versions() {
            let post = |path: &str, message: &[u8]| {
                protocol.post(path).body(protocol.body(0, message)).unwrap()
            };
            for path in [format!("/{NAME}/Invented"), "/invented.v1.Service/Method".to_owned()] {
                let expected = ("unimplemented", "METHOD_UNKNOWN", http(404));
                check(&server, *version, post(&path, b""), expected).await;
            }
            let mut request = post(method(protocol), &message(protocol));
            request.headers_mut().insert(protocol.encoding(), "br".parse().unwrap());
            let expected = ("unimplemented", "COMPRESSION_UNSUPPORTED", http(501));
            let answer = check(&server, *version, request, expected).await;
            let taken = answer.header(protocol.accept_encoding()).unwrap();
            assert!(taken.split(',').any(|one| one == "gzip"), "{protocol:?}: {taken}");

            let malformed = post(method(protocol), b"\xff");
            let expected = ("invalid_argument", "MALFORMED_MESSAGE", http(400));
            check(&server, *version, malformed, expected).await;

            if !protocol.is_stream() {
                let name = match protocol {
                    Json => br#"{"service": "a"}"#.to_vec(),
                    _ => GetUserByNameRequest { name: "a".to_owned() }.encode_to_vec(),
                };
                let expected = ("not_found", "NAME_UNKNOWN", http(404));
                check(&server, *version, post(HEALTH, &name), expected).await;
            }
            if protocol != Grpc {
                let mut request = post(method(protocol), &message(protocol));
                request.headers_mut().insert("sec-fetch-site", "cross-site".parse().unwrap());
                let expected = ("permission_denied", "ORIGIN_NOT_ALLOWED", http(403));
                check(&server, *version, request, expected).await;
            }
        }
    }
}

#[tokio::test]
async fn errors_of_http_have_a_reason() {
    let server = Server::start(web(Stub::new()), config());
    let get = |path: String| Request::get(path).body(Vec::new()).unwrap();
    let query = |query: &str| get(format!("{GET}?{query}"));
    let send_as = |method: &str, path: &str, content_type: &str| {
        let request = Request::builder().method(method).uri(path);
        request.header("content-type", content_type).body(Vec::new()).unwrap()
    };
    let (unsupported, invalid) =
        (("unimplemented", "PROTOCOL_UNSUPPORTED"), ("invalid_argument", "INVALID_FIELD"));
    let cases = [
        // A write by GET, a stream by GET, and other methods of HTTP.
        (get(format!("{WRITE}?encoding=json&message=%7B%7D")), unsupported, 405),
        (get(format!("{VERIFY}?encoding=json&message=%7B%7D")), unsupported, 405),
        (get(HEALTH.to_owned()), unsupported, 405),
        (send_as("DELETE", GET, "application/json"), unsupported, 405),
        (send_as("PUT", VERIFY, "application/connect+json"), unsupported, 405),
        (send_as("DELETE", GET, "application/grpc-web"), unsupported, 405),
        (send_as("OPTIONS", GET, ""), unsupported, 405),
        // Content types.
        (send_as("POST", GET, "text/plain"), unsupported, 415),
        (send_as("POST", GET, ""), unsupported, 415),
        (send_as("POST", GET, "application/connect+foo"), unsupported, 415),
        (send_as("POST", VERIFY, "application/json"), unsupported, 415),
        (send_as("POST", GET, "application/connect+json"), unsupported, 200),
        (send_as("POST", GET, "application/grpc-web+json"), unsupported, 415),
        // Queries.
        (query("message=%7B%7D"), invalid, 400),
        (query("encoding=xml&message=%7B%7D"), unsupported, 415),
        (query("encoding=json&connect=v2&message=%7B%7D"), invalid, 400),
        (query("encoding=json&base64=1&message=!"), invalid, 400),
        (query("encoding=json"), ("invalid_argument", "MALFORMED_MESSAGE"), 400),
        (
            query("encoding=json&compression=br&message=%7B%7D"),
            ("unimplemented", "COMPRESSION_UNSUPPORTED"),
            501,
        ),
        (get("/".to_owned()), ("unimplemented", "METHOD_UNKNOWN"), 404),
    ];
    for (request, (code, reason), status) in cases {
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let answer = check(&server, version, request.clone(), (code, reason, status)).await;
            let allow = answer.header("allow");
            assert_eq!(allow.is_some(), status == 405, "{answer:?}");
        }
    }
    let version = protocol_version("2");
    check(&server, Version::HTTP_11, version, (invalid.0, invalid.1, 400)).await;
    let answer = send(server.address, Version::HTTP_11, protocol_version("1")).await;
    assert_eq!(answer.status, StatusCode::OK);
}

fn protocol_version(version: &str) -> Request<Vec<u8>> {
    let request = Json.post(GET).header("connect-protocol-version", version);
    request.body(message(Json)).unwrap()
}

#[tokio::test]
async fn a_stream_takes_exactly_one_message() {
    let server = Server::start(web(Stub::new()), config());
    let one = ProtoStream.body(0, b"");
    let malformed = "MALFORMED_MESSAGE";
    for (body, code) in [
        (Vec::new(), "unimplemented"),
        ([one.clone(), one.clone()].concat(), "unimplemented"),
        (ProtoStream.body(1, b"x"), "internal"),
        (ProtoStream.body(2, b""), "invalid_argument"),
        (vec![0, 0, 0], "invalid_argument"),
        (vec![0, 0, 0, 0, 9, 1], "invalid_argument"),
    ] {
        let request = ProtoStream.post(VERIFY).body(body).unwrap();
        check(&server, Version::HTTP_11, request, (code, malformed, 200)).await;
    }
    let large = ProtoStream.post(VERIFY).body(vec![0, 1, 0, 0, 0]).unwrap();
    let expected = ("resource_exhausted", "MESSAGE_TOO_LARGE", 200);
    check(&server, Version::HTTP_11, large, expected).await;
}

#[tokio::test]
async fn retry_delays_are_in_the_headers_that_clients_know() {
    let delay = Duration::from_micros(1_200_100);
    let throttled = move || status::throttled(ErrorReason::RateLimited, "wait", delay);
    let stub = Stub::new().get(move |_| async move { Err(throttled()) }).verify(move || {
        let first = Ok(VerifyResponse::default());
        futures::stream::iter([first, Err(throttled())]).boxed()
    });
    let server = Server::start(web(stub), config());
    for protocol in Protocol::ALL {
        for version in protocol.versions() {
            let paths = if protocol.is_stream() { vec![VERIFY] } else { vec![GET] };
            // In trailers, too: after a message.
            let also = if protocol == Grpc { vec![VERIFY] } else { Vec::new() };
            for path in [paths, also].concat() {
                let message = if path == method(protocol) { message(protocol) } else { Vec::new() };
                let request = protocol.post(path).body(protocol.body(0, &message));
                let answer = send(server.address, *version, request.unwrap()).await;
                assert_eq!(answer.error().1, "RATE_LIMITED", "{answer:?}");
                let is_unary = matches!(protocol, Json | Proto);
                let pushback = answer.header("grpc-retry-pushback-ms");
                let is_grpc = matches!(protocol, Grpc | GrpcWeb | GrpcWebText);
                assert_eq!(pushback.as_deref(), is_grpc.then_some("1201"), "{answer:?}");
                let retry_after = answer.header("retry-after");
                assert_eq!(retry_after.as_deref(), is_unary.then_some("2"), "{answer:?}");
            }
        }
    }
}

#[tokio::test]
async fn messages_may_be_compressed() {
    let stub = Stub::new().verify(|| {
        futures::stream::iter([Ok(VerifyResponse { users_checked: 7, ..Default::default() })])
            .boxed()
    });
    let server = Server::start(web(stub), config());
    for protocol in Protocol::ALL {
        for version in protocol.versions() {
            let body = protocol.body(1, &gzip(&message(protocol)));
            let request = protocol.post(method(protocol)).header(protocol.encoding(), "gzip");
            let answer = send(server.address, *version, request.body(body).unwrap()).await;
            assert_eq!(answer.error().0, "ok", "{protocol:?} {answer:?}");
            // With the header, a message may still be as it is; and answers always are.
            assert_eq!(answer.header(protocol.encoding()), None);
            if !matches!(protocol, Json | Proto) {
                assert_eq!(answer.messages()[0].0, 0, "{answer:?}");
                let request = protocol.post(method(protocol)).header(protocol.encoding(), "gzip");
                let request = request.body(protocol.body(0, &message(protocol))).unwrap();
                let answer = send(server.address, *version, request).await;
                assert_eq!(answer.error().0, "ok", "{protocol:?} {answer:?}");
            }
        }
    }
    let query = base64::Engine::encode(
        &base64::engine::general_purpose::URL_SAFE_NO_PAD,
        gzip(&message(Json)),
    );
    let query = format!("{GET}?encoding=json&compression=gzip&base64=1&message={query}");
    let answer =
        send(server.address, Version::HTTP_11, Request::get(query).body(Vec::new()).unwrap()).await;
    assert_eq!(answer.body, r#"{"user":{"name":"ada"}}"#, "{answer:?}");
}

#[tokio::test]
async fn a_limit_holds_for_the_message_that_was_compressed() {
    let mut limited = config();
    limited.max_message_bytes = 1 << 20;
    let server = Server::start(web(Stub::new().max_message_bytes(1 << 20)), limited);
    for protocol in Protocol::ALL {
        // Of the largest size, and larger by one.
        let max = if protocol.is_json() { 256 << 10 } else { 1 << 20 };
        for (size, is_larger) in [(max, false), (max + 1, true), (64 << 20, true)] {
            let padded = match protocol.is_json() {
                true => [&b"{}"[..], &vec![b' '; size - 2]].concat(),
                // A field that no message has, with a length of 3 or 4 bytes.
                false => {
                    let mut message = vec![0xfa, 0x7f];
                    let digits = if size > 2 << 20 { 4 } else { 3 };
                    let length = size - 2 - digits;
                    prost::encoding::encode_varint(length as u64, &mut message);
                    message.resize(size, 0);
                    message
                }
            };
            let body = protocol.body(1, &gzip(&padded));
            let request = protocol.post(method(protocol)).header(protocol.encoding(), "gzip");
            let answer = send(server.address, Version::HTTP_2, request.body(body).unwrap()).await;
            let expected =
                if is_larger { ("resource_exhausted", "MESSAGE_TOO_LARGE") } else { ("ok", "") };
            assert_eq!(
                answer.error(),
                (expected.0.into(), expected.1.into()),
                "{protocol:?} {size}"
            );
        }
    }
    for protocol in Protocol::ALL {
        let request = protocol.post(method(protocol)).header(protocol.encoding(), "gzip");
        let request = request.body(protocol.body(1, b"no gzip")).unwrap();
        let answer = send(server.address, Version::HTTP_2, request).await;
        let expected = ("invalid_argument".to_owned(), "MALFORMED_MESSAGE".to_owned());
        assert_eq!(answer.error(), expected, "{protocol:?}");
    }
}

#[tokio::test]
async fn statuses_of_handlers_keep_their_details() {
    let stub = Stub::new()
        .get(|_| async { Err(status::store_unavailable()) })
        .verify(|| futures::stream::iter([Err(Status::internal("cannot encode"))]).boxed());
    let server = Server::start(web(stub), config());
    for protocol in Protocol::ALL {
        let request = protocol.post(method(protocol)).body(protocol.body(0, &message(protocol)));
        let answer = send(server.address, Version::HTTP_2, request.unwrap()).await;
        let expected = match protocol.is_stream() {
            true => ("internal", "INTERNAL"),
            false => ("unavailable", "STORE_UNAVAILABLE"),
        };
        assert_eq!(answer.error(), (expected.0.to_owned(), expected.1.to_owned()), "{protocol:?}");
    }
}

#[tokio::test]
async fn parameters_of_a_media_type_have_no_meaning() {
    let server = Server::start(web(Stub::new()), config());
    for protocol in [GrpcWeb, GrpcWebText, Json, Proto, JsonStream] {
        for version in protocol.versions() {
            let content_type = format!("{}; charset=utf-8", protocol.content_type());
            let request = Request::post(method(protocol)).header("content-type", content_type);
            let request = request.body(protocol.body(0, &message(protocol))).unwrap();
            let answer = send(server.address, *version, request).await;
            assert_eq!(answer.error().0, "ok", "{protocol:?} {answer:?}");
        }
    }
}
