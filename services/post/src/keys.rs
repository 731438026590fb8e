//! Every key of the post service: type, contents and lifetime. A post and everything that belongs
//! to it lie in one partition, its author's; the post's id names it. The partition is the hash tag
//! of the keys, so all of them share one Redis Cluster slot.
//!
//! | key | type | holds | lifetime |
//! | --- | --- | --- | --- |
//! | `post:{p}:post:<id>` | hash | `b`: the content ([`body`](crate::store)); `l`, `c`, `r`: the counts of likes, comments and reposts, unless 0; `m`: the eviction mark, while it is being evicted | until deleted or evicted |
//! | `post:{p}:likes:<id>` | zset | accounts that like the post → since when (a stamp, not unique) | with the post |
//! | `post:{p}:comments:<id>` | zset | comments → their ids | with the post |
//! | `post:{p}:comment_bodies:<id>` | hash | comment → its content | with the post |
//! | `post:{p}:reposts:<id>` | zset | reposts → their ids | with the post |
//! | `post:{p}:repost_tombstones:<id>` | zset | tombstones: deleted reposts → when the post was notified (stamp) | 24 h |
//! | `post:{p}:posts:<author>` | zset | the author's posts → their ids; the archive marker 0, if the archive has more → 1 + the number of unlisted posts, 0 if not counted yet | while not empty |
//! | `post:{p}:outbox` | zset | delivery outbox: posts to deliver to the timeline service → their ids | until delivered |
//! | `post:{p}:delivered` | zset | posts that were delivered → when (stamp, not unique) | an hour, and until others were delivered, or 24 h |
//! | `post:{p}:pending` | zset | backlink updates to apply: `repost:R>T` → version | until confirmed |
//! | `post:{p}:evictable` | zset | posts off their author's list → when they may be evicted (stamp) | until evicted |
//! | `post:{p}:post_tombstones` | zset | tombstones: deleted posts → when (stamp); without a journal, only unlisted ones | 24 h, and until recorded |
//! | `post:{p}:watermark` | string | eviction watermark: the newest post that ever became evictable | for ever |
//! | `post:{p}:restoring:<id>` | string | lease on restoring the post: its holder | 10 s |
//! | `post:{p}:staged_likes:<id>` · `staged_comments` · `staged_comment_bodies` · `staged_reposts` | as those without `staged_` | staged parts of a restore | 40 s |
//! | `post:{0}:evictor` · `post:{0}:eraser` | string | leases of the evictor and the eraser: their holders | 10 s |
//! | `post:{0}:erasure` | string | the erasure run: id, stage and up to 500 accounts ([`erasure`](crate::erasure)) | until done |
//! | `post:{p}:erasure_fence` | string | the fence of the last erasure run: `1`, `2`: no evictions; `0`: lifted | for ever |
//! | `post:{p}:request:<author>:<uuid>` | string | idempotency key: the post that a request made | 24 h |
//! | `post:{p}:comment_admission:<author>:<uuid>` | string | idempotency key, in the author's partition: the post on which a request may comment | 24 h |
//! | `post:{p}:comment_request:<author>:<uuid>` | string | idempotency key, in the post's partition: the comment that a request made | 24 h |
//! | `post:{p}:post_rate:<author>` · `comment_rate:<author>` | string | rate limit of posts (comments), GCRA: the theoretical arrival time, in µs | a minute |
//! | `post:{p}:restore_rate:<account>` | string | rate limit of restores, likewise | a minute |
//! | `post:{p}:journal` | stream | the change journal ([`JournalEntry`](crate::JournalEntry)); absent unless the service records its changes | the newest entries |
//! | `post:{p}:journal:record` | string | the identity of the record that has the partition | for ever |
//! | `post:{p}:journal:mark` | string | empty: written before WAIT, at the durability level `replicated` | for ever |
//! | `post:{p}:journal:lease` | string | the lease on the recovery of the partition: its holder | 10 s |
//! | `post:{p}:clock` | string | the last tick of the partition's clock | for ever |
//! | `post:{p}:authors` | set (intset) | the partition's authors, for scans | until forgotten |
//! | `post:{p}:forgotten` | set (intset) | deleted accounts of the partition | for ever |
//! | `post:{p}:forgetting` | zset | deleted accounts whose data is not erased yet → since | until done |

use std::fmt::Display;

use microblog_domain::{Partition, PostId, RequestId, UserId};
use microblog_keyspace::{key, number_behind};

fn of(partition: Partition, kind: &str, owner: impl Display) -> String {
    key(format_args!("post:{{{partition}}}:{kind}:{owner}"))
}

macro_rules! keys {
    ($owner:ty: $($name:ident)*) => {
        $(
            #[doc = concat!("Returns the key `", stringify!($name), "` of its owner.")]
            pub(crate) fn $name(owner: $owner) -> String {
                of(owner.partition(), stringify!($name), owner)
            }
        )*
    };
}

keys!(PostId: post likes comments comment_bodies reposts repost_tombstones restoring);
keys!(PostId: staged_likes staged_comments staged_comment_bodies staged_reposts);
keys!(UserId: posts post_rate comment_rate restore_rate);

macro_rules! keys_of_partition {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("Returns the key `", stringify!($name), "` of a partition.")]
            pub(crate) fn $name(partition: Partition) -> String {
                key(format_args!("post:{{{partition}}}:{}", stringify!($name)))
            }
        )*
    };
}

keys_of_partition!(outbox delivered pending journal clock authors forgotten forgetting);
keys_of_partition!(evictable post_tombstones watermark erasure_fence);

/// Returns the post whose hash a key names.
pub(crate) fn id_of_post(key: &[u8]) -> Option<PostId> {
    PostId::new(number_behind("}:post:", key)?)
}

/// Returns the keys of a post and its lists, in the order in which the functions take them.
pub(crate) fn of_post(id: PostId) -> [String; 5] {
    [post(id), likes(id), comments(id), comment_bodies(id), reposts(id)]
}

/// Returns the keys of the staged parts of a post, in the order of its lists.
pub(crate) fn staged(id: PostId) -> [String; 4] {
    [staged_likes(id), staged_comments(id), staged_comment_bodies(id), staged_reposts(id)]
}

/// Returns the keys of an account that are deleted with it, besides its list of posts.
pub(crate) fn of_account(user: UserId) -> [String; 3] {
    [post_rate(user), comment_rate(user), restore_rate(user)]
}

/// Returns the key of a job's lease or state.
pub(crate) fn job(name: &str) -> String {
    key(format_args!("post:{{{}}}:{name}", Partition::new(0)))
}

/// Returns the prefix of a partition's post keys: the function that issues an id appends it.
pub(crate) fn post_prefix(partition: Partition) -> String {
    of(partition, "post", "")
}

/// Returns the idempotency key of a request to post.
pub(crate) fn request(author: UserId, request: RequestId) -> String {
    of(author.partition(), "request", format_args!("{author}:{request}"))
}

/// Returns the idempotency key of a request to comment, in the author's partition.
pub(crate) fn comment_admission(author: UserId, request: RequestId) -> String {
    of(author.partition(), "comment_admission", format_args!("{author}:{request}"))
}

/// Returns the idempotency key of a request to comment, in the post's partition.
pub(crate) fn comment_request(post: PostId, author: UserId, request: RequestId) -> String {
    of(post.partition(), "comment_request", format_args!("{author}:{request}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_post_share_the_tag_of_its_partition() {
        let id = PostId::new(7_000_000_000_000_015).unwrap();
        let partition = id.partition();
        assert_eq!(likes(id), format!("post:{{{partition}}}:likes:{id}"));
        assert_eq!(outbox(partition), format!("post:{{{partition}}}:outbox"));
        assert_eq!(post(id), format!("{}{id}", post_prefix(partition)));
        assert_eq!(id_of_post(post(id).as_bytes()), Some(id));
        assert_eq!(id_of_post(likes(id).as_bytes()), None);
    }

    #[test]
    fn a_request_belongs_to_its_author() {
        let author = UserId::new(7_000_000_000_000_015).unwrap();
        let id = "7c2d9b1e-53a4-4f0e-9a7e-0d5c1b7f2a01";
        let request = RequestId::parse("request_id", id).unwrap();
        let tag = format!("post:{{{}}}", author.partition());
        assert_eq!(super::request(author, request), format!("{tag}:request:{author}:{id}"));
    }
}
