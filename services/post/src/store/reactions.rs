//! Likes and comments, and the lists of a post.

use std::time::Duration;

use microblog_domain::{CommentId, PostId, RequestId, UserId};
use microblog_keyspace::{Batch, Call, Entry, Error, Order, Page, decode, redis::cmd};

use super::{
    REQUEST_TTL, Store,
    body::CommentBody,
    decode::{Outcome, malformed, stamp, wait},
};
use crate::{
    keys,
    post::{Comment, CommentContent},
};

/// The result of adding a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddedComment {
    /// It was added.
    New(CommentId),
    /// The same request added one before.
    Existing(CommentId),
    /// There is no such post.
    PostNotFound,
    /// There is no such comment to reply to.
    CommentNotFound,
}

/// The result of admitting a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommentAdmission {
    /// The request is admitted.
    Admitted,
    /// The request was admitted for another post.
    RequestReused,
    /// The rate limit is exceeded; retry after this time.
    Throttled(Duration),
    /// The account is deleted.
    AccountDeleted,
}

/// A list of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Accounts that like it, newest first.
    Likers,
    /// Its reposts, newest first.
    Reposts,
    /// Its comments.
    Comments(Order),
}

/// Whether a post and one of its lists exist, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The post is not in Redis.
    Absent,
    /// The list is empty.
    Empty,
    /// The list has entries.
    Listed,
}

impl List {
    fn key(self, id: PostId) -> String {
        match self {
            Self::Likers => keys::likes(id),
            Self::Reposts => keys::reposts(id),
            Self::Comments(_) => keys::comments(id),
        }
    }

    fn order(self) -> Order {
        match self {
            Self::Likers | Self::Reposts => Order::Newest,
            Self::Comments(order) => order,
        }
    }
}

impl Store {
    /// Likes a post. Idempotent: returns since when (stamp) the account likes it, and the number of
    /// likes; `None` if there is no such post.
    pub async fn like(&self, user: UserId, id: PostId) -> Result<Option<(u64, u64)>, Error> {
        let partition = id.partition();
        let call = Call::new("post_like")
            .key(keys::post(id))
            .key(keys::likes(id))
            .journal(partition, keys::journal(partition))
            .arg(id.get())
            .arg(user.get());
        let (done, since, likes): (i64, i64, u64) = self.keyspace.call(call).await?;
        match Outcome::read(done)? {
            Outcome::Done | Outcome::Unchanged => Ok(Some((stamp(since)?, likes))),
            Outcome::NotFound => Ok(None),
            other => Err(other.unexpected()),
        }
    }

    /// Unlikes a post. Returns the number of likes; `None` if there is no such post.
    pub async fn unlike(&self, user: UserId, id: PostId) -> Result<Option<u64>, Error> {
        let partition = id.partition();
        let call = Call::new("post_unlike")
            .key(keys::post(id))
            .key(keys::likes(id))
            .journal(partition, keys::journal(partition))
            .arg(id.get())
            .arg(user.get());
        let (done, likes): (i64, u64) = self.keyspace.call(call).await?;
        match Outcome::read(done)? {
            Outcome::Done | Outcome::Unchanged => Ok(Some(likes)),
            Outcome::NotFound => Ok(None),
            other => Err(other.unexpected()),
        }
    }

    /// Admits a comment under the author's rate limit: the first step, in the author's partition. A
    /// repeated request is admitted again.
    pub async fn admit_comment(
        &self,
        post: PostId,
        author: UserId,
        request: RequestId,
    ) -> Result<CommentAdmission, Error> {
        let partition = author.partition();
        let call = Call::new("post_admit_comment")
            .key(keys::comment_admission(author, request))
            .key(keys::comment_rate(author))
            .key(keys::forgotten(partition))
            .arg(author.get())
            .arg(post.get())
            .arg(self.comments_per_minute)
            .arg(REQUEST_TTL.as_secs());
        let (done, milliseconds): (i64, i64) = self.keyspace.call(call).await?;
        match Outcome::read(done)? {
            Outcome::Done | Outcome::Unchanged => Ok(CommentAdmission::Admitted),
            Outcome::NotFound => Ok(CommentAdmission::RequestReused),
            Outcome::Throttled => Ok(CommentAdmission::Throttled(wait(milliseconds))),
            Outcome::AccountDeleted => Ok(CommentAdmission::AccountDeleted),
            other @ Outcome::Incomplete => Err(other.unexpected()),
        }
    }

    /// Returns the comment that a request made on a post.
    pub async fn comment_by_request(
        &self,
        post: PostId,
        author: UserId,
        request: RequestId,
    ) -> Result<Option<CommentId>, Error> {
        let get = cmd("GET").arg(keys::comment_request(post, author, request)).take();
        let made: Option<u64> = self.keyspace.query(get).await?;
        made.map(|id| CommentId::new(id).ok_or_else(|| malformed("comment id"))).transpose()
    }

    /// Adds a comment to a post: the second step, in the post's partition.
    pub async fn add_comment(
        &self,
        id: PostId,
        content: &CommentContent,
        request: RequestId,
    ) -> Result<AddedComment, Error> {
        let partition = id.partition();
        let call = Call::new("post_add_comment")
            .key(keys::clock(partition))
            .key(keys::comment_request(id, content.author, request))
            .key(keys::post(id))
            .key(keys::comments(id))
            .key(keys::comment_bodies(id))
            .journal(partition, keys::journal(partition))
            .issuing(partition)
            .arg(id.get())
            .arg(CommentBody::write(content))
            .arg(content.in_reply_to.map_or(0, |reply| reply.to.get()))
            .arg(REQUEST_TTL.as_secs())
            .arg(content.author.get())
            .arg(request.to_string());
        let (done, number): (i64, i64) = self.keyspace.call(call).await?;
        let made = || {
            let id = u64::try_from(number).ok().and_then(CommentId::new);
            id.ok_or_else(|| malformed("comment id"))
        };
        match Outcome::read(done)? {
            Outcome::Done => Ok(AddedComment::New(made()?)),
            Outcome::Unchanged => Ok(AddedComment::Existing(made()?)),
            Outcome::NotFound if number == 0 => Ok(AddedComment::PostNotFound),
            Outcome::NotFound => Ok(AddedComment::CommentNotFound),
            other => Err(other.unexpected()),
        }
    }

    /// Deletes a comment. Returns whether it existed.
    pub async fn delete_comment(&self, post: PostId, id: CommentId) -> Result<bool, Error> {
        let call = comment_call("post_delete_comment", post, id);
        match Outcome::read(self.keyspace.call(call).await?)? {
            Outcome::Done => Ok(true),
            Outcome::NotFound => Ok(false),
            other => Err(other.unexpected()),
        }
    }

    /// Returns the existing, readable comments among some, in the given order. One round trip to each
    /// partition, sent together: a command for each sequence of comments on one post.
    pub async fn comments(&self, ids: &[(PostId, CommentId)]) -> Result<Vec<Comment>, Error> {
        let on_one_post = || ids.chunk_by(|(post, _), (next, _)| post == next);
        let mut batch = Batch::new();
        for ids in on_one_post() {
            let post = ids[0].0;
            let mut read = cmd("HMGET");
            read.arg(keys::comment_bodies(post));
            for (_, id) in ids {
                read.arg(id.get());
            }
            batch.query(post.partition(), read);
        }
        let mut comments = Vec::with_capacity(ids.len());
        for (ids, bodies) in on_one_post().zip(self.keyspace.send(batch).await?) {
            let bodies: Vec<Option<Vec<u8>>> = decode(bodies)?;
            comments.extend(ids.iter().zip(bodies).filter_map(comment));
        }
        Ok(comments)
    }

    /// Returns a page of a post's list.
    pub async fn list(
        &self,
        list: List,
        id: PostId,
        after: Option<Entry>,
        count: usize,
    ) -> Result<Page, Error> {
        self.page(list.key(id), list.order(), after, count).await
    }

    /// Returns whether a post and its list exist.
    pub async fn presence(&self, list: List, id: PostId) -> Result<Presence, Error> {
        // One command is atomic. There is no list without its post.
        let there: u8 =
            self.keyspace.query(cmd("EXISTS").arg(keys::post(id)).arg(list.key(id)).take()).await?;
        Ok(match there {
            0 => Presence::Absent,
            1 => Presence::Empty,
            _ => Presence::Listed,
        })
    }
}

/// Returns a call of a function that changes one comment, with the keys and arguments that these
/// functions share.
pub(super) fn comment_call(function: &'static str, post: PostId, id: CommentId) -> Call {
    let partition = post.partition();
    Call::new(function)
        .key(keys::clock(partition))
        .key(keys::post(post))
        .key(keys::comments(post))
        .key(keys::comment_bodies(post))
        .journal(partition, keys::journal(partition))
        .issuing(partition)
        .arg(post.get())
        .arg(id.get())
}

/// Decodes a comment; `None` if it is missing or malformed.
// A malformed comment must not hide the others.
fn comment((&(post, id), body): (&(PostId, CommentId), Option<Vec<u8>>)) -> Option<Comment> {
    let content = CommentBody::read(&body?).inspect_err(|_| {
        tracing::error!(post = post.get(), comment = id.get(), "malformed content of a comment");
    });
    Some(Comment { id, post, content: content.ok()? })
}
