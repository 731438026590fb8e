//! How a post knows of its reposts, which lie in other partitions.

use microblog_domain::PostId;

/// A repost, and one of the posts that count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backlink {
    /// The repost.
    pub repost: PostId,
    /// The post that is to know.
    pub target: PostId,
}

/// What is told to a post that counts a repost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BacklinkUpdate {
    /// Of which repost, to which post.
    pub backlink: Backlink,
    /// The version of the change: the repost's id, or the stamp of its end.
    pub version: u64,
    /// Whether the repost exists.
    pub exists: bool,
}
