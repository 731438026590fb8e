//! Where a cluster keeps a key. Knows no topology.

use microblog_domain::Partition;
use redis::cluster_routing::{Route, SingleNodeRoutingInfo, SlotAddr};

use crate::address::Node;

/// Returns the way to a key: always to a primary, since replicas lag behind.
pub(crate) fn of_key(key: impl AsRef<[u8]>) -> SingleNodeRoutingInfo {
    SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master))
}

/// Returns the way to a partition, whose number is the hash tag of all its keys.
pub(crate) fn of_partition(partition: Partition) -> SingleNodeRoutingInfo {
    of_key(partition.to_string())
}

/// Returns the way to one node.
pub(crate) fn to_node(node: &Node) -> SingleNodeRoutingInfo {
    SingleNodeRoutingInfo::ByAddress { host: node.host.clone(), port: node.port }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_lies_where_its_keys_do() {
        for partition in Partition::all() {
            assert_eq!(of_partition(partition), of_key(format!("any:{{{partition}}}:thing")));
        }
    }
}
