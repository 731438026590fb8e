//! Health over HTTP, for proxies and load balancers that know a path and a status code, but not
//! `grpc.health.v1`: `GET /healthz` answers 200 while all services of the port are SERVING, and 503
//! otherwise. Its connection may be of HTTP/1.0, HTTP/1.1 or HTTP/2.

use std::sync::Arc;

use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE},
};
use http_body_util::Full;
use tonic::body::Body;

use super::health::{HealthState, are_serving};

const PATH: &str = "/healthz";

/// Returns the response to a request for the path of health.
pub(super) fn response<B>(
    states: &[Arc<HealthState>],
    request: &Request<B>,
) -> Option<Response<Body>> {
    if request.uri().path() != PATH {
        return None;
    }
    let mut response = match *request.method() {
        Method::GET | Method::HEAD if are_serving(states) => text(StatusCode::OK, "SERVING\n"),
        Method::GET | Method::HEAD => text(StatusCode::SERVICE_UNAVAILABLE, "NOT_SERVING\n"),
        _ => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "GET or HEAD\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
    };
    if request.method() == Method::HEAD {
        *response.body_mut() = Body::empty();
    }
    Some(response)
}

/// Returns a response of plain text.
pub(super) fn text(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::from(text)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
