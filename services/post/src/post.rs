//! What a post is.

use microblog_domain::{PostId, UserId};

/// What a post says. It never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Who wrote it.
    pub author: UserId,
    /// Its text. Empty only of a repost.
    pub text: String,
    /// Of a repost, what it repeats.
    pub origin: Option<Origin>,
}

/// What a repost repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The post at the beginning, which is no repost itself.
    pub root: PostId,
    /// The post that was reposted: the root, or another repost of it.
    pub reposted: PostId,
}

impl Origin {
    /// Returns the posts that count the repost: the root, and the one that was reposted.
    pub fn counted_by(self) -> impl Iterator<Item = PostId> {
        [self.root].into_iter().chain((self.reposted != self.root).then_some(self.reposted))
    }
}

impl Content {
    /// Returns the posts that count this one among their reposts.
    pub fn counted_by(&self) -> impl Iterator<Item = PostId> {
        self.origin.into_iter().flat_map(Origin::counted_by)
    }
}

/// A post, as a viewer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    /// Its id, which tells when it was made.
    pub id: PostId,
    /// What it says.
    pub content: Content,
    /// What it has gathered.
    pub counts: Counts,
    /// Whether the viewer likes it.
    pub liked: bool,
}

/// What a post has gathered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each says what it counts")]
pub struct Counts {
    pub likes: u64,
    pub comments: u64,
    pub reposts: u64,
}

/// How many entries a post's lists have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListLengths {
    /// Likes, comments and reposts.
    pub counts: Counts,
    /// Contents of comments.
    pub comment_bodies: u64,
}

/// A post with what it repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithRoot {
    /// The post.
    pub post: Post,
    /// Its root.
    pub root: Root,
}

/// What a post repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// Nothing: it is no repost.
    None,
    /// This post.
    Post(Post),
    /// A post that is deleted.
    Deleted,
    /// A post that is in the archive, which does not answer.
    Unknown,
}
