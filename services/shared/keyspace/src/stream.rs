//! The transport of a connection to one server: TCP, or TLS over it.

use std::{io, sync::Arc};

use redis::RedisResult;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite, split},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// An open transport.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

impl Stream {
    /// Connects. With a TLS configuration, the server's certificate must be valid for `host`.
    pub(crate) async fn connect(
        host: &str,
        port: u16,
        tls: Option<Arc<ClientConfig>>,
    ) -> RedisResult<Self> {
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = tls else { return Ok(Self::Tcp(stream)) };
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let stream = TlsConnector::from(tls).connect(name, stream).await?;
        Ok(Self::Tls(Box::new(stream)))
    }

    /// Splits the transport into its read half and write half.
    pub(crate) fn split(self) -> (Reader, Writer) {
        match self {
            Self::Tcp(stream) => {
                let (reader, writer) = stream.into_split();
                (Box::new(reader), Box::new(writer))
            }
            Self::Tls(stream) => {
                let (reader, writer) = split(stream);
                (Box::new(reader), Box::new(writer))
            }
        }
    }
}
