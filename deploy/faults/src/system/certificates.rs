//! Mutual TLS and signed identities between the servers. The gateway's own port is plain.

use std::cell::RefCell;

use anyhow::Result;
use microblog_local::tls::Tls;
use microblog_testkit::{Authority, Files};

const HOST: &str = "127.0.0.1";
const AUTHORITIES: &str = "ca.pem";
const CERTIFICATE: &str = "server.crt";
const KEY: &str = "server.key";
const IDENTITY_KEYS: &str = "identity.keys";

/// The certificates and keys of a system, in files that all its servers read.
pub(crate) struct Certificates {
    files: Files,
    /// The one that signs.
    authority: RefCell<Authority>,
}

impl Certificates {
    /// Makes an authority, a certificate and an identity key. Health checks use them too.
    pub(super) fn new() -> Result<Self> {
        let all = Self { files: Files::new(), authority: RefCell::new(Authority::new()) };
        all.files.write(AUTHORITIES, all.authority.borrow().pem());
        all.write_identity_keys(&[identity_key()]);
        all.renew()?;
        Ok(all)
    }

    /// Trusts a further authority, which signs from now on.
    pub(crate) fn add_authority(&self) -> Result<()> {
        let old = self.authority.replace(Authority::new());
        let new = self.authority.borrow().pem();
        self.files.write(AUTHORITIES, old.pem() + &new);
        self.apply()
    }

    /// Trusts only the newest authority.
    pub(crate) fn remove_old_authorities(&self) -> Result<()> {
        self.files.write(AUTHORITIES, self.authority.borrow().pem());
        self.apply()
    }

    /// Replaces the certificate by one of the newest authority.
    pub(crate) fn renew(&self) -> Result<()> {
        let issued = self.authority.borrow().issue(&[HOST]);
        self.files.certificate("server", &issued);
        self.apply()
    }

    /// Replaces the certificate by one that has expired.
    pub(crate) fn expire(&self) {
        let issued = self.authority.borrow().issue_expired(&[HOST]);
        self.files.certificate("server", &issued);
    }

    /// Replaces the identity keys: the first one signs.
    pub(crate) fn write_identity_keys(&self, keys: &[String]) {
        self.files.write(IDENTITY_KEYS, keys.join("\n"));
    }

    /// Returns the identity keys.
    pub(crate) fn identity_keys(&self) -> Result<Vec<String>> {
        let text = std::fs::read_to_string(self.files.path(IDENTITY_KEYS))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Returns the environment variables of a server.
    pub(super) fn of_server(&self, name: &str) -> Vec<(String, String)> {
        let mut variables = vec![
            ("PEER_CA_FILE", AUTHORITIES),
            ("PEER_CERT_FILE", CERTIFICATE),
            ("PEER_KEY_FILE", KEY),
            ("IDENTITY_KEY_FILE", IDENTITY_KEYS),
        ];
        if name != "gateway" {
            variables.extend([
                ("TLS_CERT_FILE", CERTIFICATE),
                ("TLS_KEY_FILE", KEY),
                ("TLS_CLIENT_CA_FILE", AUTHORITIES),
            ]);
        }
        self.paths(&variables)
    }

    /// Returns the environment variables of a command of the launcher.
    pub(super) fn of_command(&self) -> Vec<(String, String)> {
        self.paths(&[
            ("CA_FILE", AUTHORITIES),
            ("CERT_FILE", CERTIFICATE),
            ("KEY_FILE", KEY),
            ("IDENTITY_KEY_FILE", IDENTITY_KEYS),
        ])
    }

    fn paths(&self, variables: &[(&str, &str)]) -> Vec<(String, String)> {
        let path = |file| self.files.path(file).display().to_string();
        variables.iter().map(|(name, file)| (format!("MICROBLOG_{name}"), path(file))).collect()
    }

    /// The new channels of this process use the files as they are.
    fn apply(&self) -> Result<()> {
        let [authorities, certificate, key] =
            [AUTHORITIES, CERTIFICATE, KEY].map(|file| self.files.path(file));
        Tls::of(authorities, certificate, key).apply()
    }
}

/// Returns a new identity key.
pub(crate) fn identity_key() -> String {
    format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>())
}
