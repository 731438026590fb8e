//! All Redis keys of the notice service, with their lifetimes. The partition is the hash tag: all
//! keys of an account are in one Redis Cluster slot.
//!
//! | key | type | value | lifetime |
//! | --- | --- | --- | --- |
//! | `note:{p}:notices:<u>` | hash | notices by name, and the account's state; or that the account is gone | 90 days after the last change; 8 days after the account's end |
//! | `note:{p}:order:<u>` | sorted set | names of the newest 800 notices, by the position of their newest act | that of the notices |
//! | `note:{p}:mentions:<u>` | sorted set | the newest 800 posts that mention the account, by id | that of the notices |
//! | `note:{q}:feed:<service>` | hash | position in the change feed of a service, and which process follows it; q from 0 to 2 | for ever |
//!
//! `functions.lua` documents the hashes.

use microblog_domain::{Partition, UserId};
use microblog_keyspace::key;

use crate::feed::Source;

macro_rules! keys {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("Returns the key `", stringify!($name), "` of its owner.")]
            pub(crate) fn $name(owner: UserId) -> String {
                key(format_args!("note:{{{}}}:{}:{owner}", owner.partition(), stringify!($name)))
            }
        )*
    };
}

keys!(notices order mentions);

/// Returns the key of the position in a change feed.
pub(crate) fn feed(source: Source) -> String {
    key(format_args!("note:{{{}}}:feed:{}", feed_partition(source), source.name()))
}

/// Returns the partition of the position in a change feed.
pub(crate) fn feed_partition(source: Source) -> Partition {
    Partition::new(source as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_partition_as_hash_tag() {
        let owner = UserId::new(7_000_000_000_000_015).unwrap();
        assert_eq!(order(owner), format!("note:{{{}}}:order:{owner}", owner.partition()));
        assert_eq!(feed(Source::Relation), "note:{1}:feed:relation");
    }
}
