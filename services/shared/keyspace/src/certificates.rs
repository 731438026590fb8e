//! TLS files: certificate authorities, and the client certificate with its key.

use std::path::PathBuf;

use microblog_files::{File, Identity, TlsError};
use redis::{ClientTlsConfig, TlsCertificates};
use rustls::{ClientConfig, RootCertStore};

use crate::Config;

/// The paths of the files.
#[derive(Debug)]
pub(crate) struct Paths {
    authorities: Option<PathBuf>,
    /// The client certificate and its key.
    identity: Option<(PathBuf, PathBuf)>,
}

/// The contents of the files when they were read.
#[derive(PartialEq, Eq)]
pub(crate) struct Files {
    authorities: Option<File>,
    identity: Option<Identity>,
}

impl Paths {
    /// Returns `None` if the configuration has no files.
    pub(crate) fn new(config: &Config) -> Option<Self> {
        let identity = config.redis_cert_file.clone().zip(config.redis_key_file.clone());
        let authorities = config.redis_ca_file.clone();
        (authorities.is_some() || identity.is_some()).then_some(Self { authorities, identity })
    }

    pub(crate) fn read(&self) -> Result<Files, TlsError> {
        let identity = self.identity.as_ref();
        let identity = identity.map(|(certificate, key)| Identity::read(certificate, key));
        Ok(Files {
            authorities: self.authorities.as_deref().map(File::read).transpose()?,
            identity: identity.transpose()?,
        })
    }
}

impl Files {
    /// Returns the certificates for the client library. Validates them, because the library does so
    /// only when it connects.
    pub(crate) fn certificates(&self) -> Result<TlsCertificates, TlsError> {
        let identity = self.identity.as_ref().map(Identity::pem).transpose()?;
        Ok(TlsCertificates {
            root_cert: self.authorities.as_ref().map(File::authorities_pem).transpose()?,
            client_tls: identity
                .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key }),
        })
    }
}

/// A failure to create the TLS configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error(transparent)]
    Files(#[from] TlsError),
    #[error("the system has no certificate authorities: name a file with --redis-ca-file")]
    NoAuthorities,
}

/// Returns the TLS configuration of multiplexed connections. Without a file of authorities, trusts
/// those of the system, like the library.
pub(crate) fn client_config(files: Option<&Files>) -> Result<ClientConfig, ConfigError> {
    let authorities = files.and_then(|files| files.authorities.as_ref());
    let identity = files.and_then(|files| files.identity.as_ref());
    let authorities = match authorities {
        Some(file) => file.authorities()?,
        None => {
            let mut authorities = RootCertStore::empty();
            authorities.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if authorities.is_empty() {
                return Err(ConfigError::NoAuthorities);
            }
            authorities
        }
    };
    Ok(microblog_files::client_config(authorities, identity)?)
}
