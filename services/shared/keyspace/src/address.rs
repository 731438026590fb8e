//! Parses the address of Redis: topology, nodes, credentials. Does no I/O.

use std::fmt;

use percent_encoding::percent_decode_str;

/// The Redis topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// A single server, with the number of its database.
    Single { database: i64 },
    /// A Sentinel group, with the name of its master.
    Sentinel { master: String },
    /// A cluster, of which the address has some nodes.
    Cluster,
}

/// A host (name, IPv4, or IPv6 without brackets) and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Node {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The user and password of a Redis connection.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// A parsed address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) topology: Topology,
    pub(crate) tls: bool,
    pub(crate) credentials: Credentials,
    pub(crate) nodes: Vec<Node>,
}

/// An invalid address. Omits the address, which may contain a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    #[error(
        "the address must start with redis://, rediss://, redis+sentinel://, rediss+sentinel://, \
         redis-cluster:// or rediss-cluster://"
    )]
    Scheme,
    #[error("the address must name its hosts as host:port, separated by commas")]
    Node,
    #[error("the address of a single server must name one host")]
    ManyNodes,
    #[error("user and password in the address must be percent-encoded UTF-8")]
    Credentials,
    #[error("the database at the end of the address must be a number from 0 to 65535")]
    Database,
    #[error("the address of Sentinels must end with the name of their master")]
    Master,
    #[error("nothing may follow the hosts of a cluster")]
    Path,
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = text.split_once("://").ok_or(AddressError::Scheme)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (Credentials::parse(credentials)?, hosts),
            None => (Credentials::default(), authority),
        };
        let (topology, tls) = match scheme {
            "redis" | "rediss" => {
                (Topology::Single { database: database(path)? }, scheme != "redis")
            }
            "redis+sentinel" | "rediss+sentinel" if path.is_empty() || path.contains('/') => {
                return Err(AddressError::Master);
            }
            "redis+sentinel" | "rediss+sentinel" => {
                (Topology::Sentinel { master: path.to_owned() }, scheme != "redis+sentinel")
            }
            "redis-cluster" | "rediss-cluster" if !path.is_empty() => {
                return Err(AddressError::Path);
            }
            "redis-cluster" | "rediss-cluster" => (Topology::Cluster, scheme != "redis-cluster"),
            _ => return Err(AddressError::Scheme),
        };
        let port = if matches!(topology, Topology::Sentinel { .. }) { 26379 } else { 6379 };
        let nodes: Vec<Node> =
            hosts.split(',').map(|host| Node::parse(host, port)).collect::<Result<_, _>>()?;
        if matches!(topology, Topology::Single { .. }) && nodes.len() > 1 {
            return Err(AddressError::ManyNodes);
        }
        Ok(Self { topology, tls, credentials, nodes })
    }
}

impl Node {
    fn parse(text: &str, default_port: u16) -> Result<Self, AddressError> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or(AddressError::Node)?,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| AddressError::Node)?,
            None if port.is_empty() => default_port,
            None => return Err(AddressError::Node),
        };
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "?#%\\".contains(c)) {
            return Err(AddressError::Node);
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl Credentials {
    // `user:password`, `:password` (of the default user), or `user`.
    fn parse(text: &str) -> Result<Self, AddressError> {
        let decode = |text: &str| -> Result<Option<String>, AddressError> {
            let text = percent_decode_str(text).decode_utf8();
            let text = text.map_err(|_| AddressError::Credentials)?;
            Ok((!text.is_empty()).then(|| text.into_owned()))
        };
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        Ok(Self { user: decode(user)?, password: decode(password)? })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

fn database(path: &str) -> Result<i64, AddressError> {
    match path {
        "" => Ok(0),
        number => number.parse::<u16>().map(i64::from).map_err(|_| AddressError::Database),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(text: &str) -> Vec<String> {
        Address::parse(text).unwrap().nodes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn scheme_determines_topology_and_tls() {
        let parse = |text| Address::parse(text).unwrap();
        assert_eq!(parse("redis://h:1/3").topology, Topology::Single { database: 3 });
        assert!(!parse("redis://h").tls);
        assert!(parse("rediss://h").tls);
        let sentinel = Topology::Sentinel { master: "main".to_owned() };
        assert_eq!(parse("redis+sentinel://a,b:2/main").topology, sentinel);
        assert!(parse("rediss+sentinel://a/main").tls);
        assert_eq!(parse("redis-cluster://a,b").topology, Topology::Cluster);
        assert!(parse("rediss-cluster://a").tls);
    }

    #[test]
    fn hosts_have_default_ports_and_may_be_ipv6() {
        assert_eq!(nodes("redis://h"), ["h:6379"]);
        assert_eq!(nodes("redis+sentinel://a,b:2/main"), ["a:26379", "b:2"]);
        assert_eq!(nodes("redis-cluster://[::1]:7000,[fe80::1]"), ["::1:7000", "fe80::1:6379"]);
    }

    #[test]
    fn credentials_are_percent_decoded_and_omitted_from_debug() {
        let address = Address::parse("redis://user:p%40ss%2Fword@h").unwrap();
        assert_eq!(address.credentials.user.as_deref(), Some("user"));
        assert_eq!(address.credentials.password.as_deref(), Some("p@ss/word"));
        assert!(!format!("{address:?}").contains("p@ss"));
        let address = Address::parse("redis://:secret@h").unwrap();
        assert_eq!(address.credentials.user, None);
        assert_eq!(address.credentials.password.as_deref(), Some("secret"));
    }

    #[test]
    fn invalid_addresses_are_rejected() {
        for (text, error) in [
            ("localhost:6379", AddressError::Scheme),
            ("http://h", AddressError::Scheme),
            ("redis://", AddressError::Node),
            ("redis://h:99999", AddressError::Node),
            ("redis://h:x", AddressError::Node),
            ("redis://[::1", AddressError::Node),
            ("redis://h?protocol=3", AddressError::Node),
            ("redis-cluster://a,,b", AddressError::Node),
            ("redis://a,b", AddressError::ManyNodes),
            ("redis://h/x", AddressError::Database),
            ("redis://%ff:a@h", AddressError::Credentials),
            ("redis+sentinel://a", AddressError::Master),
            ("redis-cluster://a/0", AddressError::Path),
        ] {
            assert_eq!(Address::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn fuzz_addresses() {
        bolero::check!().for_each(|bytes: &[u8]| {
            // Any text is an address or an error.
            let _ = Address::parse(&String::from_utf8_lossy(bytes));
        });
    }
}
