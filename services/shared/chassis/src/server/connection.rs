//! What the requests of a connection know about it.

use std::{net::SocketAddr, sync::Arc};

use tokio_rustls::rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The connection of a request: an extension of requests from outside the process.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// The client's address, or its proxy's.
    pub remote_addr: Option<SocketAddr>,
    /// The DNS names of the client's certificate, which mutual TLS has verified.
    pub certificate_names: Arc<[String]>,
}

impl Connection {
    /// Returns a connection with the certificate chain that was verified, if any.
    pub(super) fn new(
        remote_addr: Option<SocketAddr>,
        chain: Option<&[CertificateDer<'_>]>,
    ) -> Self {
        let certificate = chain.and_then(<[_]>::first);
        let certificate = certificate.and_then(|der| EndEntityCert::try_from(der).ok());
        let names = certificate.iter().flat_map(|certificate| certificate.valid_dns_names());
        Self { remote_addr, certificate_names: names.map(str::to_owned).collect() }
    }
}
