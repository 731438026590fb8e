//! TLS with servers that have it, for the commands that call them.

use std::{fs, path::PathBuf, sync::OnceLock};

use anyhow::{Context as _, bail};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// Whom to trust at an https address, and what to show there.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Servers with TLS")]
pub struct Tls {
    /// File with the authorities (PEM) of servers with an https address: one of them must have
    /// signed the server's certificate, for the host in the address.
    #[arg(long, global = true, value_name = "FILE", env = "MICROBLOG_CA_FILE")]
    ca_file: Option<PathBuf>,
    /// File with the certificate (PEM) to show to servers that ask for one.
    #[arg(long, global = true, value_name = "FILE", env = "MICROBLOG_CERT_FILE")]
    cert_file: Option<PathBuf>,
    /// File with the private key (PEM) of --cert-file.
    #[arg(long, global = true, value_name = "FILE", env = "MICROBLOG_KEY_FILE")]
    key_file: Option<PathBuf>,
}

// Of the whole process, which is one command: every call it makes goes by it.
static SAID: OnceLock<ClientTlsConfig> = OnceLock::new();

impl Tls {
    /// Reads the files, by which all channels go that are made from then on.
    pub fn apply(&self) -> anyhow::Result<()> {
        let Some(ca_file) = &self.ca_file else {
            if self.cert_file.is_some() || self.key_file.is_some() {
                bail!("--cert-file and --key-file need --ca-file: TLS has two sides");
            }
            return Ok(());
        };
        let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca_file)?));
        let config = match (&self.cert_file, &self.key_file) {
            (None, None) => config,
            (Some(certificate), Some(key)) => {
                config.identity(Identity::from_pem(read(certificate)?, read(key)?))
            }
            _ => bail!("--cert-file and --key-file belong together"),
        };
        // Said by main alone, once.
        let _ = SAID.set(config);
        Ok(())
    }
}

fn read(file: &PathBuf) -> anyhow::Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Returns how to connect to a server: over TLS, if its address says so.
pub(crate) fn secured(endpoint: Endpoint) -> anyhow::Result<Endpoint> {
    if endpoint.uri().scheme_str() != Some("https") {
        return Ok(endpoint);
    }
    let Some(config) = SAID.get() else {
        bail!("{} needs --ca-file: whose certificates are trusted there?", endpoint.uri());
    };
    endpoint.tls_config(config.clone()).context("the files of --ca-file, --cert-file or --key-file")
}
