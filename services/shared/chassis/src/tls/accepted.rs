//! A connection that a server took, with TLS or without. It says who its caller is by address, and
//! passes on everything else.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::connection_balancer::Taken;

pub(crate) struct Accepted {
    stream: Stream,
    /// As long as it lasts.
    _taken: Taken,
}

enum Stream {
    Plain(TcpStream),
    // Boxed: it is many times as large.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Accepted {
    /// Returns a connection without TLS.
    pub(crate) fn plain(connection: TcpStream, taken: Taken) -> Self {
        Self { stream: Stream::Plain(connection), _taken: taken }
    }

    /// Returns a connection whose caller has shaken hands.
    pub(crate) fn tls(stream: TlsStream<TcpStream>, taken: Taken) -> Self {
        Self { stream: Stream::Tls(Box::new(stream)), _taken: taken }
    }
}

impl Connected for Accepted {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        match &self.stream {
            Stream::Plain(connection) => connection.connect_info(),
            Stream::Tls(stream) => stream.get_ref().0.connect_info(),
        }
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        self: Pin<&mut Self>,
        waker: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(connection) => Pin::new(connection).poll_read(waker, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(waker, buffer),
        }
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        self: Pin<&mut Self>,
        waker: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Plain(connection) => Pin::new(connection).poll_write(waker, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(waker, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        waker: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Plain(connection) => Pin::new(connection).poll_write_vectored(waker, parts),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(waker, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(connection) => connection.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, waker: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(connection) => Pin::new(connection).poll_flush(waker),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(waker),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, waker: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(connection) => Pin::new(connection).poll_shutdown(waker),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(waker),
        }
    }
}
