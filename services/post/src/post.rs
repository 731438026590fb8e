//! The domain type of a post.

use microblog_domain::{PostId, UserId};

/// The immutable content of a post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The author.
    pub author: UserId,
    /// The text. Only a repost may have none.
    pub text: String,
    /// The reposted posts, if this is a repost.
    pub origin: Option<Origin>,
}

/// The posts that a repost refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The root: a post that is not a repost.
    pub root: PostId,
    /// The post that was reposted: the root, or another repost of it.
    pub reposted: PostId,
}

impl Origin {
    /// Returns the posts whose repost counts include this one: the root and the reposted post.
    pub fn counted_by(self) -> impl Iterator<Item = PostId> {
        [self.root].into_iter().chain((self.reposted != self.root).then_some(self.reposted))
    }
}

impl Content {
    /// Returns the posts whose repost counts include this one; none if it is not a repost.
    pub fn counted_by(&self) -> impl Iterator<Item = PostId> {
        self.origin.into_iter().flat_map(Origin::counted_by)
    }
}

/// A post, as a viewer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    /// The id, which contains the time of creation.
    pub id: PostId,
    /// The content.
    pub content: Content,
    /// The counts.
    pub counts: Counts,
    /// Whether the viewer likes it.
    pub liked: bool,
}

/// The counts of a post.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each says what it counts")]
pub struct Counts {
    pub likes: u64,
    pub comments: u64,
    pub reposts: u64,
}

/// The actual lengths of a post's lists, which its counts must equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListLengths {
    /// Entries of the lists of likes, comments and reposts.
    pub counts: Counts,
    /// Bodies of comments.
    pub comment_bodies: u64,
}

/// A post and its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithRoot {
    /// The post.
    pub post: Post,
    /// Its root.
    pub root: Root,
}

/// The root of a repost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// The post is not a repost.
    None,
    /// The root.
    Post(Post),
    /// The root is deleted.
    Deleted,
    /// The root may be in the archive, which is unavailable.
    Unknown,
}

/// A page of the newest posts of some authors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PostPage {
    /// The posts, newest first.
    pub ids: Vec<PostId>,
    /// The cursor: there may be more posts below it. `None` at the end.
    pub next: Option<PostId>,
}
