//! What a comment is.

use microblog_domain::{CommentId, PostId, UserId};

/// A comment on a post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// Its id, which tells when it was made.
    pub id: CommentId,
    /// What it is a comment on.
    pub post: PostId,
    /// What it says.
    pub content: CommentContent,
}

/// What a comment says. It never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommentContent {
    /// Who wrote it.
    pub author: UserId,
    /// Its text, which is not empty.
    pub text: String,
    /// The comment that it answers.
    pub in_reply_to: Option<Reply>,
}

/// The comment that another one answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Which comment of the same post.
    pub to: CommentId,
    /// Who wrote it.
    pub author: UserId,
}
