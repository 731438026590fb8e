//! All Redis keys of the timeline service, with their lifetimes. The partition is the hash tag: all
//! keys of a user are in one Redis Cluster slot.
//!
//! | key | type | value | lifetime |
//! | --- | --- | --- | --- |
//! | `tl:{p}:user:<u>` | packed string | user timeline, the source of fan-out on read: a head of 16 bytes (fan-out state of the author, and down to which post it is complete), then the newest 1,000 to 1,250 posts of the author, oldest first | until 8 days after `ForgetUser`, which empties it |
//! | `tl:{p}:home:<u>` | packed string | cached home timeline: a head of 48 bytes and a ring of up to 800 posts in their order | 14 days after the last read |
//! | `tl:{p}:pulls:<u>` | packed string | pulled authors of the home timeline (fan-out on read): ids of 8 bytes | that of the home timeline, or longer |
//! | `tl:{p}:unpushed` | string | time until which posts may not have been pushed, in milliseconds since 2006 | 28 days after the last post in pull mode, or the last failover |
//! | `tl:{p}:checkpoint` | string | checkpoint of the Redis server that has the partition: its replication id, until when it had all writes, and since when it lacks earlier ones (stamps); in one partition of each server | for ever |
//! | `tl:{q}:fanout` | stream | fan-out jobs; consumer group `fanout`; q from 0 to 15 | until done |
//!
//! `functions.lua` documents the heads, [`Entry`](crate::Entry) the records.

use microblog_domain::{Partition, UserId};
use microblog_keyspace::key;

/// The number of fan-out streams. They spread over cluster nodes and workers. It must never
/// decrease: the entries of removed streams would be lost.
pub const STREAMS: u16 = 16;

macro_rules! keys {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("Returns the key `", stringify!($name), "` of its owner.")]
            pub(crate) fn $name(owner: UserId) -> String {
                key(format_args!("tl:{{{}}}:{}:{owner}", owner.partition(), stringify!($name)))
            }
        )*
    };
}

keys!(user home pulls);

/// Returns the key of the time until which posts may not have been pushed.
pub(crate) fn unpushed(partition: Partition) -> String {
    key(format_args!("tl:{{{partition}}}:unpushed"))
}

/// Returns the key of the checkpoint of the server that has a partition.
pub(crate) fn checkpoint(partition: Partition) -> String {
    key(format_args!("tl:{{{partition}}}:checkpoint"))
}

/// Returns the key of the fan-out stream of an author.
pub(crate) fn fanout_of(author: UserId) -> String {
    fanout(stream_partition(author).number())
}

/// Returns the partition of an author's fan-out stream.
pub(crate) fn stream_partition(author: UserId) -> Partition {
    Partition::new(author.partition().number() % STREAMS)
}

/// Returns the key of a fan-out stream.
pub(crate) fn fanout(number: u16) -> String {
    key(format_args!("tl:{{{}}}:fanout", Partition::new(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_keys_have_the_partition_as_hash_tag() {
        let owner = UserId::new(7_000_000_000_000_015).unwrap();
        let tag = format!("tl:{{{}}}", owner.partition());
        assert_eq!(user(owner), format!("{tag}:user:{owner}"));
        assert_eq!(home(owner), format!("{tag}:home:{owner}"));
        assert_eq!(pulls(owner), format!("{tag}:pulls:{owner}"));
    }

    #[test]
    fn stream_keys_have_the_first_partitions_as_hash_tags() {
        let author = UserId::new((37 << 2) | 1).unwrap();
        assert_eq!(fanout_of(author), "tl:{5}:fanout");
    }
}
