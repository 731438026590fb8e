//! Request metadata: the limit on its size, and the header `grpc-timeout`
//! (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>).
//!
//! HTTP/2 can answer oversized headers only with a bare HTTP 431, without `grpc-status`. The
//! transport therefore accepts more than a call may have ([`HEADER_LIST_MAX`]), and this check
//! of its size comes before everything else.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request};
use microblog_domain::Invalid;
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

pub(crate) const GRPC_STATUS: &str = "grpc-status";
/// In a response: after how many milliseconds the call may be repeated; a negative value forbids it
/// (<https://github.com/grpc/proposal/blob/master/A6-client-retries.md>).
pub(crate) const GRPC_RETRY_PUSHBACK: &str = "grpc-retry-pushback-ms";
/// In a response to a call whose compression is unknown: those that the server takes.
pub(crate) const GRPC_ACCEPT_ENCODING: &str = "grpc-accept-encoding";
const GRPC_TIMEOUT: &str = "grpc-timeout";
const TIMEOUT_DIGITS_MAX: usize = 8;

/// Rejects a call with too much metadata.
pub(crate) fn check_size<B>(request: &Request<B>) -> Result<(), Status> {
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

/// Reads the caller's timeout. A malformed one is rejected, not ignored: the caller relies on it.
pub(crate) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Invalid> {
    let Some(value) = headers.get(GRPC_TIMEOUT) else { return Ok(None) };
    let invalid =
        || Invalid::new(GRPC_TIMEOUT, "must be 1 to 8 digits and one of H, M, S, m, u, n");
    parse_timeout(value.as_bytes()).ok_or_else(invalid).map(Some)
}

/// Writes the timeout of an outgoing call, to the microsecond below 100 seconds, and to the millisecond
/// below a day.
pub(crate) fn set_timeout(headers: &mut HeaderMap, timeout: Duration) {
    let text = match timeout.as_secs() {
        0..100 => format!("{}u", timeout.as_micros()),
        100..86_400 => format!("{}m", timeout.as_millis()),
        seconds => format!("{}S", seconds.min(99_999_999)),
    };
    if let Ok(value) = HeaderValue::from_str(&text) {
        headers.insert(GRPC_TIMEOUT, value);
    }
}

fn parse_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > TIMEOUT_DIGITS_MAX {
        return None;
    }
    let add =
        |sum: u64, digit: &u8| digit.is_ascii_digit().then(|| sum * 10 + u64::from(digit - b'0'));
    let number = digits.iter().try_fold(0, add)?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
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
            check_size(&request.body(()).unwrap())
        };
        assert!(small(450).is_ok());
        assert_eq!(small(500).unwrap_err().code(), Code::ResourceExhausted);
    }

    #[test]
    fn parses_all_grpc_timeout_units() {
        assert_eq!(parse_timeout(b"1H"), Some(Duration::from_secs(3600)));
        assert_eq!(parse_timeout(b"2M"), Some(Duration::from_secs(120)));
        assert_eq!(parse_timeout(b"3S"), Some(Duration::from_secs(3)));
        assert_eq!(parse_timeout(b"99999999m"), Some(Duration::from_millis(99_999_999)));
        assert_eq!(parse_timeout(b"5u"), Some(Duration::from_micros(5)));
        assert_eq!(parse_timeout(b"6n"), Some(Duration::from_nanos(6)));
    }

    #[test]
    fn malformed_timeouts_are_rejected() {
        for value in ["", "S", "1", "-1S", "1s", "1.5S", "123456789n", "1 S", "١S"] {
            assert_eq!(parse_timeout(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn written_timeouts_round_trip() {
        let seconds = [0, 99, 100, 7_200, 86_400, 99_999_999].map(Duration::from_secs);
        for timeout in seconds.into_iter().chain([Duration::from_millis(1500)]) {
            let mut headers = HeaderMap::new();
            set_timeout(&mut headers, timeout);
            assert_eq!(super::timeout(&headers), Ok(Some(timeout)));
        }
    }
}
