//! The side of TLS that is called.

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

// What is wrong with a caller: it has_first_byte no TLS, shows no certificate, or shows one that is not
// accepted; or says, as a rule, that it does not accept ours.
const PLAINTEXT: &str = "plaintext";
const NO_CERTIFICATE: &str = "no certificate";
const CERTIFICATE: &str = "certificate";
const ALERT: &str = "alert";
const OTHER: &str = "other";

/// What a server shows to its callers, and what it asks of them.
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
    /// Returns none where the configuration has no certificate.
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

    /// Shows the certificate to a caller, looks at the caller's, if one is asked for, and waits for
    /// the first byte behind that. Returns `None` when one does not accept the other, or the caller
    /// says no more.
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
                // Anybody can have as many of them as they like.
                tracing::debug!(?caller, why = reason, %error, "TLS handshake failed");
                None
            }
        }
    }
}

/// Waits for the first byte: it may have come with the end of the handshake.
async fn has_first_byte(stream: &mut TlsStream<TcpStream>) -> bool {
    let (connection, session) = stream.get_mut();
    let read = session.process_new_packets();
    read.is_ok_and(|read| read.plaintext_bytes_to_read() > 0)
        || matches!(connection.peek(&mut [0]).await, Ok(1..))
}

/// Counts those who are not let in.
fn failure_counter() -> Counter<u64> {
    let failures = global::meter("microblog-chassis")
        .u64_counter("microblog.tls.refused")
        .with_description("Failed TLS handshakes, by reason")
        .with_unit("{connection}")
        .build();
    // There from the start: a rate knows nothing of what came before the first number.
    for reason in [PLAINTEXT, NO_CERTIFICATE, CERTIFICATE, ALERT, OTHER] {
        failures.add(0, &[KeyValue::new("why", reason)]);
    }
    failures
}

/// Returns what is wrong with a caller.
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
        // Connections last, so that shaking hands anew costs little; and who goes on with an
        // earlier session does not show a certificate again, which may have expired since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

// Neither keys nor certificates show.
impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").finish_non_exhaustive()
    }
}
