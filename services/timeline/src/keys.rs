//! Every key of the timeline service: what it holds, and for how long. The partition is the keys'
//! hash tag: those of a user's lie in the user's partition and share one Redis Cluster slot.
//!
//! | key | type | holds | lifetime |
//! | --- | --- | --- | --- |
//! | `tl:{p}:user:<u>` | packed string | a head of 16 bytes (how the author's posts reach followers), then the newest 1,000 to 1,250 of the author's posts, oldest first | until forgotten |
//! | `tl:{p}:home:<u>` | packed string | a head of 40 bytes and a ring of up to 800 posts, in the order in which they came | 14 days after the last read |
//! | `tl:{p}:pulls:<u>` | packed string | ids, of 8 bytes, of authors whose posts do not come into the home timeline, but are fetched when it is read | with it, or longer |
//! | `tl:{p}:unpushed` | string | until when posts may not have been pushed, in milliseconds since 2024 | 28 days after posts were last pulled only |
//! | `tl:{q}:fanout` | stream | what is to be done to home timelines; consumer group `fanout`; q from 0 to 15 | until done |
//!
//! `functions.lua` says what is in the heads, [`Entry`](crate::Entry) what is in the records.

use microblog_domain::{Partition, UserId};
use microblog_keyspace::key;

/// How many fan-out streams there are: they spread over the nodes of a cluster and the workers.
/// Never fewer than before, or what waits in the others is forgotten.
pub(crate) const STREAMS: u16 = 16;

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

/// Returns the key that says until when posts may not have been pushed.
pub(crate) fn unpushed(partition: Partition) -> String {
    key(format_args!("tl:{{{partition}}}:unpushed"))
}

/// Returns the key of the stream in which an author's posts wait for their fan-out.
pub(crate) fn fanout_of(author: UserId) -> String {
    fanout(stream_partition(author).number())
}

/// Returns the partition of that stream.
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
    fn what_belongs_to_a_user_shares_the_tag_of_their_partition() {
        let owner = UserId::new(7_000_000_000_000_015).unwrap();
        let tag = format!("tl:{{{}}}", owner.partition());
        assert_eq!(user(owner), format!("{tag}:user:{owner}"));
        assert_eq!(home(owner), format!("{tag}:home:{owner}"));
        assert_eq!(pulls(owner), format!("{tag}:pulls:{owner}"));
    }

    #[test]
    fn streams_have_the_tags_of_the_first_partitions() {
        let author = UserId::new((37 << 2) | 1).unwrap();
        assert_eq!(fanout_of(author), "tl:{5}:fanout");
    }
}
