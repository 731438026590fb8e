//! The snapshot of a post, as it moves between Redis and the archive.

use microblog_domain::PostId;
use microblog_keyspace::Entry;

use crate::{comment::Comment, post::Post};

/// A post with all entries of its lists, as of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The post, without a viewer.
    pub post: Post,
    /// The eviction mark, a stamp. The snapshot with the later mark wins.
    pub mark: u64,
    /// Accounts that like it, and since when (stamp).
    pub likes: Vec<Entry>,
    /// The comments.
    pub comments: Vec<Comment>,
    /// The reposts.
    pub reposts: Vec<PostId>,
}
