//! Backlinks: the entries of reposts in the posts that count them, which lie in other partitions.

use microblog_domain::PostId;

/// A repost, and one of the posts that count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backlink {
    /// The repost.
    pub repost: PostId,
    /// The post that counts it.
    pub target: PostId,
}

/// An update of a backlink, sent to the target's partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BacklinkUpdate {
    /// The backlink.
    pub backlink: Backlink,
    /// The version of the update: the repost's id, or the stamp of its deletion.
    pub version: u64,
    /// Whether the repost exists.
    pub exists: bool,
}
