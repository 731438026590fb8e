//! Reads certificates and keys (PEM). Errors name the file and its problem.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustls::{
    RootCertStore,
    client::VerifierBuilderError,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject as _},
    sign::CertifiedKey,
};

/// An unusable TLS file. Never shows a private key.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be used", file.display())]
pub struct TlsError {
    file: PathBuf,
    #[source]
    problem: Problem,
}

/// The problem of a file.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("it cannot be read")]
    Unreadable(#[source] io::Error),
    // Omits the content, which may be part of a key.
    #[error("it is not PEM")]
    NotPem,
    #[error("it has no certificate (BEGIN CERTIFICATE)")]
    NoCertificate,
    #[error("it has no private key (BEGIN PRIVATE KEY) without a password")]
    NoKey,
    #[error("its private key has an unknown type")]
    Key,
    #[error("its private key is not that of the certificate in {}", .0.display())]
    OtherKey(PathBuf),
    #[error("a certificate in it is invalid")]
    Certificate(#[source] rustls::Error),
    #[error("its certificate authorities are invalid")]
    Authorities(#[source] VerifierBuilderError),
}

impl Problem {
    fn of(self, file: &File) -> TlsError {
        TlsError { file: file.path.clone(), problem: self }
    }
}

/// A snapshot of a file.
#[derive(PartialEq, Eq)]
pub struct File {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl File {
    /// Reads a file without parsing it.
    pub fn read(path: &Path) -> Result<Self, TlsError> {
        let unreadable =
            |error| TlsError { file: path.to_owned(), problem: Problem::Unreadable(error) };
        let bytes = fs::read(path).map_err(unreadable)?;
        Ok(Self { path: path.to_owned(), bytes })
    }

    /// Returns the certificates of the file as trusted authorities.
    pub fn authorities(&self) -> Result<RootCertStore, TlsError> {
        let mut authorities = RootCertStore::empty();
        for certificate in self.certificates()? {
            let added = authorities.add(certificate);
            added.map_err(|error| Problem::Certificate(error).of(self))?;
        }
        Ok(authorities)
    }

    /// Returns them as PEM after checking them, for libraries with less specific errors.
    pub fn authorities_pem(&self) -> Result<Vec<u8>, TlsError> {
        self.authorities().map(|_usable| self.bytes.clone())
    }

    /// Returns the error of unusable authorities.
    pub(crate) fn invalid_authorities(&self, error: VerifierBuilderError) -> TlsError {
        Problem::Authorities(error).of(self)
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
}

/// A certificate chain and its private key.
#[derive(PartialEq, Eq)]
pub struct Identity {
    certificate: File,
    key: File,
}

impl Identity {
    /// Reads both files without parsing them.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        Ok(Self { certificate: File::read(certificate)?, key: File::read(key)? })
    }

    /// Returns the chain and key for TLS. Whether peers accept them is not checked.
    pub(crate) fn certified(&self) -> Result<CertifiedKey, TlsError> {
        let Self { certificate, key } = self;
        let chain = certificate.certificates()?;
        // Explicit: the process default depends on which crate installs one first.
        let certified = CertifiedKey::from_der(chain, key.key()?, &ring::default_provider());
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

    /// Returns certificate and key as PEM after checking them, for libraries with less specific
    /// errors.
    pub fn pem(&self) -> Result<(Vec<u8>, Vec<u8>), TlsError> {
        self.certified().map(|_usable| (self.certificate.bytes.clone(), self.key.bytes.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use microblog_testkit::{Authority, Files};

    use super::*;

    /// Returns an error with its sources and its debug output.
    fn describe(error: &TlsError) -> String {
        let causes = std::iter::successors(error.source(), |&cause| cause.source());
        let causes = causes.map(|cause| format!(": {cause}")).collect::<String>();
        format!("{error}{causes} {error:?}")
    }

    #[test]
    fn valid_pem_is_returned_unchanged() {
        let (files, authority) = (Files::new(), Authority::new());
        let issued = authority.issue(&["server.test"]);
        let (certificate, key) = files.certificate("server", &issued);
        let pem = Identity::read(&certificate, &key).and_then(|identity| identity.pem());
        assert_eq!(pem.unwrap(), (issued.certificate.into_bytes(), issued.key.into_bytes()));
        let file = files.write("ca.crt", authority.pem());
        let pem = File::read(&file).and_then(|file| file.authorities_pem());
        assert_eq!(pem.unwrap(), authority.pem().into_bytes());
    }

    #[test]
    fn errors_name_the_file_and_hide_the_key() {
        let (files, authority) = (Files::new(), Authority::new());
        let (issued, other) = (authority.issue(&["server.test"]), authority.issue(&["other.test"]));
        let cut = issued.key.replace("-----END PRIVATE KEY-----", "");
        let wrong = [
            (other.key.as_str(), "server.key cannot be used: its private key is not that of"),
            (&issued.certificate, "server.key cannot be used: it has no private key"),
            (&cut, "server.key cannot be used: it is not PEM"),
        ];
        let (certificate, key) = files.certificate("server", &issued);
        for (text, problem) in wrong {
            files.write("server.key", text);
            let rejected = Identity::read(&certificate, &key).and_then(|identity| identity.pem());
            let error = describe(&rejected.unwrap_err());
            assert!(error.contains(problem), "{error}");
            let mut secrets = issued.key.lines().chain(other.key.lines());
            assert!(!secrets.any(|line| !line.starts_with('-') && error.contains(line)), "{error}");
        }
        files.write("server.key", &issued.key);
        let none = File::read(&key).and_then(|file| file.authorities_pem()).unwrap_err();
        assert!(describe(&none).contains("it has no certificate"), "{none:?}");
        let missing = File::read(&files.path("none")).err().unwrap();
        assert!(describe(&missing).contains("it cannot be read: No such file"), "{missing:?}");
    }
}
