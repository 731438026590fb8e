//! Every key of the relation service: what it holds, and for how long. All keys of a user lie in
//! the user's partition, which is the keys' hash tag, hence in one Redis Cluster slot.
//!
//! | key | type | holds | lifetime |
//! | --- | --- | --- | --- |
//! | `rel:{p}:following:<u>` | zset | whom `u` follows → version: the truth of follows | for ever |
//! | `rel:{p}:following_ids:<u>` | set (intset) | the same, for look-ups | for ever |
//! | `rel:{p}:followers:<u>` | zset | who follows `u` → version: a projection | for ever |
//! | `rel:{p}:follower_ids:<u>` | set (intset) | the same, for look-ups | for ever |
//! | `rel:{p}:mutual:<u>` | zset | who does both → the later of the two versions | for ever |
//! | `rel:{p}:lost:<u>` | zset | former followers → version of the end | 24 h |
//! | `rel:{p}:blocks:<u>` | zset | whom `u` blocks → version: the truth of blocks | for ever |
//! | `rel:{p}:blocked_by:<u>` | zset | who blocks `u` → version: a projection | for ever |
//! | `rel:{p}:unblocked:<u>` | zset | former blockers → version of the end | 24 h |
//! | `rel:{p}:mutes:<u>` | zset | whom `u` mutes → version | for ever |
//! | `rel:{p}:pending` | zset | `follow:A>B`, `block:A>B`: changes that the other side may not know → version | until confirmed |
//! | `rel:{p}:clock` | string | the last tick of the partition's clock | for ever |
//! | `rel:{p}:users` | set (intset) | the partition's users that have lists, for `Verify` alone | for ever |
//! | `rel:{p}:forgotten` | set (intset) | deleted accounts of the partition | for ever |
//! | `rel:{p}:forgetting` | zset | those of them whose entries are still being ended → since | until done |

use microblog_domain::{Partition, UserId};
use microblog_keyspace::key;

fn of_user(kind: &str, user: UserId) -> String {
    key(format_args!("rel:{{{}}}:{kind}:{user}", user.partition()))
}

fn of_partition(kind: &str, partition: Partition) -> String {
    key(format_args!("rel:{{{partition}}}:{kind}"))
}

macro_rules! keys {
    ($of:ident, $owner:ty: $($name:ident)*) => {
        $(
            #[doc = concat!("Returns the key `", stringify!($name), "` of its owner.")]
            pub(crate) fn $name(owner: $owner) -> String {
                $of(stringify!($name), owner)
            }
        )*
    };
}

keys!(of_user, UserId:
    following following_ids followers follower_ids mutual lost
    blocks blocked_by unblocked mutes);
keys!(of_partition, Partition: pending clock users forgotten forgetting);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_user_share_the_tag_of_its_partition() {
        let user = UserId::new(7_000_000_000_000_015).unwrap();
        let partition = user.partition();
        assert_eq!(following(user), format!("rel:{{{partition}}}:following:{user}"));
        assert_eq!(follower_ids(user), format!("rel:{{{partition}}}:follower_ids:{user}"));
        assert_eq!(pending(partition), format!("rel:{{{partition}}}:pending"));
    }
}
