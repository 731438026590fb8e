//! TLS for servers and clients, optionally mutual. Certificates are reloaded while the process
//! runs, which tonic's own TLS does not support. Knows neither calls nor HTTP, except for the ALPN
//! protocol.

mod acceptor;
mod connector;
mod maybe_tls_stream;

use std::sync::Arc;

use tokio_rustls::rustls::{
    ConfigBuilder, ConfigSide, WantsVerifier, WantsVersions,
    crypto::{CryptoProvider, ring},
};

pub use microblog_files::TlsError;

pub(crate) use self::{
    acceptor::Acceptor,
    connector::{Connector, HandshakeError},
    maybe_tls_stream::MaybeTlsStream,
};

/// ALPN protocol id of HTTP/2 (RFC 7301), the only one that gRPC uses.
const ALPN: &[u8] = b"h2";

/// Name in log lines about reloaded files.
const NAME: &str = "TLS";

// Explicit: the process default depends on which crate installs one first.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Enables TLS 1.2 and 1.3.
#[expect(clippy::expect_used, reason = "ring has ciphers for both")]
fn versions<S: ConfigSide>(
    builder: ConfigBuilder<S, WantsVersions>,
) -> ConfigBuilder<S, WantsVerifier> {
    builder.with_safe_default_protocol_versions().expect("a cipher for each version")
}
