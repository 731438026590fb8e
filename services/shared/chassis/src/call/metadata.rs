//! How much metadata a call may carry.
//!
//! HTTP/2 knows only one answer to headers that are too large: a bare HTTP 431, without a
//! `grpc-status`. So it takes more of them than a call may have ([`HEADER_LIST_MAX`]), and what a call
//! carries is looked at here, before anything else is done with it.

use http::Request;
use microblog_proto::common::ErrorReason;
use tonic::{Code, Status};

use crate::status;

/// How much a call may carry, in bytes: as much as hyper takes unless told otherwise.
const METADATA_MAX: usize = 16 << 10;

/// How much HTTP/2 takes, in bytes. Beyond it, h2 answers a bare 431. It ends the connection, with
/// GOAWAY, where a header block does not end with its 13th CONTINUATION frame (14 full frames have
/// 224 KiB as sent), and where headers are four times as large as this once they are unpacked.
///
/// What it costs: a caller that stops in the middle of a header block makes its connection hold up to
/// 208 KiB as sent and 160 KiB unpacked. Whole requests are handed on, and refused and dropped here, as
/// soon as the connection has read what there is to read: of one connection, `--max-streams` of them at
/// most, at any time those of one connection for each worker.
pub(crate) const HEADER_LIST_MAX: u32 = 160 << 10;

/// What HTTP/2 counts for each header beside its name and value (RFC 9113, section 6.5.2).
const HEADER_OVERHEAD: usize = 32;

/// Returns why a call is refused that carries more metadata than it may.
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
