//! Certificates, made for a test, and files that have them.

use std::{fs, path::PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};
use tempfile::TempDir;

/// An authority of a test's own.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// What it has signed.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// PEM.
    pub certificate: String,
    /// PEM.
    pub key: String,
}

impl Authority {
    /// Makes one that nobody knows.
    #[allow(clippy::new_without_default, reason = "no two are the same")]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // By which others find it: two of the same name would be taken for each other.
        let name = format!("authority {}", rand::random::<u64>());
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("make a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("sign itself"))
    }

    /// Returns its own certificate, as PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Signs a certificate for names or addresses, for servers and for clients.
    pub fn issue(&self, names: &[&str]) -> Certificate {
        self.sign(names, |_| {})
    }

    /// Signs one that was valid once.
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

/// Files of a test, gone when it is.
pub struct Files(TempDir);

impl Files {
    /// Makes a directory for them.
    #[allow(clippy::new_without_default, reason = "no two are the same")]
    pub fn new() -> Self {
        Self(TempDir::with_prefix("microblog-files-").expect("make a directory"))
    }

    /// Returns where a file is, or would be.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file, in one step where it is there already, and returns where it is.
    pub fn write(&self, name: &str, text: impl AsRef<str>) -> PathBuf {
        let (next, path) = (self.path("next"), self.path(name));
        fs::write(&next, text.as_ref()).expect("write a file");
        fs::rename(&next, &path).expect("put a file in its place");
        path
    }

    /// Writes a certificate and its key, as `name.crt` and `name.key`, and returns where they are.
    pub fn certificate(&self, name: &str, issued: &Certificate) -> (PathBuf, PathBuf) {
        let certificate = self.write(&format!("{name}.crt"), &issued.certificate);
        (certificate, self.write(&format!("{name}.key"), &issued.key))
    }
}
