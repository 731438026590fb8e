//! The client address of a call: the connection's peer, or the address that trusted proxies name.
//!
//! Any client can send `x-forwarded-for`. Each proxy appends the address of its own peer, so the
//! entries of trusted proxies come last. The gateway reads the list from its end, up to the first
//! address that is not a trusted proxy, and ignores everything before.

use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use ipnet::IpNet;
use tonic::metadata::MetadataMap;

/// The header to which proxies append addresses.
pub(super) const FORWARDED_FOR: &str = "x-forwarded-for";

/// The networks of proxies whose `x-forwarded-for` entries are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

/// A list of networks that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is neither an address nor a network such as 10.0.0.0/8")]
pub struct NetworkError(String);

impl FromStr for TrustedProxies {
    type Err = NetworkError;

    /// Parses a comma-separated list of networks and addresses, which may be empty.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let network = |part: &str| {
            let address = || part.parse::<IpAddr>().map(IpNet::from);
            part.parse().or_else(|_| address()).map_err(|_| NetworkError(part.to_owned()))
        };
        parts.map(network).collect::<Result<_, _>>().map(Self)
    }
}

impl TrustedProxies {
    /// Returns whether an address is in one of the networks.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Returns the client address of a call on a connection from `peer`.
    ///
    /// If a proxy sends no valid address, the proxy itself counts as the client.
    pub(super) fn client(&self, peer: IpAddr, metadata: &MetadataMap) -> IpAddr {
        let mut client = peer.to_canonical();
        // Several headers form one list.
        for header in metadata.get_all(FORWARDED_FOR).iter().rev() {
            let Ok(list) = header.to_str() else { return client };
            for hop in list.rsplit(',').map(str::trim).filter(|hop| !hop.is_empty()) {
                if !self.contains(client) {
                    return client;
                }
                let Some(hop) = parse(hop) else { return client };
                client = hop;
            }
        }
        client
    }
}

/// Parses an address, with or without a port.
fn parse(hop: &str) -> Option<IpAddr> {
    let bare = hop.strip_prefix('[').and_then(|hop| hop.strip_suffix(']')).unwrap_or(hop);
    let address = bare.parse().or_else(|_| hop.parse().map(|hop: SocketAddr| hop.ip()));
    address.ok().map(|address: IpAddr| address.to_canonical())
}

/// The key of a client: its IPv4 address, or the /64 network of its IPv6 address, since one client
/// usually controls a whole /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClientKey {
    V4(u32),
    V6(u64),
}

impl From<IpAddr> for ClientKey {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.to_bits()),
            IpAddr::V6(address) => Self::V6((address.to_bits() >> 64) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROXIES: &str = "10.0.0.0/8, 192.0.2.7,fd00::/8";

    #[track_caller]
    fn check(peer: &str, headers: &[&str], expected: &str) {
        let mut metadata = MetadataMap::new();
        for header in headers {
            metadata.append(FORWARDED_FOR, header.parse().unwrap());
        }
        let proxies: TrustedProxies = PROXIES.parse().unwrap();
        let client = proxies.client(peer.parse().unwrap(), &metadata);
        assert_eq!(client, expected.parse::<IpAddr>().unwrap(), "{peer} {headers:?}");
    }

    #[test]
    fn an_untrusted_peer_is_the_client() {
        check("203.0.113.1", &[], "203.0.113.1");
        check("203.0.113.1", &["198.51.100.1"], "203.0.113.1");
        check("203.0.113.1", &["198.51.100.1, 10.0.0.1"], "203.0.113.1");
        check("192.0.2.8", &["198.51.100.1"], "192.0.2.8");
    }

    #[test]
    fn the_last_address_that_is_not_a_trusted_proxy_is_the_client() {
        check("10.0.0.1", &["198.51.100.1"], "198.51.100.1");
        check("10.0.0.1", &["1.1.1.1, 198.51.100.1"], "198.51.100.1");
        check("10.0.0.1", &["1.1.1.1, 198.51.100.1, 192.0.2.7, 10.9.9.9"], "198.51.100.1");
        check("fd00::1", &["1.1.1.1,198.51.100.1 , fd12::3"], "198.51.100.1");
        check("::ffff:10.0.0.1", &["::ffff:198.51.100.1"], "198.51.100.1");
    }

    #[test]
    fn several_headers_form_one_list() {
        check("10.0.0.1", &["1.1.1.1, 198.51.100.1", "10.0.0.2"], "198.51.100.1");
        check("10.0.0.1", &["1.1.1.1", "198.51.100.1", ""], "198.51.100.1");
    }

    #[test]
    fn ports_and_brackets_are_optional() {
        for hop in ["198.51.100.1:443", "198.51.100.1"] {
            check("10.0.0.1", &[hop], "198.51.100.1");
        }
        for hop in ["2001:db8::1", "[2001:db8::1]", "[2001:db8::1]:443"] {
            check("10.0.0.1", &[hop], "2001:db8::1");
        }
    }

    #[test]
    fn a_proxy_that_sends_no_valid_address_is_the_client() {
        check("10.0.0.1", &[], "10.0.0.1");
        for invalid in ["", " , ", "unknown", "1.1.1.1, unknown", "1.1.1.1, _hidden", "1.1.1"] {
            check("10.0.0.1", &[invalid], "10.0.0.1");
        }
        check("10.0.0.1", &["unknown, 10.0.0.2"], "10.0.0.2");
        // All are proxies: the first one counts as the client.
        check("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3");
    }

    #[test]
    fn a_list_of_networks_is_parsed_or_rejected() {
        assert_eq!("".parse::<TrustedProxies>().unwrap(), TrustedProxies::default());
        for wrong in ["10.0.0.0/33", "proxy", "10.0.0.0/8;fd00::/8", "10.0.0"] {
            assert!(wrong.parse::<TrustedProxies>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_ipv4_address_or_an_ipv6_64_network_is_one_client() {
        let key = |address: &str| ClientKey::from(address.parse::<IpAddr>().unwrap());
        assert_eq!(key("2001:db8:0:1::1"), key("2001:db8:0:1:ffff::2"));
        assert_ne!(key("2001:db8:0:1::1"), key("2001:db8:0:2::1"));
        assert_ne!(key("198.51.100.1"), key("198.51.100.2"));
        assert_eq!(key("::ffff:198.51.100.1"), key("198.51.100.1"));
        assert_ne!(key("::1"), key("0.0.0.0"));
    }
}
