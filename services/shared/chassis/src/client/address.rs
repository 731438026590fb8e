//! Peer addresses: one URL or several, each with an IP address or a host name.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use http::{
    Uri,
    uri::{Authority, Scheme},
};
use microblog_files::TlsError;
use tokio_rustls::rustls::pki_types::ServerName;

use super::tls::Connector;
use crate::config::Config;

// Of `http` and of `https`.
const DEFAULT_PORTS: [u16; 2] = [80, 443];

/// A peer URL that is invalid or unusable.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Not a URL of `http` or `https`.
    #[error("invalid peer URL, expected one such as http://127.0.0.1:50051: {0}")]
    Unknown(String),
    /// The URL contains credentials, which would show in logs.
    #[error("a peer URL must not contain credentials (a user or password before an @)")]
    Credentials,
    /// An `https` URL without `--peer-ca-file`.
    #[error("no trusted certificate authorities for {0}: set --peer-ca-file")]
    Untrusted(String),
    /// The TLS files are unusable.
    #[error("cannot set up TLS")]
    Tls(#[source] TlsError),
}

/// One URL of a peer.
#[derive(Clone)]
pub(super) struct PeerUrl {
    pub(super) origin: Origin,
    pub(super) host: Host,
}

/// Scheme and authority of requests to a URL, with the TLS settings to verify it.
#[derive(Clone)]
pub(super) struct Origin {
    pub(super) authority: Authority,
    /// `None` for `http`.
    pub(super) tls: Option<ClientTls>,
}

/// TLS settings of a client: the name to verify, and the connector.
#[derive(Clone)]
pub(super) struct ClientTls {
    pub(super) server_name: ServerName<'static>,
    pub(super) connector: Arc<Connector>,
}

impl Origin {
    /// Returns whether requests to both have the same scheme and authority.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.authority == other.authority && self.scheme() == other.scheme()
    }

    pub(super) fn scheme(&self) -> Scheme {
        if self.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Host {
    /// Not resolved.
    Address(SocketAddr),
    /// Resolved periodically.
    Name(String, u16),
}

/// Parses comma-separated URLs, and loads the TLS files.
pub(super) fn parse(addresses: &str, config: &Config) -> Result<Vec<PeerUrl>, AddressError> {
    let connector = Connector::new(config).map_err(AddressError::Tls)?.map(Arc::new);
    parse_all(addresses, connector.as_ref())
}

fn parse_all(
    addresses: &str,
    connector: Option<&Arc<Connector>>,
) -> Result<Vec<PeerUrl>, AddressError> {
    addresses.split(',').map(|address| parse_one(address.trim(), connector)).collect()
}

fn parse_one(address: &str, connector: Option<&Arc<Connector>>) -> Result<PeerUrl, AddressError> {
    let error = || AddressError::Unknown(address.to_owned());
    if address.contains('@') {
        return Err(AddressError::Credentials);
    }
    let uri: Uri = address.parse().map_err(|_| error())?;
    let is_secure = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(error()),
    };
    let authority = uri.authority().ok_or_else(error)?.clone();
    // A port, or nothing.
    let rest = authority.as_str().strip_prefix(authority.host());
    let port = match rest.and_then(|rest| rest.strip_prefix(':')) {
        Some(port) => port.parse().map_err(|_| error())?,
        None => DEFAULT_PORTS[usize::from(is_secure)],
    };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    if host.is_empty() {
        return Err(error());
    }
    let tls = if is_secure {
        let server_name = ServerName::try_from(host.clone()).map_err(|_| error())?;
        let untrusted = || AddressError::Untrusted(address.to_owned());
        Some(ClientTls { server_name, connector: connector.ok_or_else(untrusted)?.clone() })
    } else {
        None
    };
    let host = match host.parse::<IpAddr>() {
        Ok(ip) => Host::Address(SocketAddr::new(ip, port)),
        Err(_) => Host::Name(host, port),
    };
    Ok(PeerUrl { origin: Origin { authority, tls }, host })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use microblog_testkit::{Authority, Files};

    use super::*;

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        config: Config,
    }

    fn config() -> Config {
        Flags::parse_from(["test"]).config
    }

    fn hosts(addresses: &str) -> Vec<Host> {
        parse_all(addresses, None).unwrap().into_iter().map(|url| url.host).collect()
    }

    #[test]
    fn url_host_is_an_ip_address_or_a_name() {
        let address = |text: &str| Host::Address(text.parse().unwrap());
        assert_eq!(hosts("http://10.0.0.1:50051"), [address("10.0.0.1:50051")]);
        assert_eq!(hosts("http://[::1]:50051"), [address("[::1]:50051")]);
        assert_eq!(hosts("http://10.0.0.1"), [address("10.0.0.1:80")]);
        assert_eq!(hosts("http://user:50051/"), [Host::Name("user".to_owned(), 50051)]);
    }

    #[test]
    fn https_url_sets_the_tls_server_name() {
        let authority = Authority::new();
        let files = Files::new();
        let config =
            Config { peer_ca_file: Some(files.write("ca.pem", authority.pem())), ..config() };
        let url = |address: &str| parse(address, &config).unwrap().remove(0);
        let name =
            |address: &str| url(address).origin.tls.unwrap().server_name.to_str().into_owned();
        let named = url("https://user.microblog.svc");
        assert_eq!(named.host, Host::Name("user.microblog.svc".to_owned(), 443));
        assert_eq!(named.origin.scheme(), Scheme::HTTPS);
        assert_eq!(name("https://user.microblog.svc:50051"), "user.microblog.svc");
        assert_eq!(name("https://10.0.0.1:50051"), "10.0.0.1");
        assert_eq!(name("https://[::1]:50051"), "::1");
        assert_eq!(url("http://user").origin.scheme(), Scheme::HTTP);
    }

    #[test]
    fn https_url_requires_a_ca_file() {
        let untrusted = parse_all("http://a,https://b", None).err().unwrap().to_string();
        assert!(
            untrusted.contains("https://b") && untrusted.contains("--peer-ca-file"),
            "{untrusted}"
        );
        let config = Config { peer_ca_file: Some("/no/such/file".into()), ..config() };
        assert!(matches!(parse("http://a", &config), Err(AddressError::Tls(_))));
    }

    #[test]
    fn urls_are_separated_by_commas() {
        let both = hosts("http://10.0.0.1:1, http://user:2");
        assert_eq!(both.len(), 2);
        assert_eq!(both[1], Host::Name("user".to_owned(), 2));
        let wrong = parse_all("http://10.0.0.1:1,user:2", None).err().unwrap();
        assert!(wrong.to_string().ends_with(": user:2"), "{wrong}");
        for wrong in [",", "http://a,", "http://a,,http://b", "ftp://a", "http://a b"] {
            assert!(parse_all(wrong, None).is_err(), "{wrong}");
        }
        for port in ["", "0x1", "70000", "port"] {
            assert!(parse_all(&format!("http://a:{port}"), None).is_err(), "{port}");
        }
    }

    #[test]
    fn url_credentials_are_rejected_and_not_shown() {
        for address in ["http://user:secret@host", "http://user:secret@host:port", "user:secret@"] {
            let rejected = parse_all(address, None).err().unwrap();
            assert!(matches!(rejected, AddressError::Credentials), "{address}: {rejected}");
            assert!(!format!("{rejected:?}").contains("secret"));
        }
    }
}
