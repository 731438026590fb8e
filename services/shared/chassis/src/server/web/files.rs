//! Files that a server serves to browsers.

use http::{HeaderName, HeaderValue, Method, Request, Response, header};
use http_body_util::Full;
use tonic::body::Body;

use crate::service::File;

/// Scripts, styles and calls of this server only, no place within a page of another site, and no type
/// but the given one.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    // Another version of the server may have another file.
    (header::CACHE_CONTROL, "no-cache"),
];

/// Returns the response to a request for one of the files.
pub(super) fn response<B>(files: &[File], request: &Request<B>) -> Option<Response<Body>> {
    let file = files.iter().find(|file| file.path == request.uri().path())?;
    let body = match *request.method() {
        Method::GET => Body::new(Full::from(file.contents)),
        Method::HEAD => Body::empty(),
        _ => return None,
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.content_type));
    headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    Some(response)
}
