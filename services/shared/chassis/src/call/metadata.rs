//! Limit on request metadata.
//!
//! HTTP/2 can answer oversized headers only with a bare HTTP 431, without `grpc-status`. The
//! transport therefore accepts more than a call may have ([`HEADER_LIST_MAX`]), and this check
//! comes before everything else.

use http::Request;
use microblog_proto::common::ErrorReason;
use tonic::{Code, Status};

use crate::status;

/// Metadata of one call, in bytes: hyper's default limit.
const METADATA_MAX: usize = 16 << 10;

/// SETTINGS_MAX_HEADER_LIST_SIZE, in bytes. Above it, h2 answers a bare 431. It closes the
/// connection with GOAWAY if a header block does not end with its 13th CONTINUATION frame (14 full
/// frames are 224 KiB encoded), or if headers decode to four times this size.
///
/// Memory cost: a connection that stops in the middle of a header block holds up to 208 KiB encoded
/// and 160 KiB decoded. Complete requests are rejected and dropped as soon as they are read. At
/// most `--max-streams` of one connection exist at a time, and one connection at a time per worker.
pub(crate) const HEADER_LIST_MAX: u32 = 160 << 10;

/// Per-header overhead in the header list size (RFC 9113, section 6.5.2).
const HEADER_OVERHEAD: usize = 32;

/// Rejects a call with too much metadata.
pub(super) fn check<B>(request: &Request<B>) -> Result<(), Status> {
    if size(request) <= METADATA_MAX {
        return Ok(());
    }
    let text = format!("the call has more than {METADATA_MAX} bytes of metadata");
    Err(status::with_reason(Code::ResourceExhausted, ErrorReason::MetadataTooLarge, text))
}

fn size<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
    let authority = uri.authority().map_or(0, |authority| authority.as_str().len());
    let pseudo = [
        (":method", request.method().as_str().len()),
        (":scheme", uri.scheme_str().map_or(0, str::len)),
        (":authority", authority),
        (":path", path),
    ];
    let fields = request.headers().iter().map(|(name, value)| (name.as_str(), value.len()));
    pseudo.into_iter().chain(fields).map(|(name, value)| name.len() + value + HEADER_OVERHEAD).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_size_is_the_http2_header_list_size() {
        let request = Request::post("http://a.org/b/C").header("x-name", "value").body(()).unwrap();
        let expected = ":method".len() + "POST".len() + ":scheme".len() + "http".len();
        let expected = expected + ":authority".len() + "a.org".len() + ":path".len() + "/b/C".len();
        assert_eq!(size(&request), expected + "x-name".len() + "value".len() + 5 * 32);
    }

    #[test]
    fn many_small_headers_exceed_the_limit() {
        let small = |count: usize| {
            let request = (0..count).fold(Request::post("/b/C"), |r, _| r.header("a", ""));
            check(&request.body(()).unwrap())
        };
        assert!(small(450).is_ok());
        assert_eq!(small(500).unwrap_err().code(), Code::ResourceExhausted);
    }
}
