//! Changes that the archiver writes to the archive.

use microblog_domain::{CommentId, PostId};

use crate::{comment::Comment, post::Content};

/// Changes to archive.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Created posts.
    pub posts: Vec<(PostId, Content)>,
    /// Deleted posts, with the stamps of their deletion.
    pub deleted_posts: Vec<(PostId, u64)>,
    /// Created comments.
    pub comments: Vec<Comment>,
    /// Deleted comments, with the stamps of their deletion.
    pub deleted_comments: Vec<(PostId, CommentId, u64)>,
}
