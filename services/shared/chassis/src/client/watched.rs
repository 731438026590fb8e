//! A byte stream that notes when the server closes it. HTTP/2 reports that as it reports a connection
//! that the client itself gives up.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::failure::is_connection_closed;

/// Sets `is_closed` at the end of the input, and when the server turns out to be gone. On a busy
/// machine, a write may find that before a read does.
pub(super) struct Watched<S> {
    stream: S,
    is_closed: Arc<AtomicBool>,
}

impl<S: Unpin> Watched<S> {
    pub(super) fn new(stream: S, is_closed: Arc<AtomicBool>) -> Self {
        Self { stream, is_closed }
    }

    fn poll<T>(
        &mut self,
        poll: impl FnOnce(Pin<&mut S>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let polled = poll(Pin::new(&mut self.stream));
        if let Poll::Ready(Err(error)) = &polled
            && is_connection_closed(error)
        {
            self.is_closed.store(true, Relaxed);
        }
        polled
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        waker: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (space, filled) = (buffer.remaining(), buffer.filled().len());
        let polled = self.poll(|stream| stream.poll_read(waker, buffer));
        let is_end = matches!(polled, Poll::Ready(Ok(()))) && buffer.filled().len() == filled;
        if is_end && space > 0 {
            self.is_closed.store(true, Relaxed);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        waker: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(|stream| stream.poll_write(waker, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        waker: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll(|stream| stream.poll_write_vectored(waker, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, waker: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|stream| stream.poll_flush(waker))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, waker: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|stream| stream.poll_shutdown(waker))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    async fn connected() -> (Watched<TcpStream>, TcpStream, Arc<AtomicBool>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let is_closed = Arc::new(AtomicBool::new(false));
        (Watched::new(client, is_closed.clone()), server, is_closed)
    }

    #[tokio::test]
    async fn a_read_notes_the_end() {
        let (mut client, mut server, is_closed) = connected().await;
        server.write_all(b"a").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'a');
        assert!(!is_closed.load(Relaxed));
        drop(server);
        client.read_u8().await.unwrap_err();
        assert!(is_closed.load(Relaxed));
    }

    #[tokio::test]
    async fn a_write_notes_that_the_server_is_gone() {
        let (mut client, server, is_closed) = connected().await;
        client.write_all(b"a").await.unwrap();
        assert!(!is_closed.load(Relaxed));
        drop(server);
        while client.write_all(b"a").await.is_ok() {}
        assert!(is_closed.load(Relaxed));
    }
}
