//! The header `grpc-timeout` (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>).

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use microblog_domain::Invalid;

pub(crate) const GRPC_TIMEOUT: &str = "grpc-timeout";
const DIGITS_MAX: usize = 8;

/// Reads the caller's timeout. A malformed one is rejected, not ignored: the caller relies on it.
pub(crate) fn read(headers: &HeaderMap) -> Result<Option<Duration>, Invalid> {
    let Some(value) = headers.get(GRPC_TIMEOUT) else { return Ok(None) };
    let invalid =
        || Invalid::new(GRPC_TIMEOUT, "must be 1 to 8 digits and one of H, M, S, m, u, n");
    parse(value.as_bytes()).ok_or_else(invalid).map(Some)
}

/// Writes the timeout of an outgoing call, to the microsecond below 100 seconds.
pub(crate) fn write(headers: &mut HeaderMap, timeout: Duration) {
    let micros = timeout.as_micros();
    let text = match micros {
        0..100_000_000 => format!("{micros}u"),
        _ => format!("{}m", timeout.as_millis().min(99_999_999)),
    };
    if let Ok(value) = HeaderValue::from_str(&text) {
        headers.insert(GRPC_TIMEOUT, value);
    }
}

fn parse(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > DIGITS_MAX {
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
    fn parses_all_grpc_timeout_units() {
        assert_eq!(parse(b"1H"), Some(Duration::from_secs(3600)));
        assert_eq!(parse(b"2M"), Some(Duration::from_secs(120)));
        assert_eq!(parse(b"3S"), Some(Duration::from_secs(3)));
        assert_eq!(parse(b"99999999m"), Some(Duration::from_millis(99_999_999)));
        assert_eq!(parse(b"5u"), Some(Duration::from_micros(5)));
        assert_eq!(parse(b"6n"), Some(Duration::from_nanos(6)));
    }

    #[test]
    fn malformed_timeouts_are_rejected() {
        for value in ["", "S", "1", "-1S", "1s", "1.5S", "123456789n", "1 S", "١S"] {
            assert_eq!(parse(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn written_timeouts_round_trip() {
        for timeout in [Duration::ZERO, Duration::from_millis(1500), Duration::from_secs(7200)] {
            let mut headers = HeaderMap::new();
            write(&mut headers, timeout);
            assert_eq!(read(&headers), Ok(Some(timeout)));
        }
    }
}
