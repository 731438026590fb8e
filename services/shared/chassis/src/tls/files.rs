//! Reads certificates and keys (PEM), and says of what cannot be used which file it is, and why.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tokio_rustls::rustls::{
    self, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject as _},
    sign::CertifiedKey,
};

use super::provider;

/// A file that TLS cannot use. Says nothing of what a private key is.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be used", file.display())]
pub struct TlsError {
    file: PathBuf,
    #[source]
    problem: Problem,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("it cannot be read")]
    Unreadable(#[source] io::Error),
    // What is there is left out: it may be a part of a key.
    #[error("it is not PEM")]
    NotPem,
    #[error("it has no certificate (BEGIN CERTIFICATE)")]
    NoCertificate,
    #[error("it has no private key (BEGIN PRIVATE KEY) without a password")]
    NoKey,
    #[error("its private key is of no kind that is known")]
    Key,
    #[error("its private key is not that of the certificate in {}", .0.display())]
    OtherKey(PathBuf),
    #[error("a certificate in it is refused")]
    Certificate(#[source] rustls::Error),
    #[error("its authorities are refused")]
    Authorities(#[source] rustls::client::VerifierBuilderError),
}

impl Problem {
    fn of(self, file: &File) -> TlsError {
        TlsError { file: file.path.clone(), problem: self }
    }
}

/// A file as it was when it was read.
#[derive(PartialEq, Eq)]
pub(super) struct File {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl File {
    pub(super) fn read(path: &Path) -> Result<Self, TlsError> {
        let unreadable =
            |error| TlsError { file: path.to_owned(), problem: Problem::Unreadable(error) };
        let bytes = fs::read(path).map_err(unreadable)?;
        Ok(Self { path: path.to_owned(), bytes })
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let found = CertificateDer::pem_slice_iter(&self.bytes).collect::<Result<Vec<_>, _>>();
        match found.map_err(|_| Problem::NotPem.of(self))? {
            none if none.is_empty() => Err(Problem::NoCertificate.of(self)),
            some => Ok(some),
        }
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|error| match error {
            pem::Error::NoItemsFound => Problem::NoKey.of(self),
            _ => Problem::NotPem.of(self),
        })
    }

    /// Returns the authorities in the file: the certificates that it has.
    pub(super) fn authorities(&self) -> Result<RootCertStore, TlsError> {
        let mut authorities = RootCertStore::empty();
        for certificate in self.certificates()? {
            let added = authorities.add(certificate);
            added.map_err(|error| Problem::Certificate(error).of(self))?;
        }
        Ok(authorities)
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Says that the file's authorities cannot be used.
    pub(super) fn refused(&self, error: rustls::client::VerifierBuilderError) -> TlsError {
        Problem::Authorities(error).of(self)
    }
}

/// A certificate, with those that lead to its authority, and its private key.
#[derive(PartialEq, Eq)]
pub(super) struct Identity {
    certificate: File,
    key: File,
}

impl Identity {
    pub(super) fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        Ok(Self { certificate: File::read(certificate)?, key: File::read(key)? })
    }

    /// Returns the bytes of both files.
    pub(super) fn into_bytes(self) -> (Vec<u8>, Vec<u8>) {
        (self.certificate.bytes, self.key.bytes)
    }

    /// Returns what is shown to others. Whether they accept it is not known here.
    pub(super) fn certified(&self) -> Result<CertifiedKey, TlsError> {
        let Self { certificate, key } = self;
        let chain = certificate.certificates()?;
        let certified = CertifiedKey::from_der(chain, key.key()?, &provider());
        certified.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                Problem::OtherKey(certificate.path.clone()).of(key)
            }
            error @ rustls::Error::InvalidCertificate(_) => {
                Problem::Certificate(error).of(certificate)
            }
            _ => Problem::Key.of(key),
        })
    }
}
