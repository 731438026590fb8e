//! Whence a call comes: the peer of its connection, or whom a trusted proxy names in its place.
//!
//! Anybody can write anything into `x-forwarded-for`. Each proxy appends the address that it was
//! called from, so what trusted proxies wrote stands last, and is read from there: up to the first
//! address that is no trusted proxy's. What is before it is that address's own tale.

use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use ipnet::IpNet;
use tonic::metadata::MetadataMap;

/// What proxies append addresses to.
pub(super) const FORWARDED_FOR: &str = "x-forwarded-for";

/// The networks whose word on `x-forwarded-for` is believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

/// Why a list of networks is none.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is neither an address nor a network such as 10.0.0.0/8")]
pub struct NetworkError(String);

impl FromStr for TrustedProxies {
    type Err = NetworkError;

    /// Reads networks and addresses with commas between them, or nothing.
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

    /// Returns the address that a call comes from, whose connection comes from `peer`.
    ///
    /// Where a proxy names no address, or what is none, the call counts as the proxy's own.
    pub(super) fn caller(&self, peer: IpAddr, metadata: &MetadataMap) -> IpAddr {
        let mut caller = peer.to_canonical();
        // Several headers are one list.
        for header in metadata.get_all(FORWARDED_FOR).iter().rev() {
            let Ok(list) = header.to_str() else { return caller };
            for hop in list.rsplit(',').map(str::trim).filter(|hop| !hop.is_empty()) {
                if !self.contains(caller) {
                    return caller;
                }
                let Some(hop) = parse(hop) else { return caller };
                caller = hop;
            }
        }
        caller
    }
}

/// Reads an address, with or without a port.
fn parse(hop: &str) -> Option<IpAddr> {
    let bare = hop.strip_prefix('[').and_then(|hop| hop.strip_suffix(']')).unwrap_or(hop);
    let address = bare.parse().or_else(|_| hop.parse().map(|hop: SocketAddr| hop.ip()));
    address.ok().map(|address: IpAddr| address.to_canonical())
}

/// What counts as one caller: an address of IPv4, or the network of 64 bits that an address of IPv6
/// is in, since whoever has one of these has usually all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    V4(u32),
    V6(u64),
}

impl From<IpAddr> for Source {
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
        let caller = proxies.caller(peer.parse().unwrap(), &metadata);
        assert_eq!(caller, expected.parse::<IpAddr>().unwrap(), "{peer} {headers:?}");
    }

    #[test]
    fn who_is_no_trusted_proxy_speaks_for_nobody() {
        check("203.0.113.1", &[], "203.0.113.1");
        check("203.0.113.1", &["198.51.100.1"], "203.0.113.1");
        check("203.0.113.1", &["198.51.100.1, 10.0.0.1"], "203.0.113.1");
        check("192.0.2.8", &["198.51.100.1"], "192.0.2.8");
    }

    #[test]
    fn of_what_proxies_append_the_last_that_is_no_proxys_counts() {
        check("10.0.0.1", &["198.51.100.1"], "198.51.100.1");
        check("10.0.0.1", &["1.1.1.1, 198.51.100.1"], "198.51.100.1");
        check("10.0.0.1", &["1.1.1.1, 198.51.100.1, 192.0.2.7, 10.9.9.9"], "198.51.100.1");
        check("fd00::1", &["1.1.1.1,198.51.100.1 , fd12::3"], "198.51.100.1");
        check("::ffff:10.0.0.1", &["::ffff:198.51.100.1"], "198.51.100.1");
    }

    #[test]
    fn several_headers_are_one_list() {
        check("10.0.0.1", &["1.1.1.1, 198.51.100.1", "10.0.0.2"], "198.51.100.1");
        check("10.0.0.1", &["1.1.1.1", "198.51.100.1", ""], "198.51.100.1");
    }

    #[test]
    fn addresses_have_ports_and_brackets_or_none() {
        for hop in ["198.51.100.1:443", "198.51.100.1"] {
            check("10.0.0.1", &[hop], "198.51.100.1");
        }
        for hop in ["2001:db8::1", "[2001:db8::1]", "[2001:db8::1]:443"] {
            check("10.0.0.1", &[hop], "2001:db8::1");
        }
    }

    #[test]
    fn a_proxy_that_names_nobody_is_the_caller() {
        check("10.0.0.1", &[], "10.0.0.1");
        for nobody in ["", " , ", "unknown", "1.1.1.1, unknown", "1.1.1.1, _hidden", "1.1.1"] {
            check("10.0.0.1", &[nobody], "10.0.0.1");
        }
        check("10.0.0.1", &["unknown, 10.0.0.2"], "10.0.0.2");
        // All of them proxies: the first one knows of nobody before it.
        check("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3");
    }

    #[test]
    fn a_list_of_networks_is_read_or_refused() {
        assert_eq!("".parse::<TrustedProxies>().unwrap(), TrustedProxies::default());
        for wrong in ["10.0.0.0/33", "proxy", "10.0.0.0/8;fd00::/8", "10.0.0"] {
            assert!(wrong.parse::<TrustedProxies>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_ipv6_network_of_64_bits_is_one_caller_and_an_ipv4_address_is() {
        let source = |address: &str| Source::from(address.parse::<IpAddr>().unwrap());
        assert_eq!(source("2001:db8:0:1::1"), source("2001:db8:0:1:ffff::2"));
        assert_ne!(source("2001:db8:0:1::1"), source("2001:db8:0:2::1"));
        assert_ne!(source("198.51.100.1"), source("198.51.100.2"));
        assert_eq!(source("::ffff:198.51.100.1"), source("198.51.100.1"));
        assert_ne!(source("::1"), source("0.0.0.0"));
    }
}
