//! Refusals that tonic makes before a handler is asked, said in this project's terms.

use http::{HeaderMap, HeaderValue};
use microblog_proto::common::ErrorReason;
use tonic::{Code, Status};

use crate::status;

/// Returns what to answer in place of an answer that tonic made up by itself. Those carry no
/// details, which every status of ours does.
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
