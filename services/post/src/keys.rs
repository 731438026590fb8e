//! Every key of the post service: what it holds, and for how long. A post lies in its author's
//! partition, which its id names, with all that belongs to it; the partition is the keys' hash tag,
//! so that all of them share one Redis Cluster slot.
//!
//! | key | type | holds | lifetime |
//! | --- | --- | --- | --- |
//! | `post:{p}:post:<id>` | hash | `b`: the post's content ([`body`](crate::store)); `l`, `c`, `r`: how many likes, comments and reposts it has, where there are any; `m`: a mark, while it is being evicted | until deleted or evicted |
//! | `post:{p}:likes:<id>` | zset | who likes the post → since when (a stamp, not unique) | with the post |
//! | `post:{p}:comments:<id>` | zset | the post's comments → their ids | with the post |
//! | `post:{p}:comment_bodies:<id>` | hash | comment → its content | with the post |
//! | `post:{p}:reposts:<id>` | zset | reposts of the post → their ids | with the post |
//! | `post:{p}:unreposted:<id>` | zset | deleted reposts of the post → when it was told (stamp) | 24 h |
//! | `post:{p}:posts:<author>` | zset | the author's posts → their ids; the member 0, where the list goes on in the archive → 1 + how many posts are not on the list, 0 where they are not counted yet | while there are any |
//! | `post:{p}:outbox` | zset | posts that the timeline service may not know → their ids | until delivered |
//! | `post:{p}:pending` | zset | `repost:R>T`: a repost that came or went, and a post that may not know → version | until confirmed |
//! | `post:{p}:unarchived` | zset | what the archive may not know ([`Note`](crate::store::Note)) → stamp; `-` → 0 for good, where there is an archive | until archived |
//! | `post:{p}:retired` | zset | posts that are not on their author's list any more → since when they may be evicted (stamp) | until evicted |
//! | `post:{p}:ended` | zset | deleted posts that were on no list → when (stamp) | 24 h |
//! | `post:{p}:horizon` | string | the newest post that was ever retired | for ever |
//! | `post:{p}:restoring:<id>` | string | who brings the post back from the archive | 10 s |
//! | `post:{p}:restored_likes:<id>` · `restored_comments` · `restored_comment_bodies` · `restored_reposts` | as those without `restored_` | what was brought back so far | 40 s |
//! | `post:{0}:archiver` · `post:{0}:mover` · `post:{0}:eraser` | string | which process archives, which one moves, which one erases | 10 s |
//! | `post:{0}:erasure` | string | the run that erases what deleted accounts wrote, how far it is, and up to 500 accounts ([`erasure`](crate::erasure)) | until done |
//! | `post:{p}:erasing` | string | the last run of those, and what it keeps posts from: `1`, `2`: leaving Redis; `0`: nothing | for ever |
//! | `post:{p}:request:<author>:<uuid>` | string | the post that a request made | 24 h |
//! | `post:{p}:comment_admission:<author>:<uuid>` | string | in the author's partition: the post on which a request may comment | 24 h |
//! | `post:{p}:comment_request:<author>:<uuid>` | string | in the post's partition: the comment that a request made | 24 h |
//! | `post:{p}:pace:<author>` · `comment_pace:<author>` | string | when the author's posts (comments) so far would be done at an even pace, in µs | a minute |
//! | `post:{p}:restore_pace:<account>` | string | likewise of the posts that the account had brought back from the archive | a minute |
//! | `post:{p}:clock` | string | the last tick of the partition's clock | for ever |
//! | `post:{p}:authors` | set (intset) | the partition's authors, for `Verify` alone | until forgotten |
//! | `post:{p}:forgotten` | set (intset) | deleted accounts of the partition | for ever |
//! | `post:{p}:forgetting` | zset | those of them that are still being erased → since | until done |

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

keys!(PostId: post likes comments comment_bodies reposts unreposted restoring);
keys!(PostId: restored_likes restored_comments restored_comment_bodies restored_reposts);
keys!(UserId: posts pace comment_pace restore_pace);

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

keys_of_partition!(outbox pending clock authors forgotten forgetting);
keys_of_partition!(unarchived retired ended horizon erasing);

/// Returns the post that a key is of.
pub(crate) fn id_of_post(key: &[u8]) -> Option<PostId> {
    PostId::new(number_behind("}:post:", key)?)
}

/// Returns the keys of a post and of all that it has gathered, in the order in which functions take
/// them.
pub(crate) fn of_post(id: PostId) -> [String; 5] {
    [post(id), likes(id), comments(id), comment_bodies(id), reposts(id)]
}

/// Returns the key that says which process does a job.
pub(crate) fn job(name: &str) -> String {
    key(format_args!("post:{{{}}}:{name}", Partition::new(0)))
}

/// Returns what the keys of a partition's posts begin with: the function that issues an id writes
/// the post under it.
pub(crate) fn post_prefix(partition: Partition) -> String {
    of(partition, "post", "")
}

/// Returns the key of the post that a request made.
pub(crate) fn request(author: UserId, request: RequestId) -> String {
    of(author.partition(), "request", format_args!("{author}:{request}"))
}

/// Returns the key that lets a request comment, in the author's partition.
pub(crate) fn comment_admission(author: UserId, request: RequestId) -> String {
    of(author.partition(), "comment_admission", format_args!("{author}:{request}"))
}

/// Returns the key of the comment that a request made, in the post's partition.
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
