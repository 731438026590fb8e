//! A connection to Redis that only counts answers: to read them as well would cost the one who
//! measures more than Redis spends on them.

use anyhow::{Context as _, bail, ensure};
use microblog_keyspace::redis::{Client, ConnectionAddr};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

const BUFFER_BYTES: usize = 256 * 1024;

/// A connection, logged in.
pub(super) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// What came back for some commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Answers {
    /// How many were errors.
    pub(super) errors: u64,
    /// How long they were.
    pub(super) bytes: u64,
}

impl Wire {
    /// Connects as a client does, to a single server.
    pub(super) async fn connect(client: &Client) -> anyhow::Result<Self> {
        let info = client.get_connection_info();
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            bail!("not the address of a server without TLS");
        };
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        stream.set_nodelay(true)?;
        let mut wire = Self { stream, buffer: vec![0; BUFFER_BYTES] };
        let settings = info.redis_settings();
        if let Some(password) = settings.password() {
            let user = settings.username().unwrap_or("default");
            let command = ["AUTH", user, password].map(|word| word.as_bytes().to_vec());
            let answers = wire.exchange(&encode(&command), 1).await?;
            ensure!(answers.errors == 0, "Redis refuses the password");
        }
        Ok(wire)
    }

    /// Sends commands that were put together before, and waits for as many answers.
    pub(super) async fn exchange(&mut self, bytes: &[u8], count: u64) -> anyhow::Result<Answers> {
        let Self { stream, buffer } = self;
        let (mut reader, mut writer) = stream.split();
        let read = async {
            let mut counter = Counter::default();
            while counter.answers < count {
                let length = reader.read(buffer).await?;
                ensure!(length > 0, "Redis closed the connection");
                counter.take(&buffer[..length]).context("not an answer of Redis")?;
            }
            Ok(Answers { errors: counter.errors, bytes: counter.bytes })
        };
        // Both at once: Redis stops reading from somebody who does not read.
        let write = async { anyhow::Ok(writer.write_all(bytes).await?) };
        let (answers, ()) = tokio::try_join!(read, write)?;
        Ok(answers)
    }
}

/// Returns a command as it is sent.
pub(super) fn encode(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Counts whole answers (of RESP 2) in a stream that comes in pieces.
#[derive(Debug, Default)]
struct Counter {
    answers: u64,
    errors: u64,
    bytes: u64,
    /// How many values are missing to the answer that has begun, and to the arrays in it.
    missing: u64,
    /// How many bytes of a string are to come.
    skip: usize,
    /// A line that has not ended.
    line: Vec<u8>,
}

impl Counter {
    /// Takes a piece. Returns `None` if it is nothing that Redis sends.
    fn take(&mut self, mut piece: &[u8]) -> Option<()> {
        self.bytes += piece.len() as u64;
        while !piece.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(piece.len());
                self.skip -= skipped;
                piece = &piece[skipped..];
                if self.skip == 0 {
                    self.value();
                }
                continue;
            }
            let Some(end) = piece.iter().position(|&byte| byte == b'\n') else {
                self.line.extend_from_slice(piece);
                break;
            };
            let rest = &piece[end + 1..];
            if self.line.is_empty() {
                self.header(&piece[..end])?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&piece[..end]);
                self.header(&line)?;
            }
            piece = rest;
        }
        Some(())
    }

    /// Takes the line with which a value begins.
    fn header(&mut self, line: &[u8]) -> Option<()> {
        let (kind, rest) = line.strip_suffix(b"\r")?.split_first()?;
        let length = || std::str::from_utf8(rest).ok()?.parse::<i64>().ok();
        match kind {
            b'+' | b':' => self.value(),
            b'-' => {
                self.errors += 1;
                self.value();
            }
            // Nothing, or so many bytes and an end of line.
            b'$' => match length()? {
                ..0 => self.value(),
                length => self.skip = usize::try_from(length).ok()? + 2,
            },
            // Its elements are missing in its place.
            b'*' => match length()? {
                ..=0 => self.value(),
                length => self.missing = self.missing.max(1) - 1 + u64::try_from(length).ok()?,
            },
            _ => return None,
        }
        Some(())
    }

    /// A value has ended.
    fn value(&mut self) {
        self.missing = self.missing.saturating_sub(1);
        if self.missing == 0 {
            self.answers += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_sent_as_an_array_of_strings() {
        let words = [b"SET".to_vec(), b"a\r\n".to_vec()];
        assert_eq!(encode(&words), b"*2\r\n$3\r\nSET\r\n$3\r\na\r\n\r\n");
    }

    #[test]
    fn answers_are_counted_however_they_are_cut() {
        let stream = b"+OK\r\n:1\r\n$-1\r\n$3\r\na\r\n\r\n$0\r\n\r\n*0\r\n*-1\r\n-ERR no\r\n\
            *2\r\n*2\r\n$1\r\nx\r\n-in\r\n*1\r\n:7\r\n:9\r\n";
        for size in 1..=stream.len() {
            let mut counter = Counter::default();
            for piece in stream.chunks(size) {
                counter.take(piece).unwrap();
            }
            assert_eq!((counter.answers, counter.errors, counter.missing), (10, 2, 0), "{size}");
            assert_eq!(counter.bytes, stream.len() as u64);
        }
        assert!(Counter::default().take(b"what\r\n").is_none());
    }
}
