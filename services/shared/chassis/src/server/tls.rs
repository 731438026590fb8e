//! TLS of accepted connections, optionally mutual. Certificates are reloaded while the process runs,
//! which tonic's own TLS does not support. Knows neither calls nor HTTP, except for the ALPN protocol.

use std::{
    io,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context as Waker, Poll},
};

use microblog_files::{File, HotReload, Identity, Loader, TlsError};
use opentelemetry::{KeyValue, global, metrics::Counter};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{self, ServerConfig, server::NoServerSessionStorage},
    server::TlsStream,
};
use tonic::transport::server::Connected;

use super::{
    connection::{Accepted, Connection},
    drain::SilenceLimit,
};
use crate::config::Config;

/// ALPN protocol id of HTTP/2 (RFC 7301), the only one that gRPC uses.
const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Name in log lines about reloaded files.
const NAME: &str = "TLS";

// Reasons for a failed handshake: no TLS; no client certificate; an invalid one; or an alert from
// the client, mostly since it rejects the server's certificate.
const PLAINTEXT: &str = "plaintext";
const NO_CERTIFICATE: &str = "no certificate";
const CERTIFICATE: &str = "certificate";
const ALERT: &str = "alert";
const OTHER: &str = "other";

/// TLS acceptor with certificate reload.
pub(super) struct Acceptor {
    configs: HotReload<Paths>,
    failures: Counter<u64>,
}

/// The configurations of servers that accept HTTP/2 only, or HTTP/1.1 as well.
struct Configs {
    http2: Arc<ServerConfig>,
    with_http1: Arc<ServerConfig>,
}

struct Paths {
    certificate: PathBuf,
    key: PathBuf,
    client_authorities: Option<PathBuf>,
}

impl Acceptor {
    /// Returns `None` if the configuration has no certificate.
    pub(super) fn new(config: &Config) -> Result<Option<Self>, TlsError> {
        let paths = config.tls_cert_file.as_ref().zip(config.tls_key_file.as_ref());
        let Some((certificate, key)) = paths else { return Ok(None) };
        let paths = Paths {
            certificate: certificate.clone(),
            key: key.clone(),
            client_authorities: config.tls_client_ca_file.clone(),
        };
        Ok(Some(Self { configs: HotReload::new(NAME, paths)?, failures: failure_counter() }))
    }

    /// Performs the handshake, with client authentication if configured, and waits for the first
    /// byte after it. Returns `None` on failure, or if the client closes.
    pub(super) async fn accept(
        &self,
        connection: SilenceLimit,
        accepted: Accepted,
        accept_http1: bool,
    ) -> Option<MaybeTlsStream> {
        let caller = accepted.remote.address;
        let configs = self.configs.current();
        let config = if accept_http1 { &configs.with_http1 } else { &configs.http2 };
        match TlsAcceptor::from(config.clone()).accept(connection).await {
            Ok(mut stream) => {
                let has_begun = has_first_byte(&mut stream).await;
                has_begun.then(|| MaybeTlsStream::tls(stream, accepted))
            }
            Err(error) => {
                let reason = reason(&error);
                self.failures.add(1, &[KeyValue::new("reason", reason)]);
                // DEBUG: any client can cause any number of them.
                tracing::debug!(?caller, reason, %error, "TLS handshake failed");
                None
            }
        }
    }
}

/// Waits for the first byte, which may have arrived with the end of the handshake.
async fn has_first_byte(stream: &mut TlsStream<SilenceLimit>) -> bool {
    let (connection, session) = stream.get_mut();
    let read = session.process_new_packets();
    read.is_ok_and(|read| read.plaintext_bytes_to_read() > 0) || connection.has_first_byte().await
}

/// Returns the counter of failed handshakes.
fn failure_counter() -> Counter<u64> {
    let failures = global::meter("microblog-chassis")
        .u64_counter("microblog.tls.handshake.failures")
        .with_description("Failed TLS handshakes, by reason")
        .with_unit("{connection}")
        .build();
    // Exported from the start: `rate()` cannot see the increase before the first sample.
    for reason in [PLAINTEXT, NO_CERTIFICATE, CERTIFICATE, ALERT, OTHER] {
        failures.add(0, &[KeyValue::new("reason", reason)]);
    }
    failures
}

/// Classifies a failed handshake.
fn reason(error: &io::Error) -> &'static str {
    use rustls::{Error, InvalidMessage::InvalidContentType};
    match error.get_ref().and_then(|cause| cause.downcast_ref()) {
        Some(Error::InvalidMessage(InvalidContentType)) => PLAINTEXT,
        Some(Error::NoCertificatesPresented) => NO_CERTIFICATE,
        Some(Error::InvalidCertificate(_)) => CERTIFICATE,
        Some(Error::AlertReceived(_)) => ALERT,
        _ => OTHER,
    }
}

impl Loader for Paths {
    type Snapshot = (Identity, Option<File>);
    type Value = Configs;
    type Error = TlsError;

    fn read(&self) -> Result<Self::Snapshot, TlsError> {
        let identity = Identity::read(&self.certificate, &self.key)?;
        let authorities = self.client_authorities.as_deref().map(File::read).transpose()?;
        Ok((identity, authorities))
    }

    fn build(&self, (identity, authorities): &Self::Snapshot) -> Result<Configs, TlsError> {
        let mut config = microblog_files::server_config(identity, authorities.as_ref())?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        // No session resumption: connections are long, so that full handshakes cost little. A
        // resumed session would skip the check of a certificate that may have expired since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let mut with_http1 = config.clone();
        with_http1.alpn_protocols.push(HTTP1.to_vec());
        Ok(Configs { http2: config.into(), with_http1: with_http1.into() })
    }
}

/// An accepted connection, with or without TLS.
pub(super) struct MaybeTlsStream {
    stream: Inner,
    accepted: Accepted,
}

enum Inner {
    Plain(SilenceLimit),
    // Boxed: many times larger.
    Tls(Box<TlsStream<SilenceLimit>>),
}

impl MaybeTlsStream {
    /// Wraps a plaintext connection.
    pub(super) fn plain(connection: SilenceLimit, accepted: Accepted) -> Self {
        Self { stream: Inner::Plain(connection), accepted }
    }

    /// Wraps a connection after its handshake.
    pub(super) fn tls(stream: TlsStream<SilenceLimit>, accepted: Accepted) -> Self {
        Self { stream: Inner::Tls(Box::new(stream)), accepted }
    }
}

impl Connected for MaybeTlsStream {
    type ConnectInfo = Connection;

    fn connect_info(&self) -> Connection {
        let (connection, chain) = match &self.stream {
            Inner::Plain(connection) => (connection, None),
            Inner::Tls(stream) => {
                let (connection, session) = stream.get_ref();
                (connection, session.peer_certificates())
            }
        };
        Connection::new(self.accepted.remote, chain, connection.calls().clone())
    }
}

impl AsyncRead for MaybeTlsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        waker: &mut Waker<'_>,
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
        waker: &mut Waker<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Inner::Plain(connection) => Pin::new(connection).poll_write(waker, bytes),
            Inner::Tls(stream) => Pin::new(stream).poll_write(waker, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        waker: &mut Waker<'_>,
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

    fn poll_flush(self: Pin<&mut Self>, waker: &mut Waker<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Inner::Plain(connection) => Pin::new(connection).poll_flush(waker),
            Inner::Tls(stream) => Pin::new(stream).poll_flush(waker),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, waker: &mut Waker<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Inner::Plain(connection) => Pin::new(connection).poll_shutdown(waker),
            Inner::Tls(stream) => Pin::new(stream).poll_shutdown(waker),
        }
    }
}
