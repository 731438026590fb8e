//! TLS, by configuration: what a server shows to its callers and asks of them, and what a caller
//! shows to a peer and asks of it. Certificates may be changed while the process runs, which is
//! what tonic's own TLS cannot do.
//!
//! Knows neither calls nor HTTP, but for its name in the handshake.

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

/// What is spoken over TLS (RFC 7301): gRPC is HTTP/2, and nothing else.
const ALPN: &[u8] = b"h2";

/// What the log says that goes on with other files.
const NAME: &str = "TLS";

// Said each time: the process's default would be whichever crate came first.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Takes versions 1.2 and 1.3, and nothing before.
#[expect(clippy::expect_used, reason = "ring has ciphers for both")]
fn versions<S: ConfigSide>(
    builder: ConfigBuilder<S, WantsVersions>,
) -> ConfigBuilder<S, WantsVerifier> {
    builder.with_safe_default_protocol_versions().expect("a cipher for each version")
}
