//! Requests in all protocols of a public server, and the errors in their responses.

use std::net::SocketAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version, header::HOST,
};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use microblog_testkit::PATIENCE;
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Splits a body of a stream into its messages, each with its flags.
pub(crate) fn envelopes(mut body: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut envelopes = Vec::new();
    while let [flags, a, b, c, d, rest @ ..] = body {
        let (message, others) = rest.split_at(u32::from_be_bytes([*a, *b, *c, *d]) as usize);
        envelopes.push((*flags, message.to_vec()));
        body = others;
    }
    assert!(body.is_empty());
    envelopes
}

/// Returns a message with its prefix.
pub(crate) fn enveloped(flags: u8, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[flags][..], &length.to_be_bytes(), message].concat()
}

/// How a caller sends a message and reads the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Grpc,
    GrpcWeb,
    GrpcWebText,
    Json,
    Proto,
    JsonStream,
    ProtoStream,
}

use Protocol::{Grpc, GrpcWeb, GrpcWebText, Json, JsonStream, Proto, ProtoStream};

impl Protocol {
    pub(crate) const ALL: [Self; 7] =
        [Grpc, GrpcWeb, GrpcWebText, Json, Proto, JsonStream, ProtoStream];

    /// The versions of HTTP that have it.
    pub(crate) fn versions(self) -> &'static [Version] {
        match self {
            Grpc => &[Version::HTTP_2],
            _ => &[Version::HTTP_11, Version::HTTP_2],
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Grpc => "application/grpc",
            GrpcWeb => "application/grpc-web+proto",
            GrpcWebText => "application/grpc-web-text",
            Json => "application/json",
            Proto => "application/proto",
            JsonStream => "application/connect+json",
            ProtoStream => "application/connect+proto",
        }
    }

    /// Returns whether it is Connect for streams.
    pub(crate) fn is_stream(self) -> bool {
        matches!(self, JsonStream | ProtoStream)
    }

    pub(crate) fn is_json(self) -> bool {
        matches!(self, Json | JsonStream)
    }

    /// Returns a body with one message, which is compressed if the flags say so.
    pub(crate) fn body(self, flags: u8, message: &[u8]) -> Vec<u8> {
        match self {
            Json | Proto => message.to_vec(),
            GrpcWebText => STANDARD.encode(enveloped(flags, message)).into_bytes(),
            Grpc | GrpcWeb | JsonStream | ProtoStream => enveloped(flags, message),
        }
    }

    /// The request header that names a compression.
    pub(crate) fn encoding(self) -> &'static str {
        match self {
            Grpc | GrpcWeb | GrpcWebText => "grpc-encoding",
            Json | Proto => "content-encoding",
            JsonStream | ProtoStream => "connect-content-encoding",
        }
    }

    /// The response header that names the compressions that the server takes.
    pub(crate) fn accept_encoding(self) -> &'static str {
        match self {
            Grpc | GrpcWeb | GrpcWebText => "grpc-accept-encoding",
            Json | Proto => "accept-encoding",
            JsonStream | ProtoStream => "connect-accept-encoding",
        }
    }

    /// Returns a POST request.
    pub(crate) fn post(self, path: &str) -> http::request::Builder {
        let request = Request::post(path).header("content-type", self.content_type());
        if self == Grpc { request.header("te", "trailers") } else { request }
    }
}

/// A whole response. Its headers include its trailers.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Sends a request on a connection of its own.
pub(crate) async fn send(
    address: SocketAddr,
    version: Version,
    request: Request<Vec<u8>>,
) -> Answer {
    let exchange = async {
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let request = request.map(|body| Full::new(Bytes::from(body)));
        if version == Version::HTTP_2 {
            let (mut sender, connection) =
                http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(connection);
            let (mut parts, body) = request.into_parts();
            let path = parts.uri.path_and_query().unwrap();
            parts.uri = format!("http://localhost{path}").parse().unwrap();
            answer(sender.send_request(Request::from_parts(parts, body)).await.unwrap()).await
        } else {
            let (mut sender, connection) = http1::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let mut request = request;
            request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
            answer(sender.send_request(request).await.unwrap()).await
        }
    };
    timeout(PATIENCE, exchange).await.unwrap()
}

async fn answer(response: Response<hyper::body::Incoming>) -> Answer {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap();
    let mut headers = parts.headers;
    headers.extend(body.trailers().cloned().unwrap_or_default());
    Answer { status: parts.status, headers, body: body.to_bytes() }
}

impl Answer {
    /// Returns a header or trailer, also of gRPC-Web.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let headers = [self.headers.clone(), self.web_trailers()];
        let value = headers.iter().find_map(|headers| headers.get(name));
        value.map(|value| value.to_str().unwrap().to_owned())
    }

    fn content_type(&self) -> &str {
        self.headers.get("content-type").map_or("", |value| value.to_str().unwrap())
    }

    /// The messages of a body that has prefixes.
    pub(crate) fn messages(&self) -> Vec<(u8, Vec<u8>)> {
        match self.content_type() {
            // Each part is encoded by itself; none has padding but at its end.
            text if text.starts_with("application/grpc-web-text") => {
                let parts = self.body.split_inclusive(|byte| *byte == b'=').collect::<Vec<_>>();
                let mut whole = Vec::new();
                for part in parts {
                    let text = String::from_utf8_lossy(part).trim_end_matches('=').to_owned();
                    let unpadded = base64::engine::general_purpose::STANDARD_NO_PAD;
                    whole.extend(unpadded.decode(text).unwrap_or_default());
                }
                envelopes(&whole)
            }
            _ => envelopes(&self.body),
        }
    }

    fn web_trailers(&self) -> HeaderMap {
        if !self.content_type().starts_with("application/grpc-web") {
            return HeaderMap::new();
        }
        let messages = self.messages();
        let trailers = messages.iter().find(|(flags, _)| *flags == 128);
        let trailers = trailers.map(|(_, text)| String::from_utf8_lossy(text).into_owned());
        let trailers = trailers.unwrap_or_default();
        let lines = trailers.lines().filter_map(|line| line.split_once(':'));
        lines
            .map(|(name, value)| {
                let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
                (name, HeaderValue::from_str(value.trim()).unwrap())
            })
            .collect()
    }

    /// Returns the error of Connect.
    pub(crate) fn connect_error(&self) -> Value {
        if self.content_type().starts_with("application/connect+") {
            let (flags, end) = self.messages().pop().unwrap();
            assert_eq!(flags, 2, "{self:?}");
            return serde_json::from_slice::<Value>(&end).unwrap()["error"].clone();
        }
        assert_eq!(self.content_type(), "application/json", "{self:?}");
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Returns the code of the error, as Connect names it, and its reason; OK without an error.
    pub(crate) fn error(&self) -> (String, String) {
        let mut headers = self.headers.clone();
        headers.extend(self.web_trailers());
        if let Some(status) = Status::from_header_map(&headers) {
            let reason = status.get_details_error_info().filter(|info| info.domain == "microblog");
            let code = if status.code() == Code::Cancelled {
                "canceled".to_owned()
            } else {
                format!("{:?}", status.code())
            };
            return (snake_case(&code), reason.map(|info| info.reason).unwrap_or_default());
        }
        let error = match self.status {
            StatusCode::OK if !self.content_type().starts_with("application/connect+") => {
                return ("ok".to_owned(), String::new());
            }
            _ if self.body.is_empty() => return (self.status.to_string(), "no body".to_owned()),
            _ => self.connect_error(),
        };
        if error.is_null() {
            return ("ok".to_owned(), String::new());
        }
        let details = error["details"].as_array().cloned().unwrap_or_default();
        let info = details.iter().find(|detail| detail["type"] == "google.rpc.ErrorInfo");
        let reason = info.and_then(|info| info["debug"]["reason"].as_str()).unwrap_or_default();
        (error["code"].as_str().unwrap().to_owned(), reason.to_owned())
    }
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}
