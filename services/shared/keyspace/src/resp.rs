//! What Redis answers, read from pieces as they come: its protocol, RESP 2, and of RESP 3 what
//! plain reads and tracking need
//! (<https://redis.io/docs/latest/develop/reference/protocol-spec/>). Knows no connection.
//!
//! The client library reads answers with parser combinators that can stop at any byte, which took a
//! quarter of a server's processor time (<https://github.com/redis-rs/redis-rs/pull/2184>). This
//! reader stops between values only.

use std::str::FromStr;

use bytes::{Buf as _, BytesMut};
use redis::Value;

// An answer says how long it is before it is there. Room is made for no more than this in advance.
const VALUES_RESERVED_MAX: usize = 4096;
const BYTES_RESERVED_MAX: usize = 1 << 20;
// How deep arrays lie in each other at most: those of no command come near it. Values are dropped one
// within the other, which takes a piece of the stack for each.
const DEPTH_MAX: usize = 16;
// The longest line that a value begins with. The longest are errors.
const LINE_BYTES_MAX: usize = 64 * 1024;
// Redis's own limit for a string, where nobody raised it (`proto-max-bulk-len`), four times over.
const STRING_BYTES_MAX: usize = 1 << 31;

/// What came is no answer, so that nothing behind it can be read either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the protocol of Redis")]
pub(crate) struct Malformed;

/// What comes from Redis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    /// An answer to what was asked next.
    Answer(Value),
    /// Something that Redis says by itself, between two answers.
    Push(Vec<Value>),
}

/// Reads one message after the other. Remembers what one that is not there to its end has had.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// The arrays that have begun, each in the one before it.
    open: Vec<Open>,
}

#[derive(Debug)]
struct Open {
    missing: usize,
    values: Vec<Value>,
    is_push: bool,
}

/// The beginning of a value, which is all of it unless it has elements.
enum Head {
    Value(Value),
    Elements { count: usize, is_push: bool },
}

impl Reader {
    /// Takes the next message off a buffer; `None` if there is not all of it.
    pub(crate) fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Message>, Malformed> {
        while let Some(head) = head(buffer)? {
            let value = match head {
                Head::Elements { count, is_push } if count > 0 => {
                    // Nothing is pushed into the middle of an answer.
                    if is_push && !self.open.is_empty() || self.open.len() >= DEPTH_MAX {
                        return Err(Malformed);
                    }
                    let values = Vec::with_capacity(count.min(VALUES_RESERVED_MAX));
                    self.open.push(Open { missing: count, values, is_push });
                    continue;
                }
                Head::Elements { .. } => Value::Array(Vec::new()),
                Head::Value(value) => value,
            };
            if let Some(message) = self.place(value) {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Puts a value where it belongs. Returns the message that it ends.
    fn place(&mut self, mut value: Value) -> Option<Message> {
        while let Some(open) = self.open.last_mut() {
            open.values.push(value);
            open.missing -= 1;
            if open.missing > 0 {
                return None;
            }
            let Open { values, is_push, .. } = self.open.pop()?;
            if is_push {
                return Some(Message::Push(values));
            }
            value = Value::Array(values);
        }
        Some(Message::Answer(value))
    }
}

fn head(buffer: &mut BytesMut) -> Result<Option<Head>, Malformed> {
    let Some(end) = buffer.iter().position(|&byte| byte == b'\r') else {
        return if buffer.len() > LINE_BYTES_MAX { Err(Malformed) } else { Ok(None) };
    };
    let (line, rest) = (&buffer[..end], &buffer[end + 1..]);
    match rest.first() {
        None => return Ok(None),
        Some(b'\n') => {}
        Some(_) => return Err(Malformed),
    }
    let (&kind, text) = line.split_first().ok_or(Malformed)?;
    let mut taken = end + 2;
    let head = match kind {
        b'$' => match number(text)? {
            -1 => Head::Value(Value::Nil),
            length => {
                let length = usize::try_from(length).map_err(|_| Malformed)?;
                if length > STRING_BYTES_MAX {
                    return Err(Malformed);
                }
                let Some(bytes) = rest[1..].get(..length + 2) else {
                    // Room for all of it at once, not by and by.
                    buffer.reserve((length + 2).min(BYTES_RESERVED_MAX));
                    return Ok(None);
                };
                let bytes = bytes.strip_suffix(b"\r\n").ok_or(Malformed)?;
                taken += length + 2;
                Head::Value(Value::BulkString(bytes.to_vec()))
            }
        },
        b':' => Head::Value(Value::Int(number(text)?)),
        b'*' => match number(text)? {
            -1 => Head::Value(Value::Nil),
            length => elements(length, 1)?,
        },
        b'_' if text.is_empty() => Head::Value(Value::Nil),
        b',' => Head::Value(Value::Double(parsed(text)?)),
        b'%' => elements(number(text)?, 2)?,
        b'>' => match elements(number(text)?, 1)? {
            Head::Elements { count: count @ 1.., .. } => Head::Elements { count, is_push: true },
            _ => return Err(Malformed),
        },
        b'+' if text == b"OK" => Head::Value(Value::Okay),
        b'+' => {
            let text = std::str::from_utf8(text).map_err(|_| Malformed)?;
            Head::Value(Value::SimpleString(text.to_owned()))
        }
        // Seldom, and the library alone can make its errors.
        b'-' => {
            let error = redis::parse_redis_value(&buffer[..taken]);
            Head::Value(error.map_err(|_| Malformed)?)
        }
        _ => return Err(Malformed),
    };
    buffer.advance(taken);
    Ok(Some(head))
}

/// Returns what has so many elements, of so many values each.
fn elements(length: i64, values: usize) -> Result<Head, Malformed> {
    let length = usize::try_from(length).map_err(|_| Malformed)?;
    let count = length.checked_mul(values).ok_or(Malformed)?;
    Ok(Head::Elements { count, is_push: false })
}

fn number(text: &[u8]) -> Result<i64, Malformed> {
    // The usual case by hand: most numbers are lengths of a digit or two.
    if let [digit @ b'0'..=b'9'] = text {
        return Ok(i64::from(digit - b'0'));
    }
    parsed(text)
}

fn parsed<T: FromStr>(text: &[u8]) -> Result<T, Malformed> {
    let text = std::str::from_utf8(text).map_err(|_| Malformed)?;
    text.parse().map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads all messages of a stream that comes in pieces of a size.
    fn messages(stream: &[u8], size: usize) -> Result<Vec<Message>, Malformed> {
        let (mut reader, mut buffer) = (Reader::default(), BytesMut::new());
        let mut messages = Vec::new();
        for piece in stream.chunks(size) {
            buffer.extend_from_slice(piece);
            while let Some(message) = reader.next(&mut buffer)? {
                messages.push(message);
            }
        }
        assert!(buffer.is_empty() && reader.open.is_empty(), "something is left");
        Ok(messages)
    }

    /// Reads all answers of a stream in which nothing is pushed.
    fn read(stream: &[u8], size: usize) -> Result<Vec<Value>, Malformed> {
        let answer = |message| match message {
            Message::Answer(answer) => answer,
            Message::Push(_) => panic!("nothing was pushed"),
        };
        Ok(messages(stream, size)?.into_iter().map(answer).collect())
    }

    /// Writes an answer as Redis does. Of errors, only those that the library made.
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
            other => panic!("not of what is read: {other:?}"),
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
        fn answers_are_read_however_they_are_cut(
            answers in prop::collection::vec(any_value(), 1..5),
            size in 1..200_usize,
        ) {
            let mut stream = Vec::new();
            answers.iter().for_each(|answer| write(answer, &mut stream));
            prop_assert_eq!(read(&stream, size).unwrap(), answers);
        }

        #[test]
        fn one_answer_is_read_as_the_library_reads_it(answer in any_value()) {
            let mut stream = Vec::new();
            write(&answer, &mut stream);
            let library = redis::parse_redis_value(&stream).unwrap();
            prop_assert_eq!(read(&stream, stream.len()).unwrap(), [library]);
        }

        #[test]
        fn rubbish_is_refused_or_waited_for(stream in prop::collection::vec(any::<u8>(), 0..80)) {
            let (mut reader, mut buffer) = (Reader::default(), BytesMut::from(&stream[..]));
            while let Ok(Some(_)) = reader.next(&mut buffer) {}
            prop_assert!(buffer.capacity() < 2 * BYTES_RESERVED_MAX);
        }
    }

    #[test]
    fn errors_are_the_librarys() {
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
    fn nothing_has_two_forms() {
        assert_eq!(
            read(b"*-1\r\n$-1\r\n*0\r\n$0\r\n\r\n", 2).unwrap(),
            [Value::Nil, Value::Nil, Value::Array(Vec::new()), Value::BulkString(Vec::new()),]
        );
    }

    #[test]
    fn scores_are_read_as_redis_writes_them() {
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
    fn what_is_pushed_stands_between_two_answers() {
        let stream = b"$1\r\na\r\n>2\r\n$10\r\ninvalidate\r\n*2\r\n$1\r\nk\r\n$1\r\nl\r\n_\r\n\
            >2\r\n$10\r\ninvalidate\r\n_\r\n%1\r\n+proto\r\n:3\r\n";
        let text = |text: &str| Value::BulkString(text.into());
        let keys = Value::Array(vec![text("k"), text("l")]);
        let map = Value::Array(vec![Value::SimpleString("proto".into()), Value::Int(3)]);
        for size in 1..=stream.len() {
            assert_eq!(
                messages(stream, size).unwrap(),
                [
                    Message::Answer(text("a")),
                    Message::Push(vec![text("invalidate"), keys.clone()]),
                    Message::Answer(Value::Nil),
                    Message::Push(vec![text("invalidate"), Value::Nil]),
                    Message::Answer(map.clone()),
                ]
            );
        }
    }

    #[test]
    fn what_has_no_end_is_refused() {
        let deep = |depth: usize| [&b"*1\r\n".repeat(depth)[..], b":1\r\n"].concat();
        assert!(read(&deep(DEPTH_MAX), 3).is_ok());
        assert_eq!(read(&deep(DEPTH_MAX + 1), 3), Err(Malformed));
        assert_eq!(read(&vec![b'-'; LINE_BYTES_MAX + 1], 1000), Err(Malformed));
        let reason = "-ERR ".to_owned() + &"a".repeat(LINE_BYTES_MAX - 10) + "\r\n";
        assert!(read(reason.as_bytes(), 1000).is_ok());
    }

    #[test]
    fn what_is_no_answer_is_refused() {
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
            assert_eq!(read(text.as_bytes(), text.len()), Err(Malformed), "{text:?}");
        }
    }
}
