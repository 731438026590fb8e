//! The domain types: posts, reposts and comments.

use microblog_domain::{CommentId, PostId, UserId};

/// The immutable content of a post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    /// The author.
    pub(crate) author: UserId,
    /// The text. Only a repost may have none.
    pub(crate) text: String,
    /// The reposted posts, if this is a repost.
    pub(crate) origin: Option<Origin>,
}

/// The posts that a repost refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The root: a post that is not a repost.
    pub(crate) root: PostId,
    /// The post that was reposted: the root, or another repost of it.
    pub(crate) reposted: PostId,
}

impl Origin {
    /// Reads the numbers of a row; `None` if it is no repost.
    pub(crate) fn read(root: u64, reposted: u64) -> Option<Self> {
        Some(Self { root: PostId::new(root)?, reposted: PostId::new(reposted)? })
    }

    /// Returns the posts whose repost counts include this one: the root and the reposted post.
    pub(crate) fn counted_by(self) -> impl Iterator<Item = PostId> {
        [self.root].into_iter().chain((self.reposted != self.root).then_some(self.reposted))
    }
}

/// A post, as a viewer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Post {
    /// The id, which contains the time of creation.
    pub(crate) id: PostId,
    /// The content.
    pub(crate) content: Content,
    /// The counts.
    pub(crate) counts: Counts,
    /// Whether the viewer likes it.
    pub(crate) liked: bool,
}

/// The counts of a post.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) likes: u64,
    pub(crate) comments: u64,
    pub(crate) reposts: u64,
}

/// A post and its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WithRoot {
    /// The post.
    pub(crate) post: Post,
    /// Its root.
    pub(crate) root: Root,
}

/// The root of a repost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// The post is not a repost.
    None,
    /// The root.
    Post(Post),
    /// The root is deleted.
    Deleted,
}

/// A comment on a post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Comment {
    /// The id, which contains the time of creation.
    pub(crate) id: CommentId,
    /// The post.
    pub(crate) post: PostId,
    /// The content.
    pub(crate) content: CommentContent,
}

/// The immutable content of a comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommentContent {
    /// The author.
    pub(crate) author: UserId,
    /// The text, which is not empty.
    pub(crate) text: String,
    /// The comment that this one replies to.
    pub(crate) in_reply_to: Option<Reply>,
}

/// The comment that a reply answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Its id, on the same post.
    pub(crate) to: CommentId,
    /// Its author.
    pub(crate) author: UserId,
}

impl Reply {
    /// Reads the numbers of a row; `None` if it is no reply.
    pub(crate) fn read(to: u64, author: u64) -> Option<Self> {
        Some(Self { to: CommentId::new(to)?, author: UserId::new(author)? })
    }
}
