//! An accepted connection, with or without TLS.

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

use crate::connection_balancer::ConnectionLease;

pub(crate) struct MaybeTlsStream {
    stream: Inner,
    /// Held as long as the connection.
    _lease: ConnectionLease,
}

enum Inner {
    Plain(TcpStream),
    // Boxed: many times larger.
    Tls(Box<TlsStream<TcpStream>>),
}

impl MaybeTlsStream {
    /// Wraps a plaintext connection.
    pub(crate) fn plain(connection: TcpStream, lease: ConnectionLease) -> Self {
        Self { stream: Inner::Plain(connection), _lease: lease }
    }

    /// Wraps a connection after its handshake.
    pub(crate) fn tls(stream: TlsStream<TcpStream>, lease: ConnectionLease) -> Self {
        Self { stream: Inner::Tls(Box::new(stream)), _lease: lease }
    }
}

impl Connected for MaybeTlsStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        match &self.stream {
            Inner::Plain(connection) => connection.connect_info(),
            Inner::Tls(stream) => stream.get_ref().0.connect_info(),
        }
    }
}

impl AsyncRead for MaybeTlsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        waker: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Inner::Plain(connection) => Pin::new(connection).poll_read(waker, buffer),
            Inner::Tls(stream) => Pin::new(stream).poll_read(waker, buffer),
        }
    }
}

impl AsyncWrite for MaybeTlsStream {
    fn poll_write(
        self: Pin<&mut Self>,
        waker: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Inner::Plain(connection) => Pin::new(connection).poll_write(waker, bytes),
            Inner::Tls(stream) => Pin::new(stream).poll_write(waker, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        waker: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Inner::Plain(connection) => Pin::new(connection).poll_write_vectored(waker, parts),
            Inner::Tls(stream) => Pin::new(stream).poll_write_vectored(waker, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Inner::Plain(connection) => connection.is_write_vectored(),
            Inner::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, waker: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Inner::Plain(connection) => Pin::new(connection).poll_flush(waker),
            Inner::Tls(stream) => Pin::new(stream).poll_flush(waker),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, waker: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Inner::Plain(connection) => Pin::new(connection).poll_shutdown(waker),
            Inner::Tls(stream) => Pin::new(stream).poll_shutdown(waker),
        }
    }
}
