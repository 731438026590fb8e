//! HTTP/1.1 requests, as scripts and browsers send them.

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::{HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, ToSocketAddrs};

/// Sends a request on a connection of its own and returns the response when its headers have come.
/// Dropping it closes the connection.
pub async fn http_stream(
    address: impl ToSocketAddrs,
    request: Request<impl Into<Bytes>>,
) -> Response<Incoming> {
    let stream = TcpStream::connect(address).await.expect("connected");
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.expect("a connection of HTTP/1.1");
    tokio::spawn(connection);
    let (mut parts, body) = request.into_parts();
    parts.headers.entry(HOST).or_insert(HeaderValue::from_static("localhost"));
    let request = Request::from_parts(parts, Full::new(body.into()));
    sender.send_request(request).await.expect("a response")
}

/// Sends a request and returns the whole response.
pub async fn http(
    address: impl ToSocketAddrs,
    request: Request<impl Into<Bytes>>,
) -> Response<Bytes> {
    let (parts, body) = http_stream(address, request).await.into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes();
    Response::from_parts(parts, body)
}
