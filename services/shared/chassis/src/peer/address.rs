//! Where a peer is: one URL or several, each of a host's address or of a name that has many.

use std::net::{IpAddr, SocketAddr};

use http::{Uri, uri::Authority};

// That of `http`.
const DEFAULT_PORT: u16 = 80;

/// An address that is not one of a service.
#[derive(Debug, thiserror::Error)]
#[error("not the address of a service, such as http://127.0.0.1:50051: {address}")]
pub struct AddressError {
    address: String,
}

/// One URL of a peer.
#[derive(Clone, Debug)]
pub(super) struct Site {
    /// What calls say they are for.
    pub(super) authority: Authority,
    pub(super) host: Host,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Host {
    /// Never resolved.
    Address(SocketAddr),
    /// Resolved again and again.
    Name(String, u16),
}

/// Reads the URLs of a peer, with commas between them.
pub(super) fn parse(addresses: &str) -> Result<Vec<Site>, AddressError> {
    addresses.split(',').map(|address| site(address.trim())).collect()
}

fn site(address: &str) -> Result<Site, AddressError> {
    let error = || AddressError { address: address.to_owned() };
    let uri: Uri = address.parse().map_err(|_| error())?;
    let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"));
    let authority = authority.ok_or_else(error)?.clone();
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return Err(error());
    }
    let port = authority.port_u16().unwrap_or(DEFAULT_PORT);
    let host = match host.parse::<IpAddr>() {
        Ok(ip) => Host::Address(SocketAddr::new(ip, port)),
        Err(_) => Host::Name(host.to_owned(), port),
    };
    Ok(Site { authority, host })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(addresses: &str) -> Vec<Host> {
        parse(addresses).unwrap().into_iter().map(|site| site.host).collect()
    }

    #[test]
    fn a_host_is_an_address_or_a_name() {
        let address = |text: &str| Host::Address(text.parse().unwrap());
        assert_eq!(hosts("http://10.0.0.1:50051"), [address("10.0.0.1:50051")]);
        assert_eq!(hosts("http://[::1]:50051"), [address("[::1]:50051")]);
        assert_eq!(hosts("http://10.0.0.1"), [address("10.0.0.1:80")]);
        assert_eq!(hosts("http://user:50051/"), [Host::Name("user".to_owned(), 50051)]);
    }

    #[test]
    fn several_have_commas_between_them() {
        let both = hosts("http://10.0.0.1:1, http://user:2");
        assert_eq!(both.len(), 2);
        assert_eq!(both[1], Host::Name("user".to_owned(), 2));
        let wrong = parse("http://10.0.0.1:1,user:2").unwrap_err();
        assert!(wrong.to_string().ends_with(": user:2"), "{wrong}");
        for wrong in [",", "http://a,", "http://a,,http://b"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
