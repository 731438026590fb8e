//! Requests to a peer. They are buffered, so that each attempt of a call can send a copy.

use bytes::Bytes;
use http::{HeaderValue, Request, Uri, header::USER_AGENT};
use http_body_util::{BodyExt as _, Full};
use tokio::time::Instant;
use tonic::{Status, body::Body};

use super::address::Origin;
use crate::call::metadata;

const USER_AGENT_VALUE: HeaderValue =
    HeaderValue::from_static(concat!("microblog/", env!("CARGO_PKG_VERSION")));

/// A buffered request: no method streams its request.
pub(super) type BufferedRequest = Request<Full<Bytes>>;

/// Buffers the request of a call.
pub(super) async fn buffer(request: Request<Body>) -> Result<BufferedRequest, Status> {
    let (mut head, body) = request.into_parts();
    head.headers.entry(USER_AGENT).or_insert(USER_AGENT_VALUE);
    // Not sent; copying them costs an allocation.
    head.extensions.clear();
    Ok(Request::from_parts(head, Full::new(body.collect().await?.to_bytes())))
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

/// Sets scheme and authority.
pub(super) fn set_origin(request: &mut BufferedRequest, origin: &Origin) {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(origin.scheme());
    parts.authority = Some(origin.authority.clone());
    // Fails only if a part is missing.
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
}
