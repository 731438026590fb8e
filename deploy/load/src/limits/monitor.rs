//! What Redis' MONITOR says: one line for each command, with its arguments quoted as Redis'
//! `sdscatrepr` does it.

/// A command that Redis carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Observed {
    /// When, in microseconds since the Unix epoch.
    pub(super) at_us: u64,
    /// Whether a function or script sent it, and not a client.
    pub(super) is_inner: bool,
    /// Its name and arguments.
    pub(super) words: Vec<Vec<u8>>,
}

/// Reads a line such as `1700000000.123456 [0 127.0.0.1:40000] "GET" "key"`; `None` if it is none.
pub(super) fn parse(line: &str) -> Option<Observed> {
    let (time, rest) = line.split_once(' ')?;
    let (seconds, micros) = time.split_once('.')?;
    let at_us = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
    let (source, quoted) = rest.strip_prefix('[')?.split_once("] ")?;
    let (_database, source) = source.split_once(' ')?;
    let words = words(quoted.as_bytes())?;
    (micros.len() == 6 && !words.is_empty()).then_some(Observed {
        at_us,
        is_inner: source == "lua",
        words,
    })
}

/// Reads quoted words, with one space between them.
fn words(mut text: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    loop {
        let (word, rest) = word(text.strip_prefix(b"\"")?)?;
        words.push(word);
        match rest {
            [] => return Some(words),
            [b' ', rest @ ..] => text = rest,
            [..] => return None,
        }
    }
}

/// Reads a word up to its closing quote. Returns what comes after that, too.
fn word(mut text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    loop {
        let (byte, rest) = match text {
            [b'"', rest @ ..] => return Some((word, rest)),
            [b'\\', b'x', high, low, rest @ ..] => (hex(*high)? << 4 | hex(*low)?, rest),
            [b'\\', escaped, rest @ ..] => (unescape(*escaped)?, rest),
            [plain, rest @ ..] => (*plain, rest),
            [] => return None,
        };
        word.push(byte);
        text = rest;
    }
}

fn unescape(escaped: u8) -> Option<u8> {
    match escaped {
        b'\\' | b'"' => Some(escaped),
        b'n' => Some(b'\n'),
        b'r' => Some(b'\r'),
        b't' => Some(b'\t'),
        b'a' => Some(0x07),
        b'b' => Some(0x08),
        _ => None,
    }
}

fn hex(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_its_time_and_its_source() {
        let line = r#"1700000000.000012 [0 127.0.0.1:40000] "GET" "a key" """#;
        let words = vec![b"GET".to_vec(), b"a key".to_vec(), Vec::new()];
        let at_us = 1_700_000_000_000_012;
        assert_eq!(parse(line), Some(Observed { at_us, is_inner: false, words }));
        assert!(parse(r#"1.000000 [0 lua] "TIME""#).unwrap().is_inner);
        assert!(!parse(r#"1.000000 [0 [::1]:40000] "TIME""#).unwrap().is_inner);
        assert!(!parse(r#"1.000000 [0 unix:/a b] "TIME""#).unwrap().is_inner);
    }

    #[test]
    fn every_byte_comes_back() {
        // As sdscatrepr writes it.
        let quote = |byte: u8| match byte {
            b'\\' | b'"' => format!("\\{}", char::from(byte)),
            b'\n' => "\\n".to_owned(),
            b'\r' => "\\r".to_owned(),
            b'\t' => "\\t".to_owned(),
            0x07 => "\\a".to_owned(),
            0x08 => "\\b".to_owned(),
            0x20..=0x7e => char::from(byte).to_string(),
            _ => format!("\\x{byte:02x}"),
        };
        let all: Vec<u8> = (0..=255).collect();
        let quoted: String = all.iter().copied().map(quote).collect();
        let line = format!(r#"1.000000 [0 127.0.0.1:1] "SET" "{quoted}" "\\x41" "\"] \"""#);
        let words = parse(&line).unwrap().words;
        assert_eq!(words, [b"SET".to_vec(), all, b"\\x41".to_vec(), b"\"] \"".to_vec()]);
    }

    #[test]
    fn what_is_no_such_line_is_refused() {
        for line in [
            "",
            "OK",
            "1.000000 [0 lua]",
            r#"1.0 [0 lua] "TIME""#,
            r#"1.000000 [0 lua] "TIME"#,
            r#"1.000000 [0 lua] "a""b""#,
            r#"1.000000 [0 lua] "a"  "b""#,
            r#"1.000000 [0 lua] "\x4""#,
            r#"1.000000 [0 lua] "\q""#,
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
