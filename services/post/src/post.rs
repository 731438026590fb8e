//! What posts, comments and likes are.

use microblog_domain::{CommentId, PostId, UserId};

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

/// A post with what it repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithRoot {
    /// The post.
    pub post: Post,
    /// Its root. `None` of what is no repost, and where it is deleted.
    pub root: Option<Post>,
}

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

/// A repost that came or went, and one of the posts that count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Telling {
    /// The repost.
    pub repost: PostId,
    /// The post that is to know.
    pub target: PostId,
}

/// What is told to the post that counts a repost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Of which repost, to whom.
    pub telling: Telling,
    /// The version of the change: the repost's id, or the stamp of its end.
    pub version: u64,
    /// Whether the repost exists.
    pub exists: bool,
}

/// What a step did, as the functions number it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// It was done before, or there was nothing to do.
    Unchanged,
    /// It was done before, and steps that follow it may not have been.
    Open,
    /// What it is about is not there.
    NotFound,
    /// The author has to wait.
    Throttled,
    /// The author's account is deleted.
    Forgotten,
}

impl Outcome {
    /// Returns the outcome with the functions' number.
    pub(crate) const fn from_number(number: i64) -> Option<Self> {
        Some(match number {
            0 => Self::Done,
            1 => Self::Unchanged,
            2 => Self::Open,
            3 => Self::NotFound,
            4 => Self::Throttled,
            5 => Self::Forgotten,
            _ => return None,
        })
    }
}
