//! Client-side TLS.

use std::{fmt, io, path::PathBuf, sync::Arc};

use microblog_files::{File, Identity, Recipe, Reloaded, TlsError};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        self, ClientConfig, InvalidMessage, client::Resumption, pki_types::ServerName,
        sign::SingleCertAndKey,
    },
};

use super::{ALPN, NAME, provider, versions};
use crate::Config;

/// Why a TLS connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("the server does not speak TLS: its URL must begin with http")]
    Plaintext,
    #[error("the TLS handshake failed")]
    Failed(#[source] io::Error),
    #[error("the server does not offer HTTP/2 over TLS (ALPN)")]
    NoHttp2,
}

/// TLS connector with certificate reload.
pub(crate) struct Connector {
    configs: Reloaded<Paths>,
}

struct Paths {
    authorities: PathBuf,
    identity: Option<(PathBuf, PathBuf)>,
}

impl Connector {
    /// Returns `None` if the configuration has no certificate authorities.
    pub(crate) fn new(config: &Config) -> Result<Option<Self>, TlsError> {
        let Some(authorities) = config.peer_ca_file.clone() else { return Ok(None) };
        let identity = config.peer_cert_file.clone().zip(config.peer_key_file.clone());
        Ok(Some(Self { configs: Reloaded::new(NAME, Paths { authorities, identity })? }))
    }

    /// Performs the handshake, and verifies the server's certificate for a name.
    pub(crate) async fn connect(
        &self,
        name: ServerName<'static>,
        connection: TcpStream,
    ) -> Result<TlsStream<TcpStream>, HandshakeError> {
        let connected = TlsConnector::from(self.configs.current()).connect(name, connection).await;
        let stream = connected.map_err(failure)?;
        match stream.get_ref().1.alpn_protocol() {
            Some(ALPN) => Ok(stream),
            _ => Err(HandshakeError::NoHttp2),
        }
    }
}

fn failure(error: io::Error) -> HandshakeError {
    match error.get_ref().and_then(|cause| cause.downcast_ref()) {
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            HandshakeError::Plaintext
        }
        _ => HandshakeError::Failed(error),
    }
}

impl Recipe for Paths {
    type Files = (File, Option<Identity>);
    type Made = ClientConfig;
    type Error = TlsError;

    fn read(&self) -> Result<Self::Files, TlsError> {
        let identity = self.identity.as_ref();
        let identity = identity.map(|(certificate, key)| Identity::read(certificate, key));
        Ok((File::read(&self.authorities)?, identity.transpose()?))
    }

    fn make(&self, (authorities, identity): &Self::Files) -> Result<ClientConfig, TlsError> {
        let builder = versions(ClientConfig::builder_with_provider(provider()));
        let builder = builder.with_root_certificates(authorities.authorities()?);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let identity = SingleCertAndKey::from(identity.certified()?);
                builder.with_client_cert_resolver(Arc::new(identity))
            }
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Our servers do not resume sessions.
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

// Hides keys and certificates.
impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}
