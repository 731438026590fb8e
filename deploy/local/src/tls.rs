//! Client TLS of all commands.

use std::{
    fs,
    path::PathBuf,
    sync::{PoisonError, RwLock},
};

use anyhow::{Context as _, bail};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// CA and client certificate for https URLs.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Servers with TLS")]
pub struct Tls {
    /// File with the CA certificates (PEM) that sign the certificates of https servers. The
    /// certificate must be valid for the host in the URL.
    #[arg(long, global = true, value_name = "FILE", env = "MICROBLOG_CA_FILE")]
    ca_file: Option<PathBuf>,
    /// File with the client certificate (PEM), for servers that require one.
    #[arg(long, global = true, value_name = "FILE", env = "MICROBLOG_CERT_FILE")]
    cert_file: Option<PathBuf>,
    /// File with the private key (PEM) of --cert-file.
    #[arg(long, global = true, value_name = "FILE", env = "MICROBLOG_KEY_FILE")]
    key_file: Option<PathBuf>,
}

// Process-wide: all calls of a command use the same configuration, except that of a load generator
// which starts one system after the other.
static CONFIG: RwLock<Option<ClientTlsConfig>> = RwLock::new(None);

impl Tls {
    /// Returns the configuration of a client with a certificate.
    pub fn of(ca_file: PathBuf, cert_file: PathBuf, key_file: PathBuf) -> Self {
        Self { ca_file: Some(ca_file), cert_file: Some(cert_file), key_file: Some(key_file) }
    }

    /// Reads the files. All channels created later use them.
    pub fn apply(&self) -> anyhow::Result<()> {
        let Some(ca_file) = &self.ca_file else {
            if self.cert_file.is_some() || self.key_file.is_some() {
                bail!("--cert-file and --key-file require --ca-file");
            }
            return Ok(());
        };
        let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca_file)?));
        let config = match (&self.cert_file, &self.key_file) {
            (None, None) => config,
            (Some(certificate), Some(key)) => {
                config.identity(Identity::from_pem(read(certificate)?, read(key)?))
            }
            _ => bail!("--cert-file and --key-file must be given together"),
        };
        *CONFIG.write().unwrap_or_else(PoisonError::into_inner) = Some(config);
        Ok(())
    }
}

fn read(file: &PathBuf) -> anyhow::Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Configures TLS for an https URL.
pub(crate) fn secured(endpoint: Endpoint) -> anyhow::Result<Endpoint> {
    if endpoint.uri().scheme_str() != Some("https") {
        return Ok(endpoint);
    }
    let config = CONFIG.read().unwrap_or_else(PoisonError::into_inner).clone();
    let Some(config) = config else {
        bail!("{} requires --ca-file, the CA certificates to trust", endpoint.uri());
    };
    endpoint.tls_config(config).context("invalid --ca-file, --cert-file or --key-file")
}
