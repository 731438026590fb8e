//! Errors of calls in the protocols of browsers and of `curl`: a status of gRPC, with what HTTP prescribes
//! for it.

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE, RETRY_AFTER},
};
use http_body_util::Full;
use microblog_proto::common::ErrorReason;
use prost::Message as _;
use serde_json::{Value, json};
use tonic::{Code, Status, body::Body};
use tonic_types::pb;

use super::{
    envelope,
    head::{Form, JSON},
};
use crate::{json, middleware::unknown_method, status};

/// Why a call is rejected, or has failed.
pub(super) struct Rejection {
    status: Status,
    /// In place of that of the code.
    http_status: Option<StatusCode>,
    headers: HeaderMap,
}

impl From<Status> for Rejection {
    fn from(status: Status) -> Self {
        Self { status, http_status: None, headers: HeaderMap::new() }
    }
}

impl Rejection {
    /// The server has no such method.
    pub(super) fn unknown_method() -> Self {
        Self::from(unknown_method()).with_http_status(StatusCode::NOT_FOUND)
    }

    /// A method does not take this method of HTTP.
    pub(super) fn http_method(allowed: &'static str, text: &str) -> Self {
        let rejection = Self::unsupported(text).with_http_status(StatusCode::METHOD_NOT_ALLOWED);
        rejection.with_header(ALLOW, HeaderValue::from_static(allowed))
    }

    /// A method does not take messages of this media type, but of others.
    pub(super) fn media_type(taken: &'static str) -> Self {
        let rejection = Self::unsupported(&format!("this method takes {taken}"));
        rejection.with_http_status(StatusCode::UNSUPPORTED_MEDIA_TYPE)
    }

    /// The server does not take this compression; `header` names what it takes.
    pub(super) fn compression(header: HeaderName, taken: &'static str) -> Self {
        let text = format!("the compression is unknown; the server takes {taken}");
        let reason = ErrorReason::CompressionUnsupported;
        let status = status::with_reason(Code::Unimplemented, reason, text);
        Self::from(status).with_header(header, HeaderValue::from_static(taken))
    }

    fn unsupported(text: &str) -> Self {
        status::with_reason(Code::Unimplemented, ErrorReason::ProtocolUnsupported, text).into()
    }

    fn with_http_status(mut self, status: StatusCode) -> Self {
        self.http_status = Some(status);
        self
    }

    fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Returns the response of Connect.
    pub(super) fn into_response(self, form: Form) -> Response<Body> {
        let Self { status, http_status, mut headers } = self;
        let (http_status, content_type, body) = match form {
            Form::Unary => {
                if let Some(delay) = status::retry_delay(&status) {
                    let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
                    headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
                }
                let http_status = http_status.unwrap_or_else(|| http_status_of(status.code()));
                (http_status, JSON, error(&status).to_string().into())
            }
            Form::Stream(content_type) => (StatusCode::OK, content_type, end_of_stream(&status)),
        };
        let mut response = Response::new(Body::new(Full::new(body)));
        *response.status_mut() = http_status;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        *response.headers_mut() = headers;
        response
    }

    /// Returns the response of gRPC-Web.
    pub(super) fn into_grpc_web(self, content_type: Option<HeaderValue>) -> Response<Body> {
        let mut response = self.status.into_http();
        *response.status_mut() = self.http_status.unwrap_or(StatusCode::OK);
        let headers = response.headers_mut();
        headers.extend(self.headers);
        if let Some(content_type) = content_type {
            headers.insert(CONTENT_TYPE, content_type);
        }
        status::add_retry_pushback(headers);
        response
    }
}

/// Returns the last envelope of a stream: with an error, unless the status is OK.
pub(super) fn end_of_stream(status: &Status) -> Bytes {
    let end = match status.code() {
        Code::Ok => json!({}),
        _ => json!({ "error": error(status) }),
    };
    envelope::enclose(envelope::END, end.to_string().as_bytes())
}

/// Returns the error of Connect with the code, text and details of a status.
fn error(status: &Status) -> Value {
    let details = pb::Status::decode(status.details()).unwrap_or_default().details;
    let details = details.into_iter().map(|detail| {
        let name = detail.type_url.rsplit('/').next().unwrap_or_default();
        let value = STANDARD_NO_PAD.encode(&detail.value);
        match readable(name, detail.value) {
            Some(debug) => json!({ "type": name, "value": value, "debug": debug }),
            None => json!({ "type": name, "value": value }),
        }
    });
    json!({
        "code": code_name(status.code()),
        "message": status.message(),
        "details": details.collect::<Vec<_>>(),
    })
}

/// Returns a detail as people read it.
fn readable(name: &str, detail: Vec<u8>) -> Option<Value> {
    let json = json::decode(json::message(name)?, detail.into()).ok()?;
    serde_json::from_slice(&json).ok()
}

/// Returns the name of a code in Connect.
fn code_name(code: Code) -> String {
    match code {
        Code::Cancelled => "canceled".to_owned(),
        code => status::code_name(code).to_ascii_lowercase(),
    }
}

/// Returns the HTTP status that Connect prescribes for a code.
fn http_status_of(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        // "Client closed request", which has no name there.
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
    }
}
