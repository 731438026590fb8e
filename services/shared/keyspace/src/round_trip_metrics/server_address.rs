//! The server address as OpenTelemetry attributes, without credentials.

use crate::address::{Address, Topology};

/// The configured address of a keyspace.
#[derive(Clone, Debug)]
pub(crate) struct ServerAddress {
    pub(super) address: String,
    /// `None` for several nodes, whose ports are in `address`.
    pub(super) port: Option<u16>,
    pub(super) database: String,
}

impl ServerAddress {
    pub(crate) fn new(address: &Address) -> Self {
        let database = match address.topology {
            Topology::Single { database } => database,
            Topology::Sentinel { .. } | Topology::Cluster => 0,
        };
        let (server, port) = match &*address.nodes {
            [node] => (node.host.clone(), Some(node.port)),
            nodes => {
                let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
                (nodes.join(","), None)
            }
        };
        Self { address: server, port, database: database.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_address_has_no_password() {
        let server = |url| ServerAddress::new(&Address::parse(url).unwrap());
        let one = server("redis://user:secret@host:1234/3");
        assert_eq!((&*one.address, one.port, &*one.database), ("host", Some(1234), "3"));
        let many = server("redis-cluster://user:secret@a:1,b:2");
        assert_eq!((&*many.address, many.port, &*many.database), ("a:1,b:2", None, "0"));
    }
}
