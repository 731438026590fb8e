//! TLS configurations (rustls) from the files: TLS 1.2 and 1.3, with ring.

use std::sync::Arc;

use rustls::{
    ClientConfig, ConfigBuilder, ConfigSide, RootCertStore, ServerConfig, WantsVerifier,
    WantsVersions,
    crypto::{CryptoProvider, ring},
    server::WebPkiClientVerifier,
    sign::SingleCertAndKey,
};

use crate::pem::{File, Identity, TlsError};

/// Returns the configuration of a client that trusts the authorities, and presents the identity to
/// servers that require mutual TLS.
pub fn client_config(
    authorities: RootCertStore,
    identity: Option<&Identity>,
) -> Result<ClientConfig, TlsError> {
    let builder = versions(ClientConfig::builder_with_provider(provider()));
    let builder = builder.with_root_certificates(authorities);
    Ok(match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let identity = SingleCertAndKey::from(identity.certified()?);
            builder.with_client_cert_resolver(Arc::new(identity))
        }
    })
}

/// Returns the configuration of a server. With authorities of clients, it requires mutual TLS.
pub fn server_config(
    identity: &Identity,
    client_authorities: Option<&File>,
) -> Result<ServerConfig, TlsError> {
    let builder = versions(ServerConfig::builder_with_provider(provider()));
    let builder = match client_authorities {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let roots = Arc::new(file.authorities()?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
            let verifier = verifier.map_err(|error| file.invalid_authorities(error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let identity = SingleCertAndKey::from(identity.certified()?);
    Ok(builder.with_cert_resolver(Arc::new(identity)))
}

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
