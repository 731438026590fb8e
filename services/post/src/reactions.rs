//! Likes and comments. A change of an archived post restores it to Redis; a like or unlike that
//! would change nothing is answered from the archive.
//!
//! A comment lies in its post's partition, its author's rate limit in the author's. So adding takes
//! two steps. The first admits the request in the author's partition and stores its idempotency
//! key. The second adds the comment and its count in the post's partition. A crash in between only
//! costs one unit of the rate limit: the repeated request is admitted again, and adds the comment.

use microblog_domain::{CommentId, PostId, RequestId, UserId};

use crate::{
    error::Error,
    post::{Comment, CommentContent, Reply},
    store::{AddedComment, CommentAdmission},
    tiered_store::{ATTEMPTS, TieredStore},
};

/// Likes and unlikes posts; adds and deletes comments.
#[derive(Clone)]
pub struct Reactions {
    tiered: TieredStore,
}

impl Reactions {
    /// Returns the operations on a tiered store.
    pub fn new(tiered: TieredStore) -> Self {
        Self { tiered }
    }

    /// Likes a post. Idempotent: returns since when (stamp) the account likes it, and the number of
    /// likes.
    pub async fn like(&self, user: UserId, id: PostId) -> Result<(u64, u64), Error> {
        for _ in 0..ATTEMPTS {
            if let Some(liked) = self.tiered.store().like(user, id).await? {
                return Ok(liked);
            }
            if let Some((likes, Some(since))) = self.tiered.archived_like(user, id).await? {
                return Ok((since, likes));
            }
            if !self.tiered.restore_for(user, id).await? {
                return Err(Error::PostNotFound);
            }
        }
        Err(Error::RetriesExhausted)
    }

    /// Unlikes a post. Returns the number of likes; 0 if there is no such post.
    pub async fn unlike(&self, user: UserId, id: PostId) -> Result<u64, Error> {
        for _ in 0..ATTEMPTS {
            if let Some(likes) = self.tiered.store().unlike(user, id).await? {
                return Ok(likes);
            }
            if let Some((likes, None)) = self.tiered.archived_like(user, id).await? {
                return Ok(likes);
            }
            if !self.tiered.restore_for(user, id).await? {
                return Ok(0);
            }
        }
        Err(Error::RetriesExhausted)
    }

    /// Adds a comment, or returns the one that the same request added.
    pub async fn add_comment(
        &self,
        author: UserId,
        request: RequestId,
        post: PostId,
        text: String,
        in_reply_to: Option<CommentId>,
    ) -> Result<Comment, Error> {
        match self.tiered.store().admit_comment(post, author, request).await? {
            CommentAdmission::Admitted => {}
            CommentAdmission::RequestReused => return Err(Error::RequestReused),
            CommentAdmission::Throttled(wait) => return Err(Error::CommentsThrottled(wait)),
            CommentAdmission::AccountDeleted => return Err(Error::AccountDeleted),
        }
        for _ in 0..ATTEMPTS {
            match self.add_in_redis(author, request, post, &text, in_reply_to).await {
                Err(Error::PostNotFound) if self.tiered.restore_for(author, post).await? => {}
                added => return added,
            }
        }
        Err(Error::RetriesExhausted)
    }

    // Adds a comment to a post that is in Redis. Fails with PostNotFound if the post is not in
    // Redis, and adding would succeed after a restore.
    async fn add_in_redis(
        &self,
        author: UserId,
        request: RequestId,
        post: PostId,
        text: &str,
        in_reply_to: Option<CommentId>,
    ) -> Result<Comment, Error> {
        let store = self.tiered.store();
        let in_reply_to = match in_reply_to {
            None => None,
            Some(to) => match self.comment(post, to).await? {
                Some(answered) => Some(Reply { to, author: answered.content.author }),
                None => {
                    // A repeated request may reply to a comment that has since been deleted.
                    let made = store.comment_by_request(post, author, request).await?;
                    let Some(id) = made else { return Err(Error::CommentNotFound) };
                    store.await_changes(post.partition()).await?;
                    return self.existing_comment(post, id, author, text, Some(to)).await;
                }
            },
        };
        let content = CommentContent { author, text: text.to_owned(), in_reply_to };
        match store.add_comment(post, &content, request).await? {
            AddedComment::New(id) => Ok(Comment { id, post, content }),
            AddedComment::Existing(id) => {
                let to = in_reply_to.map(|reply| reply.to);
                self.existing_comment(post, id, author, text, to).await
            }
            AddedComment::PostNotFound => Err(Error::PostNotFound),
            AddedComment::CommentNotFound => Err(Error::CommentNotFound),
        }
    }

    // Finds a comment in either tier. Reads do not restore the post.
    async fn comment(&self, post: PostId, id: CommentId) -> Result<Option<Comment>, Error> {
        let comment = self.tiered.comments(post, &[id]).await?.pop();
        if comment.is_none() && self.tiered.exist(&[post]).await? != [true] {
            return Err(Error::PostNotFound);
        }
        Ok(comment)
    }

    // Returns the comment that the request made before; fails if that request differed.
    async fn existing_comment(
        &self,
        post: PostId,
        id: CommentId,
        author: UserId,
        text: &str,
        in_reply_to: Option<CommentId>,
    ) -> Result<Comment, Error> {
        let known = self.comment(post, id).await?.ok_or(Error::CommentNotFound)?;
        let content = &known.content;
        let answered = content.in_reply_to.map(|reply| reply.to);
        if (content.author, content.text.as_str(), answered) == (author, text, in_reply_to) {
            Ok(known)
        } else {
            Err(Error::RequestReused)
        }
    }

    /// Deletes a comment on behalf of its author or the post's author. Does nothing if there is
    /// none.
    pub async fn delete_comment(
        &self,
        user: UserId,
        post: PostId,
        id: CommentId,
    ) -> Result<(), Error> {
        let store = self.tiered.store();
        let Some(comment) = self.tiered.comments(post, &[id]).await?.pop() else {
            return Ok(store.await_changes(post.partition()).await?);
        };
        if comment.content.author != user {
            // If the post is deleted, so are its comments.
            let Some(post) = self.tiered.post(post, None).await? else {
                return Ok(store.await_changes(post.partition()).await?);
            };
            if post.content.author != user {
                return Err(Error::NotTheAuthor);
            }
        }
        for _ in 0..ATTEMPTS {
            if store.delete_comment(post, id).await? || !self.tiered.restore_for(user, post).await?
            {
                break;
            }
        }
        // If no attempt found the comment on its post, another call deleted it.
        Ok(())
    }
}
