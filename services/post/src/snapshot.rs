//! A post as it is archived.

use microblog_domain::PostId;
use microblog_keyspace::Entry;

use crate::{comment::Comment, post::Post};

/// A post with all that it has gathered, as of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The post. Nobody views it.
    pub post: Post,
    /// The stamp of the moment. Of two, the later one counts.
    pub mark: u64,
    /// Who likes it, since when.
    pub likes: Vec<Entry>,
    /// The comments on it.
    pub comments: Vec<Comment>,
    /// What repeats it.
    pub reposts: Vec<PostId>,
}
