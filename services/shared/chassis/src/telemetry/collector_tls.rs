//! TLS to collectors, from OpenTelemetry's environment variables
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>).

use std::path::PathBuf;

use microblog_files::File;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::TelemetryError;

/// TLS files for the collector of one signal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CollectorTls {
    pub(super) authorities: Option<PathBuf>,
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

impl CollectorTls {
    /// Returns the exporter's TLS settings for an `https` endpoint. Read once: a new certificate
    /// needs a restart.
    pub(super) fn read(&self, endpoint: &str) -> Result<Option<ClientTlsConfig>, TelemetryError> {
        if !endpoint.starts_with("https://") {
            return Ok(None);
        }
        let authorities = self.authorities.as_deref().ok_or(TelemetryError::Untrusted)?;
        let authorities = Certificate::from_pem(File::read(authorities)?.authorities_pem()?);
        let config = ClientTlsConfig::new().ca_certificate(authorities);
        Ok(Some(match (self.certificate.as_deref(), self.key.as_deref()) {
            (None, None) => config,
            (Some(_), None) | (None, Some(_)) => return Err(TelemetryError::HalfIdentity),
            (Some(certificate), Some(key)) => {
                let identity = microblog_files::Identity::read(certificate, key)?;
                let (certificate, key) = identity.pem()?;
                config.identity(Identity::from_pem(certificate, key))
            }
        }))
    }
}
