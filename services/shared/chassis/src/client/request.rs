//! Requests to a peer. They are buffered, so that each attempt of a call can send a copy.

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Uri, Version,
    header::{CONTENT_TYPE, TE, USER_AGENT},
};
use http_body_util::{BodyExt as _, Either, Full};
use tokio::time::Instant;
use tonic::{Status, body::Body};

use super::address::Origin;
use crate::call::{batch::GRPC_CONTENT_TYPE, metadata};

const USER_AGENT_VALUE: HeaderValue =
    HeaderValue::from_static(concat!("microblog/", env!("CARGO_PKG_VERSION")));

/// A buffered request: no method of a service streams its request.
pub(super) type BufferedRequest = Request<Bytes>;

/// The body of a buffered request, or a stream of batches.
pub(super) type RequestBody = Either<Full<Bytes>, Body>;

/// Buffers the request of a call.
pub(super) async fn buffer(request: Request<Body>) -> Result<BufferedRequest, Status> {
    let (mut head, body) = request.into_parts();
    head.headers.entry(USER_AGENT).or_insert(USER_AGENT_VALUE);
    // Not sent; copying them costs an allocation.
    head.extensions.clear();
    Ok(Request::from_parts(head, body.collect().await?.to_bytes()))
}

/// Returns the request of one attempt.
pub(super) fn attempt(
    request: &BufferedRequest,
    origin: &Origin,
    deadline: Option<Instant>,
) -> BufferedRequest {
    let mut request = request.clone();
    set_origin(&mut request, origin);
    if let Some(deadline) = deadline {
        let left = deadline.saturating_duration_since(Instant::now());
        metadata::set_timeout(request.headers_mut(), left);
    }
    request
}

/// Returns a request of the client itself.
pub(super) fn new<B>(path: &'static str, origin: &Origin, body: B) -> Request<B> {
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = Uri::from_static(path);
    set_origin(&mut request, origin);
    let headers = request.headers_mut();
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    request
}

/// Sets scheme and authority.
fn set_origin<B>(request: &mut Request<B>, origin: &Origin) {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(origin.scheme());
    parts.authority = Some(origin.authority.clone());
    // Fails only if a part is missing.
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
}
