//! The domain type of a comment.

use microblog_domain::{CommentId, PostId, UserId};

/// A comment on a post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// The id, which contains the time of creation.
    pub id: CommentId,
    /// The post.
    pub post: PostId,
    /// The content.
    pub content: CommentContent,
}

/// The immutable content of a comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommentContent {
    /// The author.
    pub author: UserId,
    /// The text, which is not empty.
    pub text: String,
    /// The comment that this one replies to.
    pub in_reply_to: Option<Reply>,
}

/// The comment that a reply answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its id, on the same post.
    pub to: CommentId,
    /// Its author.
    pub author: UserId,
}
