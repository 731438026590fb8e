//! All Redis keys of the relation service, with their lifetimes. The partition is the hash tag: all
//! keys of a user are in one Redis Cluster slot.
//!
//! | key | type | value | lifetime |
//! | --- | --- | --- | --- |
//! | `rel:{p}:following:<u>` | zset | followings of `u` → version: the source edges of follows | for ever |
//! | `rel:{p}:following_ids:<u>` | set (intset) | the same, as an index for lookups | for ever |
//! | `rel:{p}:followers:<u>` | zset | followers of `u` → version: the inverse edges of follows | for ever |
//! | `rel:{p}:follower_ids:<u>` | set (intset) | the same, as an index for lookups | for ever |
//! | `rel:{p}:mutual:<u>` | zset | mutual followers of `u` → the later of the two versions | for ever |
//! | `rel:{p}:lost:<u>` | zset | tombstones: former followers → version of the end | 24 h |
//! | `rel:{p}:blocks:<u>` | zset | accounts that `u` blocks → version: the source edges of blocks | for ever |
//! | `rel:{p}:blocked_by:<u>` | zset | accounts that block `u` → version: the inverse edges of blocks | for ever |
//! | `rel:{p}:unblocked:<u>` | zset | tombstones: former blockers → version of the end | 24 h |
//! | `rel:{p}:mutes:<u>` | zset | accounts that `u` mutes → version | for ever |
//! | `rel:{p}:pending` | zset | outbox: changes `follow:A>B` and `block:A>B` without acknowledgement → version | until acknowledged |
//! | `rel:{p}:journal` | stream | the change journal ([`JournalEntry`](crate::JournalEntry)); absent unless the service records its changes | the newest entries |
//! | `rel:{p}:journal:record` | string | the identity of the record that has the partition | for ever |
//! | `rel:{p}:journal:lease` | string | the lease on the recovery of the partition: its holder | 10 s |
//! | `rel:{p}:journal:mark` | string | empty: written before WAIT, at the durability level `replicated` | for ever |
//! | `rel:{p}:clock` | string | last tick of the partition's clock | for ever |
//! | `rel:{p}:users` | set (intset) | the partition's users with lists; only `Verify` reads it | for ever |
//! | `rel:{p}:forgotten` | set (intset) | deleted accounts of the partition | for ever |
//! | `rel:{p}:forgetting` | zset | deleted accounts whose edges are still being removed → since | until done |

use microblog_domain::{Partition, UserId};
use microblog_keyspace::key;

use crate::graph::List;

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
keys!(of_partition, Partition: pending journal clock users forgotten forgetting);

/// Returns the key of a list.
pub(crate) fn list(list: List, user: UserId) -> String {
    match list {
        List::Following => following(user),
        List::Followers => followers(user),
        List::Mutuals => mutual(user),
        List::Blocks => blocks(user),
        List::BlockedBy => blocked_by(user),
        List::Mutes => mutes(user),
    }
}

/// Returns the key of the id set of a list; `None` for lists without one.
pub(crate) fn id_set(list: List, user: UserId) -> Option<String> {
    match list {
        List::Following => Some(following_ids(user)),
        List::Followers => Some(follower_ids(user)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_keys_have_the_partition_as_hash_tag() {
        let user = UserId::new(7_000_000_000_000_015).unwrap();
        let partition = user.partition();
        assert_eq!(following(user), format!("rel:{{{partition}}}:following:{user}"));
        assert_eq!(follower_ids(user), format!("rel:{{{partition}}}:follower_ids:{user}"));
        assert_eq!(pending(partition), format!("rel:{{{partition}}}:pending"));
    }
}
