//! What the requests of a connection know about it.

use std::{net::SocketAddr, sync::Arc};

use tokio_rustls::rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use super::connection_balancer::ConnectionLease;
use crate::call::connection_calls::{ConnectionCall, ConnectionCalls};

/// The connection of a request: an extension of requests from outside the process.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// The client's address, or its proxy's unless this names the client by the PROXY protocol.
    pub remote_addr: Option<SocketAddr>,
    /// Whether a proxy speaks the PROXY protocol, but names no client.
    pub is_unnamed: bool,
    /// The DNS names of the client's certificate, which mutual TLS has verified.
    pub certificate_names: Arc<[String]>,
    calls: ConnectionCalls,
}

impl Connection {
    /// Returns a connection with the certificate chain that was verified, if any.
    pub(super) fn new(
        Remote { address: remote_addr, is_unnamed }: Remote,
        chain: Option<&[CertificateDer<'_>]>,
        calls: ConnectionCalls,
    ) -> Self {
        let certificate = chain.and_then(<[_]>::first);
        let certificate = certificate.and_then(|der| EndEntityCert::try_from(der).ok());
        let names = certificate.iter().flat_map(|certificate| certificate.valid_dns_names());
        let certificate_names = names.map(str::to_owned).collect();
        Self { remote_addr, is_unnamed, certificate_names, calls }
    }

    /// Counts a call of the connection until it is dropped.
    pub(crate) fn start_call(&self) -> Arc<ConnectionCall> {
        self.calls.start()
    }
}

/// Who is at the other end of a connection: see [`Connection`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    pub(super) address: Option<SocketAddr>,
    pub(super) is_unnamed: bool,
}

/// What is kept with an accepted connection.
pub(super) struct Accepted {
    pub(super) remote: Remote,
    /// Held as long as the connection.
    pub(super) _lease: ConnectionLease,
}
