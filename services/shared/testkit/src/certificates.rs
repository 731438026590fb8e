//! Test certificates, and temporary files for them.

use std::{fs, path::PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};
use tempfile::TempDir;

/// A test certificate authority (CA).
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its private key, signed by a CA.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// PEM.
    pub certificate: String,
    /// PEM.
    pub key: String,
}

impl Authority {
    /// Generates a CA. No trust store contains it.
    #[allow(clippy::new_without_default, reason = "no two are the same")]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // TLS libraries find a CA by its name, so two CAs must not share one.
        let name = format!("authority {}", rand::random::<u64>());
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("make a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("self-sign"))
    }

    /// Returns the CA certificate as PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate for names or addresses, for servers and for clients.
    pub fn issue(&self, names: &[&str]) -> Certificate {
        self.sign(names, |_| {})
    }

    /// Issues an expired certificate.
    pub fn issue_expired(&self, names: &[&str]) -> Certificate {
        self.sign(names, |params| {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        })
    }

    fn sign(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Certificate {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names and addresses");
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().expect("make a key");
        let certificate = params.signed_by(&key, &self.0).expect("sign").pem();
        Certificate { certificate, key: key.serialize_pem() }
    }
}

/// A temporary directory of a test. Dropping it deletes the files.
pub struct Files(TempDir);

impl Files {
    /// Creates the directory.
    #[allow(clippy::new_without_default, reason = "no two are the same")]
    pub fn new() -> Self {
        Self(TempDir::with_prefix("microblog-files-").expect("make a directory"))
    }

    /// Returns the path of a file, which need not exist.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file, replacing an existing one atomically, and returns its path.
    pub fn write(&self, name: &str, text: impl AsRef<str>) -> PathBuf {
        let (next, path) = (self.path("next"), self.path(name));
        fs::write(&next, text.as_ref()).expect("write a file");
        fs::rename(&next, &path).expect("rename the file");
        path
    }

    /// Writes a certificate and its key as `name.crt` and `name.key`, and returns their paths.
    pub fn certificate(&self, name: &str, issued: &Certificate) -> (PathBuf, PathBuf) {
        let certificate = self.write(&format!("{name}.crt"), &issued.certificate);
        (certificate, self.write(&format!("{name}.key"), &issued.key))
    }

    /// Returns the TLS options of a redis-server with the certificate `server` and the authority
    /// `ca.pem`.
    pub fn redis_options(
        &self,
        port: u16,
        requires_certificate: bool,
    ) -> Vec<(&'static str, String)> {
        let path = |file| self.path(file).display().to_string();
        vec![
            ("tls-port", port.to_string()),
            ("tls-cert-file", path("server.crt")),
            ("tls-key-file", path("server.key")),
            ("tls-ca-cert-file", path("ca.pem")),
            ("tls-auth-clients", if requires_certificate { "yes" } else { "no" }.to_owned()),
        ]
    }
}
