//! The files for TLS with Redis: whom to trust, and what to show.

use std::{
    error::Error as StdError,
    fs, io,
    path::{Path, PathBuf},
};

use redis::{ClientTlsConfig, TlsCertificates};
use rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};

use crate::Config;

/// Where the files are.
#[derive(Debug)]
pub(crate) struct Files {
    authorities: Option<PathBuf>,
    /// The certificate, and its key.
    identity: Option<(PathBuf, PathBuf)>,
}

/// What was in them.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    authorities: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// A file that cannot be used. Says nothing of what a private key is.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be used: {problem}", file.display())]
pub(crate) struct FileError {
    file: PathBuf,
    problem: &'static str,
    #[source]
    cause: Option<Box<dyn StdError + Send + Sync>>,
}

impl FileError {
    fn new(file: &Path, problem: &'static str) -> Self {
        Self { file: file.to_owned(), problem, cause: None }
    }
}

impl Files {
    /// Returns none where the configuration names none.
    pub(crate) fn new(config: &Config) -> Option<Self> {
        let identity = config.redis_cert_file.clone().zip(config.redis_key_file.clone());
        let authorities = config.redis_ca_file.clone();
        (authorities.is_some() || identity.is_some()).then_some(Self { authorities, identity })
    }

    pub(crate) fn read(&self) -> Result<Contents, FileError> {
        let read = |file: &Path| {
            fs::read(file).map_err(|error: io::Error| FileError {
                cause: Some(error.into()),
                ..FileError::new(file, "it cannot be read")
            })
        };
        let identity = self.identity.as_ref();
        let identity = identity.map(|(certificate, key)| Ok((read(certificate)?, read(key)?)));
        Ok(Contents {
            authorities: self.authorities.as_deref().map(read).transpose()?,
            identity: identity.transpose()?,
        })
    }

    /// Returns what the client library takes. It looks at them only when it connects, so that what
    /// is wrong is looked for here.
    pub(crate) fn certificates(&self, contents: &Contents) -> Result<TlsCertificates, FileError> {
        if let (Some(file), Some(authorities)) = (&self.authorities, &contents.authorities) {
            chain(file, authorities)?;
        }
        if let (Some(files), Some(identity)) = (&self.identity, &contents.identity) {
            check(files, identity)?;
        }
        let identity = contents.identity.clone();
        Ok(TlsCertificates {
            root_cert: contents.authorities.clone(),
            client_tls: identity
                .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key }),
        })
    }
}

fn chain(file: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let certificates = CertificateDer::pem_slice_iter(bytes).collect::<Result<Vec<_>, _>>();
    match certificates {
        Err(_) => Err(FileError::new(file, "it is not PEM")),
        Ok(none) if none.is_empty() => Err(FileError::new(file, "it has no certificate")),
        Ok(some) => Ok(some),
    }
}

/// Looks whether a key is that of a certificate.
fn check(
    (certificate, key): &(PathBuf, PathBuf),
    (certificate_bytes, key_bytes): &(Vec<u8>, Vec<u8>),
) -> Result<(), FileError> {
    let chain = chain(certificate, certificate_bytes)?;
    let found = PrivateKeyDer::from_pem_slice(key_bytes);
    let found = found.map_err(|_| FileError::new(key, "it has no private key"))?;
    let fits = CertifiedKey::from_der(chain, found, &ring::default_provider());
    fits.map(drop).map_err(|error| FileError {
        cause: Some(error.into()),
        ..FileError::new(key, "its private key is not that of the certificate")
    })
}
