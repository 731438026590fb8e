//! W3C trace context (<https://www.w3.org/TR/trace-context/>): extracts and injects `traceparent`
//! and `tracestate`. Independent of how spans are recorded.

use http::{HeaderMap, HeaderValue};
use rand::RngExt as _;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
// The recommendation allows dropping longer ones.
const TRACESTATE_BYTES_MAX: usize = 512;

/// The trace context of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pub(crate) id: u128,
    /// Parent span of outgoing calls.
    pub(crate) span: u64,
    pub(crate) sampled: bool,
    state: Option<HeaderValue>,
}

impl Trace {
    /// Returns a root trace context.
    pub(crate) fn new_root(sampled: bool) -> Self {
        let mut random = rand::rng();
        // Zero is invalid; setting the lowest bit avoids it.
        Self {
            id: random.random::<u128>() | 1,
            span: random.random::<u64>() | 1,
            sampled,
            state: None,
        }
    }

    /// Extracts the context from the headers of an incoming call. A malformed one is ignored.
    pub(crate) fn extract(headers: &HeaderMap) -> Option<Self> {
        let (id, span, sampled) = parse(headers.get(TRACEPARENT)?.as_bytes())?;
        let state = headers.get(TRACESTATE).filter(|state| state.len() <= TRACESTATE_BYTES_MAX);
        Some(Self { id, span, sampled, state: state.cloned() })
    }

    /// Parses the output of [`Trace::text`]. A malformed one is ignored.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (id, span, sampled) = parse(text.as_bytes())?;
        Some(Self { id, span, sampled, state: None })
    }

    /// Formats the context as a `traceparent` value.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&format(self.id, self.span, self.sampled)).into_owned()
    }

    /// Returns the trace id as 32 hexadecimal digits.
    pub fn id(&self) -> impl std::fmt::Display + use<> {
        HexId(self.id)
    }

    /// Returns whether the trace is sampled.
    pub fn sampled(&self) -> bool {
        self.sampled
    }

    /// Injects the context into the headers of an outgoing call.
    pub(crate) fn inject(&self, headers: &mut HeaderMap) {
        if let Ok(value) = HeaderValue::from_bytes(&format(self.id, self.span, self.sampled)) {
            headers.insert(TRACEPARENT, value);
        }
        if let Some(state) = &self.state {
            headers.insert(TRACESTATE, state.clone());
        }
    }
}

struct HexId(u128);

impl std::fmt::Display for HexId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

// Parses `00-<32 hex digits>-<16>-<2>`; a later version may append fields.
fn parse(value: &[u8]) -> Option<(u128, u64, bool)> {
    let fixed: &[u8; 55] = value.first_chunk()?;
    let version = hex(&fixed[..2])?;
    let dashes = fixed[2] == b'-' && fixed[35] == b'-' && fixed[52] == b'-';
    let length_fits = match version {
        0 => value.len() == 55,
        0xff => false,
        _ => value.len() == 55 || value[55] == b'-',
    };
    let (id, span, flags) = (hex(&fixed[3..35])?, hex(&fixed[36..52])?, hex(&fixed[53..])?);
    let valid = dashes && length_fits && id != 0 && span != 0;
    valid.then_some((id, span as u64, flags & 1 == 1))
}

fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

fn format(id: u128, span: u64, sampled: bool) -> [u8; 55] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
    for (i, digit) in text[3..35].iter_mut().enumerate() {
        *digit = DIGITS[(id >> (124 - 4 * i)) as usize & 15];
    }
    for (i, digit) in text[36..52].iter_mut().enumerate() {
        *digit = DIGITS[(span >> (60 - 4 * i)) as usize & 15];
    }
    text[54] = if sampled { b'1' } else { b'0' };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(traceparent: &str) -> HeaderMap {
        HeaderMap::from_iter([(
            http::HeaderName::from_static(TRACEPARENT),
            HeaderValue::from_str(traceparent).unwrap(),
        )])
    }

    #[test]
    fn trace_context_round_trips() {
        let mut headers = headers(EXAMPLE);
        headers.insert(TRACESTATE, HeaderValue::from_static("vendor=1"));
        let trace = Trace::extract(&headers).unwrap();
        assert_eq!(trace.id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(trace.sampled());
        let mut out = HeaderMap::new();
        trace.inject(&mut out);
        assert_eq!(out, headers);
    }

    #[test]
    fn malformed_traceparent_is_ignored() {
        let zero_trace = EXAMPLE.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32));
        let zero_span = EXAMPLE.replace("00f067aa0ba902b7", &"0".repeat(16));
        let upper_case = EXAMPLE.to_uppercase();
        let reserved = EXAMPLE.replacen("00", "ff", 1);
        let longer = format!("{EXAMPLE}-x");
        for text in ["", "00", &zero_trace, &zero_span, &upper_case, &reserved, &longer] {
            assert_eq!(Trace::extract(&headers(text)), None, "{text}");
        }
        assert!(Trace::extract(&headers(&longer.replacen("00", "01", 1))).is_some());
    }

    #[test]
    fn new_root_trace_is_valid() {
        let mut headers = HeaderMap::new();
        let trace = Trace::new_root(false);
        trace.inject(&mut headers);
        assert_eq!(Trace::extract(&headers), Some(trace));
    }
}
