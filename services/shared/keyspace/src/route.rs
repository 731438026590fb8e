//! Routing: the cluster node of a command, by the hash tag of its key.

use microblog_domain::Partition;
use redis::{
    Arg, Cmd,
    cluster_routing::{Route as SlotRoute, SingleNodeRoutingInfo, SlotAddr},
};

use crate::address::Node;

/// The node of a cluster that a command goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// The primary of a partition, whose number is the hash tag of its keys.
    Partition(Partition),
    /// A given node.
    Node(Node),
    /// A node that the client library chooses.
    Any,
}

impl Route {
    /// Returns the route of a key.
    pub(crate) fn of_key(key: &[u8]) -> Self {
        partition_of(key).map_or(Self::Any, Self::Partition)
    }

    /// Returns the route of a command. A command with keys must have one as its first argument.
    pub(crate) fn of_command(command: &Cmd) -> Self {
        match command.args_iter().nth(1) {
            Some(Arg::Simple(key)) => Self::of_key(key),
            _ => Self::Any,
        }
    }

    /// Returns the library's routing info; `None` lets the library parse the command.
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

/// Returns the library's routing info of a partition's primary.
pub(crate) fn to_partition(partition: Partition) -> SingleNodeRoutingInfo {
    let route = SlotRoute::with_key(partition.to_string(), SlotAddr::Master);
    SingleNodeRoutingInfo::SpecificNode(route)
}

/// Returns the partition in a key's hash tag.
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
    fn partition_and_its_keys_have_the_same_route() {
        for partition in Partition::all() {
            let key = format!("any:{{{partition}}}:thing");
            assert_eq!(Route::of_key(key.as_bytes()), Route::Partition(partition));
            let route = SlotRoute::with_key(key, SlotAddr::Master);
            assert_eq!(to_partition(partition), SingleNodeRoutingInfo::SpecificNode(route));
        }
    }

    #[test]
    fn library_routes_other_keys_and_commands_without_keys() {
        for key in ["", "a", "a:{", "a:{}", "a:{x}", "a:{01}", "a:{+1}", "a:{1024}", "a:{-1}"] {
            assert_eq!(Route::of_key(key.as_bytes()), Route::Any, "{key}");
        }
        assert_eq!(Route::of_command(cmd("CLUSTER").arg("SLOTS")), Route::Any);
        assert_eq!(Route::of_command(&cmd("PING")), Route::Any);
        let get = cmd("GET").arg("user:{7}:profile:1").take();
        assert_eq!(Route::of_command(&get), Route::Partition(Partition::new(7)));
    }
}
