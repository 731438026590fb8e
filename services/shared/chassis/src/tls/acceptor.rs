//! Server-side TLS.

use std::{fmt, io, path::PathBuf, sync::Arc};

use microblog_files::{File, Identity, Recipe, Reloaded, TlsError};
use opentelemetry::{KeyValue, global, metrics::Counter};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ServerConfig,
        server::{NoServerSessionStorage, WebPkiClientVerifier},
        sign::SingleCertAndKey,
    },
    server::TlsStream,
};

use super::{ALPN, MaybeTlsStream, NAME, provider, versions};
use crate::{Config, connection_balancer::ConnectionLease};

// Reasons for a failed handshake: no TLS; no client certificate; an invalid one; or an alert from
// the client, mostly since it rejects the server's certificate.
const PLAINTEXT: &str = "plaintext";
const NO_CERTIFICATE: &str = "no certificate";
const CERTIFICATE: &str = "certificate";
const ALERT: &str = "alert";
const OTHER: &str = "other";

/// TLS acceptor with certificate reload.
pub(crate) struct Acceptor {
    configs: Reloaded<Paths>,
    failures: Counter<u64>,
}

struct Paths {
    certificate: PathBuf,
    key: PathBuf,
    client_authorities: Option<PathBuf>,
}

impl Acceptor {
    /// Returns `None` if the configuration has no certificate.
    pub(crate) fn new(config: &Config) -> Result<Option<Self>, TlsError> {
        let paths = config.tls_cert_file.as_ref().zip(config.tls_key_file.as_ref());
        let Some((certificate, key)) = paths else { return Ok(None) };
        let paths = Paths {
            certificate: certificate.clone(),
            key: key.clone(),
            client_authorities: config.tls_client_ca_file.clone(),
        };
        Ok(Some(Self { configs: Reloaded::new(NAME, paths)?, failures: failure_counter() }))
    }

    /// Performs the handshake, with client authentication if configured, and waits for the first
    /// byte after it. Returns `None` on failure, or if the client closes.
    pub(crate) async fn accept(
        &self,
        connection: TcpStream,
        lease: ConnectionLease,
    ) -> Option<MaybeTlsStream> {
        let caller = connection.peer_addr().ok();
        match TlsAcceptor::from(self.configs.current()).accept(connection).await {
            Ok(mut stream) => {
                has_first_byte(&mut stream).await.then(|| MaybeTlsStream::tls(stream, lease))
            }
            Err(error) => {
                let reason = reason(&error);
                self.failures.add(1, &[KeyValue::new("why", reason)]);
                // DEBUG: any client can cause any number of them.
                tracing::debug!(?caller, why = reason, %error, "TLS handshake failed");
                None
            }
        }
    }
}

/// Waits for the first byte, which may have arrived with the end of the handshake.
async fn has_first_byte(stream: &mut TlsStream<TcpStream>) -> bool {
    let (connection, session) = stream.get_mut();
    let read = session.process_new_packets();
    read.is_ok_and(|read| read.plaintext_bytes_to_read() > 0)
        || matches!(connection.peek(&mut [0]).await, Ok(1..))
}

/// Returns the counter of failed handshakes.
fn failure_counter() -> Counter<u64> {
    let failures = global::meter("microblog-chassis")
        .u64_counter("microblog.tls.refused")
        .with_description("Failed TLS handshakes, by reason")
        .with_unit("{connection}")
        .build();
    // Exported from the start: `rate()` cannot see the increase before the first sample.
    for reason in [PLAINTEXT, NO_CERTIFICATE, CERTIFICATE, ALERT, OTHER] {
        failures.add(0, &[KeyValue::new("why", reason)]);
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

impl Recipe for Paths {
    type Files = (Identity, Option<File>);
    type Made = ServerConfig;
    type Error = TlsError;

    fn read(&self) -> Result<Self::Files, TlsError> {
        let identity = Identity::read(&self.certificate, &self.key)?;
        let authorities = self.client_authorities.as_deref().map(File::read).transpose()?;
        Ok((identity, authorities))
    }

    fn make(&self, (identity, authorities): &Self::Files) -> Result<ServerConfig, TlsError> {
        let builder = versions(ServerConfig::builder_with_provider(provider()));
        let builder = match authorities {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let roots = Arc::new(file.authorities()?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = verifier.build().map_err(|error| file.refused(error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let identity = SingleCertAndKey::from(identity.certified()?);
        let mut config = builder.with_cert_resolver(Arc::new(identity));
        config.alpn_protocols = vec![ALPN.to_vec()];
        // No session resumption: connections are long, so that full handshakes cost little. A
        // resumed session would skip the check of a certificate that may have expired since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

// Hides keys and certificates.
impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").finish_non_exhaustive()
    }
}
