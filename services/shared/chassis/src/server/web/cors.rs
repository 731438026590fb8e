//! Cross-origin requests (<https://fetch.spec.whatwg.org/#http-cors-protocol>): which sites' scripts may
//! call in a browser. Scripts of this server itself need no permission.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::CorsLayer;

/// How long a browser caches the answer. Browsers limit it to two hours.
const MAX_AGE: Duration = Duration::from_secs(2 * 60 * 60);

/// Headers of Connect and gRPC-Web calls, with the credentials and the trace context.
const REQUEST_HEADERS: [&str; 12] = [
    "authorization",
    "connect-content-encoding",
    "connect-protocol-version",
    "connect-timeout-ms",
    "content-encoding",
    "content-type",
    "grpc-encoding",
    "grpc-timeout",
    "traceparent",
    "x-grpc-web",
    "x-user-agent",
    "microblog-viewer",
];

/// Headers of responses of gRPC-Web, which has them instead of trailers if a call fails, and the retry
/// delay of Connect.
const RESPONSE_HEADERS: [&str; 5] = [
    "grpc-message",
    "grpc-retry-pushback-ms",
    "grpc-status",
    "grpc-status-details-bin",
    "retry-after",
];

/// Returns the layer that answers preflight requests and marks responses. A session token is in a
/// header and never in a cookie, so a browser does not add it to the requests of other sites.
pub(super) fn layer(allowed_origins: &[HeaderValue]) -> CorsLayer {
    CorsLayer::new()
        .allow_origin(allowed_origins.to_vec())
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(REQUEST_HEADERS.map(HeaderName::from_static))
        .expose_headers(RESPONSE_HEADERS.map(HeaderName::from_static))
        .max_age(MAX_AGE)
        .vary([
            header::ORIGIN,
            header::ACCESS_CONTROL_REQUEST_METHOD,
            header::ACCESS_CONTROL_REQUEST_HEADERS,
        ])
}
