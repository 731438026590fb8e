//! Where a cluster keeps a key. Knows no topology.

use microblog_domain::Partition;
use redis::{
    Arg, Cmd,
    cluster_routing::{Route as SlotRoute, SingleNodeRoutingInfo, SlotAddr},
};

use crate::address::Node;

/// Where a command goes on a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// To the primary of a partition, whose number is the hash tag of all its keys.
    Partition(Partition),
    /// To one node.
    Node(Node),
    /// To whichever node the client library chooses.
    Any,
}

impl Route {
    /// Returns the route of a key.
    pub(crate) fn of_key(key: &[u8]) -> Self {
        partition_of(key).map_or(Self::Any, Self::Partition)
    }

    /// Returns the route of a command: that of its first argument, which is a key in all commands
    /// that have one.
    pub(crate) fn of_command(command: &Cmd) -> Self {
        match command.args_iter().nth(1) {
            Some(Arg::Simple(key)) => Self::of_key(key),
            _ => Self::Any,
        }
    }

    /// Returns the route as the client library has it; `None` lets the library read the command.
    pub(crate) fn for_library(&self) -> Option<SingleNodeRoutingInfo> {
        match self {
            Self::Partition(partition) => Some(to_partition(*partition)),
            Self::Node(Node { host, port }) => {
                Some(SingleNodeRoutingInfo::ByAddress { host: host.clone(), port: *port })
            }
            Self::Any => None,
        }
    }
}

/// Returns the library's route to a partition: to its primary, since replicas lag behind.
pub(crate) fn to_partition(partition: Partition) -> SingleNodeRoutingInfo {
    let route = SlotRoute::with_key(partition.to_string(), SlotAddr::Master);
    SingleNodeRoutingInfo::SpecificNode(route)
}

/// Returns the partition that a key's hash tag names.
fn partition_of(key: &[u8]) -> Option<Partition> {
    let open = key.iter().position(|&byte| byte == b'{')?;
    let tag = &key[open + 1..];
    let tag = &tag[..tag.iter().position(|&byte| byte == b'}')?];
    let is_canonical =
        tag.iter().all(u8::is_ascii_digit) && (tag.len() == 1 || tag.first() != Some(&b'0'));
    let number: u16 = std::str::from_utf8(tag).ok().filter(|_| is_canonical)?.parse().ok()?;
    (number < Partition::COUNT).then(|| Partition::new(number))
}

#[cfg(test)]
mod tests {
    use redis::cmd;

    use super::*;

    #[test]
    fn a_partition_lies_where_its_keys_do() {
        for partition in Partition::all() {
            let key = format!("any:{{{partition}}}:thing");
            assert_eq!(Route::of_key(key.as_bytes()), Route::Partition(partition));
            let route = SlotRoute::with_key(key, SlotAddr::Master);
            assert_eq!(to_partition(partition), SingleNodeRoutingInfo::SpecificNode(route));
        }
    }

    #[test]
    fn other_keys_and_commands_without_keys_are_left_to_the_library() {
        for key in ["", "a", "a:{", "a:{}", "a:{x}", "a:{01}", "a:{+1}", "a:{1024}", "a:{-1}"] {
            assert_eq!(Route::of_key(key.as_bytes()), Route::Any, "{key}");
        }
        assert_eq!(Route::of_command(cmd("CLUSTER").arg("SLOTS")), Route::Any);
        assert_eq!(Route::of_command(&cmd("PING")), Route::Any);
        let get = cmd("GET").arg("user:{7}:profile:1").take();
        assert_eq!(Route::of_command(&get), Route::Partition(Partition::new(7)));
    }
}
