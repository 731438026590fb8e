//! Transport error mapping: statuses that tonic creates before it calls a handler, with this
//! project's codes and reasons.

use http::{HeaderMap, HeaderValue};
use microblog_proto::common::ErrorReason;
use tonic::{Code, Status};

use crate::status;

/// Returns the replacement for a status that tonic created. Such a status has no details; every
/// status of this project has.
pub(super) fn map_status(headers: &HeaderMap) -> Option<Status> {
    let code = headers.get("grpc-status").map(HeaderValue::as_bytes).map(Code::from_bytes)?;
    if headers.contains_key("grpc-status-details-bin") {
        return None;
    }
    match code {
        Code::OutOfRange => {
            let text = "the message is larger than the server takes";
            Some(status::with_reason(Code::ResourceExhausted, ErrorReason::MessageTooLarge, text))
        }
        Code::Internal => {
            let text = "the request is not a valid message of its type";
            Some(status::with_reason(Code::InvalidArgument, ErrorReason::MalformedMessage, text))
        }
        _ => None,
    }
}
