//! Incremental RESP parser: RESP 2, and the parts of RESP 3 that reads and client tracking need
//! (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).
//!
//! The client library uses parser combinators that can stop at any byte, which took a quarter of a
//! server's CPU time (<https://github.com/redis-rs/redis-rs/pull/2184>). This parser stops between
//! values only.

use std::str::FromStr;

use bytes::{Buf as _, BytesMut};
use redis::Value;

// Limits of the memory reserved for a declared length, before its data arrive.
const VALUES_RESERVED_MAX: usize = 4096;
const BYTES_RESERVED_MAX: usize = 1 << 20;
// Maximum nesting of arrays, far above that of any command. Dropping nested values uses the stack.
const DEPTH_MAX: usize = 16;
// Maximum length of a line. The longest lines are errors.
const LINE_BYTES_MAX: usize = 64 * 1024;
// Maximum length of a bulk string: four times the default of `proto-max-bulk-len`.
const STRING_BYTES_MAX: usize = 1 << 31;

/// Invalid RESP. The rest of the stream cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid RESP")]
pub(crate) struct ProtocolError;

/// A message from Redis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    /// The reply to the next command.
    Reply(Value),
    /// A push message, between two replies.
    Push(Vec<Value>),
}

/// Parses messages. Keeps the state of an incomplete message between calls.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    /// The incomplete aggregates, each nested in the one before it.
    aggregates: Vec<Aggregate>,
}

#[derive(Debug)]
struct Aggregate {
    missing: usize,
    values: Vec<Value>,
    is_push: bool,
}

/// A parsed header: a complete value, or the start of an aggregate.
enum Header {
    Value(Value),
    Aggregate { count: usize, is_push: bool },
}

impl Parser {
    /// Parses and removes the next message of a buffer; `None` if it is incomplete.
    pub(crate) fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Message>, ProtocolError> {
        while let Some(header) = parse_header(buffer)? {
            let value = match header {
                Header::Aggregate { count, is_push } if count > 0 => {
                    // A push message cannot be nested in a reply.
                    if is_push && !self.aggregates.is_empty() || self.aggregates.len() >= DEPTH_MAX
                    {
                        return Err(ProtocolError);
                    }
                    let values = Vec::with_capacity(count.min(VALUES_RESERVED_MAX));
                    self.aggregates.push(Aggregate { missing: count, values, is_push });
                    continue;
                }
                Header::Aggregate { .. } => Value::Array(Vec::new()),
                Header::Value(value) => value,
            };
            if let Some(message) = self.add(value) {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Adds a value to the innermost aggregate. Returns the message if that completes it.
    fn add(&mut self, mut value: Value) -> Option<Message> {
        while let Some(aggregate) = self.aggregates.last_mut() {
            aggregate.values.push(value);
            aggregate.missing -= 1;
            if aggregate.missing > 0 {
                return None;
            }
            let Aggregate { values, is_push, .. } = self.aggregates.pop()?;
            if is_push {
                return Some(Message::Push(values));
            }
            value = Value::Array(values);
        }
        Some(Message::Reply(value))
    }
}

fn parse_header(buffer: &mut BytesMut) -> Result<Option<Header>, ProtocolError> {
    let Some(end) = buffer.iter().position(|&byte| byte == b'\r') else {
        return if buffer.len() > LINE_BYTES_MAX { Err(ProtocolError) } else { Ok(None) };
    };
    let (line, rest) = (&buffer[..end], &buffer[end + 1..]);
    match rest.first() {
        None => return Ok(None),
        Some(b'\n') => {}
        Some(_) => return Err(ProtocolError),
    }
    let (&kind, text) = line.split_first().ok_or(ProtocolError)?;
    let mut taken = end + 2;
    let header = match kind {
        b'$' => match number(text)? {
            -1 => Header::Value(Value::Nil),
            length => {
                let length = usize::try_from(length).map_err(|_| ProtocolError)?;
                if length > STRING_BYTES_MAX {
                    return Err(ProtocolError);
                }
                let Some(bytes) = rest[1..].get(..length + 2) else {
                    // Reserves the whole string at once.
                    buffer.reserve((length + 2).min(BYTES_RESERVED_MAX));
                    return Ok(None);
                };
                let bytes = bytes.strip_suffix(b"\r\n").ok_or(ProtocolError)?;
                taken += length + 2;
                Header::Value(Value::BulkString(bytes.to_vec()))
            }
        },
        b':' => Header::Value(Value::Int(number(text)?)),
        b'*' => match number(text)? {
            -1 => Header::Value(Value::Nil),
            length => aggregate(length, 1)?,
        },
        b'_' if text.is_empty() => Header::Value(Value::Nil),
        b',' => Header::Value(Value::Double(parsed(text)?)),
        b'%' => aggregate(number(text)?, 2)?,
        b'>' => match aggregate(number(text)?, 1)? {
            Header::Aggregate { count: count @ 1.., .. } => {
                Header::Aggregate { count, is_push: true }
            }
            _ => return Err(ProtocolError),
        },
        b'+' if text == b"OK" => Header::Value(Value::Okay),
        b'+' => {
            let text = std::str::from_utf8(text).map_err(|_| ProtocolError)?;
            Header::Value(Value::SimpleString(text.to_owned()))
        }
        // Rare, and only the library can construct its errors.
        b'-' => {
            let error = redis::parse_redis_value(&buffer[..taken]);
            Header::Value(error.map_err(|_| ProtocolError)?)
        }
        _ => return Err(ProtocolError),
    };
    buffer.advance(taken);
    Ok(Some(header))
}

/// Returns an aggregate of `length` elements with `values` each: a map has 2.
fn aggregate(length: i64, values: usize) -> Result<Header, ProtocolError> {
    let length = usize::try_from(length).map_err(|_| ProtocolError)?;
    let count = length.checked_mul(values).ok_or(ProtocolError)?;
    Ok(Header::Aggregate { count, is_push: false })
}

fn number(text: &[u8]) -> Result<i64, ProtocolError> {
    // The common case: a length of one digit.
    if let [digit @ b'0'..=b'9'] = text {
        return Ok(i64::from(digit - b'0'));
    }
    parsed(text)
}

fn parsed<T: FromStr>(text: &[u8]) -> Result<T, ProtocolError> {
    let text = std::str::from_utf8(text).map_err(|_| ProtocolError)?;
    text.parse().map_err(|_| ProtocolError)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Parses a stream that arrives in pieces of `size` bytes.
    fn messages(stream: &[u8], size: usize) -> Result<Vec<Message>, ProtocolError> {
        let (mut parser, mut buffer) = (Parser::default(), BytesMut::new());
        let mut messages = Vec::new();
        for piece in stream.chunks(size) {
            buffer.extend_from_slice(piece);
            while let Some(message) = parser.next(&mut buffer)? {
                messages.push(message);
            }
        }
        assert!(buffer.is_empty() && parser.aggregates.is_empty(), "incomplete");
        Ok(messages)
    }

    /// Parses a stream without push messages.
    fn read(stream: &[u8], size: usize) -> Result<Vec<Value>, ProtocolError> {
        let reply = |message| match message {
            Message::Reply(reply) => reply,
            Message::Push(_) => panic!("unexpected push message"),
        };
        Ok(messages(stream, size)?.into_iter().map(reply).collect())
    }

    /// Serialises a reply as Redis does.
    fn write(value: &Value, stream: &mut Vec<u8>) {
        match value {
            Value::Nil => stream.extend(b"$-1\r\n"),
            Value::Okay => stream.extend(b"+OK\r\n"),
            Value::Int(number) => stream.extend(format!(":{number}\r\n").bytes()),
            Value::Double(number) => stream.extend(format!(",{number}\r\n").bytes()),
            Value::SimpleString(text) => stream.extend(format!("+{text}\r\n").bytes()),
            Value::BulkString(bytes) => {
                stream.extend(format!("${}\r\n", bytes.len()).bytes());
                stream.extend(bytes);
                stream.extend(b"\r\n");
            }
            Value::Array(values) => {
                stream.extend(format!("*{}\r\n", values.len()).bytes());
                values.iter().for_each(|value| write(value, stream));
            }
            other => panic!("unsupported: {other:?}"),
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            Just(Value::Okay),
            any::<i64>().prop_map(Value::Int),
            any::<f64>().prop_map(Value::Double),
            Just(Value::Double(f64::NEG_INFINITY)),
            "[a-z ]{0,20}".prop_map(Value::SimpleString),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::BulkString),
        ];
        leaf.prop_recursive(4, 40, 8, |inner| {
            prop::collection::vec(inner, 0..8).prop_map(Value::Array)
        })
    }

    proptest! {
        #[test]
        fn replies_are_parsed_from_pieces_of_any_size(
            replies in prop::collection::vec(any_value(), 1..5),
            size in 1..200_usize,
        ) {
            let mut stream = Vec::new();
            replies.iter().for_each(|reply| write(reply, &mut stream));
            prop_assert_eq!(read(&stream, size).unwrap(), replies);
        }

        #[test]
        fn parser_agrees_with_the_library(reply in any_value()) {
            let mut stream = Vec::new();
            write(&reply, &mut stream);
            let library = redis::parse_redis_value(&stream).unwrap();
            prop_assert_eq!(read(&stream, stream.len()).unwrap(), [library]);
        }

        #[test]
        fn random_bytes_are_invalid_or_incomplete(stream in prop::collection::vec(any::<u8>(), 0..80)) {
            let (mut parser, mut buffer) = (Parser::default(), BytesMut::from(&stream[..]));
            while let Ok(Some(_)) = parser.next(&mut buffer) {}
            prop_assert!(buffer.capacity() < 2 * BYTES_RESERVED_MAX);
        }
    }

    #[test]
    fn errors_are_those_of_the_library() {
        for text in ["-ERR no\r\n", "-WRONGTYPE a key\r\n", "-MOVED 7 10.0.0.1:6379\r\n", "-X\r\n"]
        {
            let library = redis::parse_redis_value(text.as_bytes()).unwrap();
            assert!(matches!(library, Value::ServerError(_)), "{text}");
            for size in 1..=text.len() {
                assert_eq!(
                    read(text.as_bytes(), size).as_deref(),
                    Ok(std::slice::from_ref(&library))
                );
            }
        }
        let within = read(b"*2\r\n:1\r\n-ERR no\r\n", 3).unwrap();
        assert!(matches!(&within[..], [Value::Array(values)]
            if matches!(values[..], [Value::Int(1), Value::ServerError(_)])));
    }

    #[test]
    fn nil_and_empty_values_are_parsed() {
        assert_eq!(
            read(b"*-1\r\n$-1\r\n*0\r\n$0\r\n\r\n", 2).unwrap(),
            [Value::Nil, Value::Nil, Value::Array(Vec::new()), Value::BulkString(Vec::new()),]
        );
    }

    #[test]
    fn doubles_are_parsed_as_redis_writes_them() {
        let doubles = [
            (",1795364000000\r\n", 1_795_364_000_000.0),
            (",1e+20\r\n", 1e20),
            (",0.5\r\n", 0.5),
            (",inf\r\n", f64::INFINITY),
            (",-inf\r\n", f64::NEG_INFINITY),
        ];
        for (text, number) in doubles {
            assert_eq!(read(text.as_bytes(), 3).unwrap(), [Value::Double(number)], "{text}");
        }
    }

    #[test]
    fn push_messages_stand_between_replies() {
        let stream = b"$1\r\na\r\n>2\r\n$10\r\ninvalidate\r\n*2\r\n$1\r\nk\r\n$1\r\nl\r\n_\r\n\
            >2\r\n$10\r\ninvalidate\r\n_\r\n%1\r\n+proto\r\n:3\r\n";
        let text = |text: &str| Value::BulkString(text.into());
        let keys = Value::Array(vec![text("k"), text("l")]);
        let map = Value::Array(vec![Value::SimpleString("proto".into()), Value::Int(3)]);
        for size in 1..=stream.len() {
            assert_eq!(
                messages(stream, size).unwrap(),
                [
                    Message::Reply(text("a")),
                    Message::Push(vec![text("invalidate"), keys.clone()]),
                    Message::Reply(Value::Nil),
                    Message::Push(vec![text("invalidate"), Value::Nil]),
                    Message::Reply(map.clone()),
                ]
            );
        }
    }

    #[test]
    fn limits_of_depth_and_line_length_are_enforced() {
        let deep = |depth: usize| [&b"*1\r\n".repeat(depth)[..], b":1\r\n"].concat();
        assert!(read(&deep(DEPTH_MAX), 3).is_ok());
        assert_eq!(read(&deep(DEPTH_MAX + 1), 3), Err(ProtocolError));
        assert_eq!(read(&vec![b'-'; LINE_BYTES_MAX + 1], 1000), Err(ProtocolError));
        let reason = "-ERR ".to_owned() + &"a".repeat(LINE_BYTES_MAX - 10) + "\r\n";
        assert!(read(reason.as_bytes(), 1000).is_ok());
    }

    #[test]
    fn invalid_resp_is_rejected() {
        for text in [
            "what\r\n",
            "\r\n",
            ":\r\n",
            ":a\r\n",
            ":1\rx",
            "$-2\r\n",
            "$9223372036854775807\r\nx",
            "$18446744073709551616\r\n",
            "$1\r\nabc",
            "*-2\r\n",
            "+\u{fffd}\rx",
            "#t\r\n",
            ">0\r\n",
            "*2\r\n>1\r\n:1\r\n",
            "_x\r\n",
            ",\r\n",
            ",1.x\r\n",
        ] {
            assert_eq!(read(text.as_bytes(), text.len()), Err(ProtocolError), "{text:?}");
        }
    }

    /// Parses what is there of a stream that arrives in pieces. Returns whether it is invalid, too.
    fn parsed(stream: &[u8], size: usize) -> (Vec<Message>, bool) {
        let (mut parser, mut buffer) = (Parser::default(), BytesMut::new());
        let mut messages = Vec::new();
        for piece in stream.chunks(size) {
            buffer.extend_from_slice(piece);
            loop {
                match parser.next(&mut buffer) {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(ProtocolError) => return (messages, true),
                }
            }
        }
        (messages, false)
    }

    /// Returns a value with maps as arrays, as this parser has them.
    fn without_maps(value: Value) -> Value {
        match value {
            Value::Array(values) => Value::Array(values.into_iter().map(without_maps).collect()),
            Value::Map(entries) => {
                let entries = entries.into_iter().flat_map(|(key, value)| [key, value]);
                Value::Array(entries.map(without_maps).collect())
            }
            value => value,
        }
    }

    #[test]
    fn fuzz_replies() {
        bolero::check!().for_each(|stream: &[u8]| {
            let whole = parsed(stream, stream.len().max(1));
            assert_eq!(format!("{:?}", parsed(stream, 1)), format!("{whole:?}"));
            if let Some(Message::Reply(reply)) = whole.0.first()
                && let Ok(library) = redis::parse_redis_value(stream)
            {
                assert_eq!(format!("{:?}", without_maps(library)), format!("{reply:?}"));
            }
        });
    }
}
