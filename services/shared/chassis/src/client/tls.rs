//! TLS of connections to peers, optionally mutual. Certificates are reloaded while the process runs.

use std::{io, path::PathBuf};

use microblog_files::{File, HotReload, Identity, Loader, TlsError};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{self, ClientConfig, InvalidMessage, client::Resumption, pki_types::ServerName},
};

use crate::config::Config;

/// ALPN protocol id of HTTP/2 (RFC 7301), the only one that gRPC uses.
const ALPN: &[u8] = b"h2";

/// Name in log lines about reloaded files.
const NAME: &str = "TLS";

/// Why a TLS connection failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("the server does not speak TLS: its URL must begin with http")]
    Plaintext,
    #[error("the TLS handshake failed")]
    Failed(#[source] io::Error),
    #[error("the server does not offer HTTP/2 over TLS (ALPN)")]
    NoHttp2,
}

/// TLS connector with certificate reload.
pub(super) struct Connector {
    configs: HotReload<Paths>,
}

struct Paths {
    authorities: PathBuf,
    identity: Option<(PathBuf, PathBuf)>,
}

impl Connector {
    /// Returns `None` if the configuration has no certificate authorities.
    pub(super) fn new(config: &Config) -> Result<Option<Self>, TlsError> {
        let Some(authorities) = config.peer_ca_file.clone() else { return Ok(None) };
        let identity = config.peer_cert_file.clone().zip(config.peer_key_file.clone());
        Ok(Some(Self { configs: HotReload::new(NAME, Paths { authorities, identity })? }))
    }

    /// Performs the handshake, and verifies the server's certificate for a name.
    pub(super) async fn connect(
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

impl Loader for Paths {
    type Snapshot = (File, Option<Identity>);
    type Value = ClientConfig;
    type Error = TlsError;

    fn read(&self) -> Result<Self::Snapshot, TlsError> {
        let identity = self.identity.as_ref();
        let identity = identity.map(|(certificate, key)| Identity::read(certificate, key));
        Ok((File::read(&self.authorities)?, identity.transpose()?))
    }

    fn build(&self, (authorities, identity): &Self::Snapshot) -> Result<ClientConfig, TlsError> {
        let authorities = authorities.authorities()?;
        let mut config = microblog_files::client_config(authorities, identity.as_ref())?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Our servers do not resume sessions.
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}
