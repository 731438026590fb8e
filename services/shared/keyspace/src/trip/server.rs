//! Where a keyspace lies, as the conventions say it. Never who one is there.

use crate::address::{Address, Topology};

/// Where a keyspace lies, as it is configured.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(super) address: String,
    /// `None` where each of several has its own in the address.
    pub(super) port: Option<u16>,
    pub(super) database: String,
}

impl Server {
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
    fn a_server_is_named_as_it_is_configured_and_without_its_password() {
        let server = |url| Server::new(&Address::parse(url).unwrap());
        let one = server("redis://user:secret@host:1234/3");
        assert_eq!((&*one.address, one.port, &*one.database), ("host", Some(1234), "3"));
        let many = server("redis-cluster://user:secret@a:1,b:2");
        assert_eq!((&*many.address, many.port, &*many.database), ("a:1,b:2", None, "0"));
    }
}
