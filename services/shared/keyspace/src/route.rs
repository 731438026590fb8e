//! Where a cluster keeps a key. Knows no topology.

use microblog_domain::Partition;
use redis::cluster_routing::{Route, SlotAddr};

/// Returns the way to a key: always to a primary, since replicas lag behind.
pub(crate) fn of_key(key: impl AsRef<[u8]>) -> Route {
    Route::with_key(key, SlotAddr::Master)
}

/// Returns the way to a partition, whose number is the hash tag of all its keys.
pub(crate) fn of_partition(partition: Partition) -> Route {
    of_key(partition.to_string())
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
