//! Reflection over Connect: a stream in both directions. Its messages pass as they are, since their
//! envelopes are those of gRPC.

use http::{HeaderName, HeaderValue, Method, Request, Version, header};
use http_body::Frame;
use http_body_util::BodyExt as _;
use tonic::{Code, Status, body::Body};
use tower::Service as _;

use super::request::{EXCHANGE, check_version, metadata};
use crate::{
    call::{batch::GRPC_CONTENT_TYPE, metadata::set_timeout},
    server::{
        call_batches::BatchedCalls,
        web::{
            head,
            rejection::{Rejection, end_of_stream},
        },
    },
};

/// Opens a stream, and returns the body of its response.
pub(super) async fn open(
    calls: &mut BatchedCalls,
    request: Request<Body>,
) -> Result<Body, Rejection> {
    let (parts, body) = request.into_parts();
    if parts.version < Version::HTTP_2 {
        return Err(Rejection::media_type(EXCHANGE));
    }
    check_version(&parts.headers)?;
    let encoding = parts.headers.get("connect-content-encoding");
    if encoding.is_some_and(|encoding| encoding != "identity") {
        let accepted = HeaderName::from_static("connect-accept-encoding");
        return Err(Rejection::compression(accepted, "identity"));
    }
    let mut call = Request::new(body);
    *call.method_mut() = Method::POST;
    *call.version_mut() = Version::HTTP_2;
    *call.uri_mut() = parts.uri;
    *call.extensions_mut() = parts.extensions;
    let mut headers = metadata(&parts.headers);
    headers.insert(header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    if let Some(timeout) = head::timeout(&parts.headers)? {
        set_timeout(&mut headers, timeout);
    }
    *call.headers_mut() = headers;
    let Ok(answered) = calls.call(call).await;
    if let Some(status) = Status::from_header_map(answered.headers())
        && status.code() != Code::Ok
    {
        return Err(status.into());
    }
    let frames = answered.into_body().map_frame(|frame| match frame.into_trailers() {
        Ok(trailers) => {
            let status = Status::from_header_map(&trailers);
            Frame::data(end_of_stream(&status.unwrap_or_else(|| Status::ok(""))))
        }
        Err(message) => message,
    });
    Ok(Body::new(frames))
}
