//! The domain types: posts, reposts and comments.

use microblog_domain::{CommentId, PostId, RequestId, UserId};
use microblog_keyspace::Entry;

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

/// A repost, and one of the posts that count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backlink {
    /// The repost.
    pub repost: PostId,
    /// The post that counts it.
    pub target: PostId,
}

/// A request that made a post or a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeByRequest {
    /// The author.
    pub author: UserId,
    /// The request.
    pub request: RequestId,
    /// The id of the post or comment.
    pub id: u64,
    /// The post that was commented on.
    pub post: Option<PostId>,
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

/// A post with all entries of its lists, as of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The post, without a viewer.
    pub post: Post,
    /// Accounts that like it, and since when (stamp).
    pub likes: Vec<Entry>,
    /// The comments.
    pub comments: Vec<Comment>,
    /// The reposts.
    pub reposts: Vec<PostId>,
}
