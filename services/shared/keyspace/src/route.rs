//! Routing: the partition of a command, by the hash tag of its key.

use std::borrow::Cow;

use microblog_domain::Partition;
use redis::{
    Arg, Cmd,
    cluster_routing::{Route as SlotRoute, SingleNodeRoutingInfo, SlotAddr},
};

/// A command with the partition of its keys. Without a partition, a cluster routes it by the client
/// library.
pub(crate) type Routed<'a> = (Option<Partition>, Cow<'a, Cmd>);

/// Returns the partition of a command. A command with keys must have one as its first argument.
pub(crate) fn partition_of_command(command: &Cmd) -> Option<Partition> {
    match command.args_iter().nth(1) {
        Some(Arg::Simple(key)) => partition_of(key),
        _ => None,
    }
}

/// Returns the partition in a key's hash tag.
pub(crate) fn partition_of(key: &[u8]) -> Option<Partition> {
    let open = key.iter().position(|&byte| byte == b'{')?;
    let tag = &key[open + 1..];
    let tag = &tag[..tag.iter().position(|&byte| byte == b'}')?];
    let is_canonical =
        tag.iter().all(u8::is_ascii_digit) && (tag.len() == 1 || tag.first() != Some(&b'0'));
    let number: u16 = std::str::from_utf8(tag).ok().filter(|_| is_canonical)?.parse().ok()?;
    (number < Partition::COUNT).then(|| Partition::new(number))
}

/// Returns the library's routing info of a partition's primary.
pub(crate) fn to_partition(partition: Partition) -> SingleNodeRoutingInfo {
    let route = SlotRoute::with_key(partition.to_string(), SlotAddr::Master);
    SingleNodeRoutingInfo::SpecificNode(route)
}

#[cfg(test)]
mod tests {
    use redis::cmd;

    use super::*;

    #[test]
    fn partition_and_its_keys_have_the_same_route() {
        for partition in Partition::all() {
            let key = format!("any:{{{partition}}}:thing");
            assert_eq!(partition_of(key.as_bytes()), Some(partition));
            let route = SlotRoute::with_key(key, SlotAddr::Master);
            assert_eq!(to_partition(partition), SingleNodeRoutingInfo::SpecificNode(route));
        }
    }

    #[test]
    fn other_keys_and_commands_without_keys_have_no_partition() {
        for key in ["", "a", "a:{", "a:{}", "a:{x}", "a:{01}", "a:{+1}", "a:{1024}", "a:{-1}"] {
            assert_eq!(partition_of(key.as_bytes()), None, "{key}");
        }
        assert_eq!(partition_of_command(cmd("CLUSTER").arg("SLOTS")), None);
        assert_eq!(partition_of_command(&cmd("PING")), None);
        let get = cmd("GET").arg("user:{7}:profile:1").take();
        assert_eq!(partition_of_command(&get), Some(Partition::new(7)));
    }
}
