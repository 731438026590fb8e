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

pub(crate) enum Accepted {
    Plain(TcpStream),
    // Boxed: it is many times as large.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connected for Accepted {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        match self {
            Self::Plain(connection) => connection.connect_info(),
            Self::Tls(stream) => stream.get_ref().0.connect_info(),
        }
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        self: Pin<&mut Self>,
        waker: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(connection) => Pin::new(connection).poll_read(waker, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(waker, buffer),
        }
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        self: Pin<&mut Self>,
        waker: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(connection) => Pin::new(connection).poll_write(waker, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(waker, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        waker: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(connection) => Pin::new(connection).poll_write_vectored(waker, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(waker, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(connection) => connection.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, waker: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(connection) => Pin::new(connection).poll_flush(waker),
            Self::Tls(stream) => Pin::new(stream).poll_flush(waker),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, waker: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(connection) => Pin::new(connection).poll_shutdown(waker),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(waker),
        }
    }
}
