//! A client of HTTP/2 that sends frames, and neither reads nor answers.

use std::time::Duration;

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A connection whose client does not read.
pub(crate) struct SilentClient<S> {
    stream: S,
    next_stream_id: u32,
}

impl<S: AsyncRead + AsyncWrite + Unpin> SilentClient<S> {
    /// Begins a connection of HTTP/2, whose answers may have that many bytes before the client must
    /// ask for more, which it does not.
    pub(crate) async fn begin(mut stream: S, window: u32) -> Self {
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut client = Self { stream, next_stream_id: 1 };
        // SETTINGS_INITIAL_WINDOW_SIZE.
        client.frame(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat()).await;
        client
    }

    /// Makes a gRPC call.
    pub(crate) async fn call(&mut self, path: &str, message: &[u8]) {
        let id = self.open(path).await;
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        self.frame(DATA, END_STREAM, id, &[&[0][..], &length, message].concat()).await;
    }

    /// Begins a gRPC call without its message. Returns its stream.
    pub(crate) async fn open(&mut self, path: &str) -> u32 {
        let id = self.next_stream_id;
        self.next_stream_id += 2;
        // HPACK: indexes of the static table for POST, http, the path's and the authority's names.
        let mut block = vec![0x83, 0x86, 0x04];
        text(&mut block, path);
        block.push(0x01);
        text(&mut block, "localhost");
        for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
            block.push(0);
            text(&mut block, name);
            text(&mut block, value);
        }
        self.frame(HEADERS, END_HEADERS, id, &block).await;
        id
    }

    async fn frame(&mut self, kind: u8, flags: u8, stream_id: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream_id.to_be_bytes()].concat();
        self.stream.write_all(&[&head, payload].concat()).await.unwrap();
    }

    /// Reads what has arrived, up to the end of the connection or a reset.
    pub(crate) async fn received(mut self, within: Duration) -> Vec<u8> {
        let mut received = Vec::new();
        let _reset = timeout(within, self.stream.read_to_end(&mut received)).await.unwrap();
        received
    }
}

/// Writes a text of HPACK, not compressed.
fn text(block: &mut Vec<u8>, text: &str) {
    assert!(text.len() < 127);
    block.push(text.len() as u8);
    block.extend(text.as_bytes());
}
