//! The lists of a post, and its comments.

use std::collections::HashMap;

use microblog_domain::{CommentId, PostId};
use microblog_keyspace::{Entry, Page};

use super::{ATTEMPTS, TieredStore};
use crate::{
    comment::Comment,
    error::Error,
    store::{List, Presence},
};

impl TieredStore {
    /// Returns a page of a post's list.
    pub async fn list(
        &self,
        list: List,
        id: PostId,
        after: Option<Entry>,
        count: usize,
    ) -> Result<Page, Error> {
        for _ in 0..ATTEMPTS {
            let page = self.store.list(list, id, after, count).await?;
            // What belongs to a post goes with it: only an empty page leaves open where that is.
            if !page.entries.is_empty() {
                return Ok(page);
            }
            match self.store.presence(list, id).await? {
                Presence::Empty => return Ok(page),
                // It may have come back just now; otherwise this is behind the last entry.
                Presence::Listed => {
                    let page = self.store.list(list, id, after, count).await?;
                    if !page.entries.is_empty()
                        || self.store.presence(list, id).await? == Presence::Listed
                    {
                        return Ok(page);
                    }
                }
                Presence::Absent => return self.archived_list(list, id, after, count).await,
            }
        }
        Err(Error::RetriesExhausted)
    }

    async fn archived_list(
        &self,
        list: List,
        id: PostId,
        after: Option<Entry>,
        count: usize,
    ) -> Result<Page, Error> {
        if self.archived(&[id], None).await?.is_empty() {
            return Err(Error::PostNotFound);
        }
        let archive = self.archive()?;
        let mut entries = match list {
            List::Likers => archive.likers(id, after, count + 1).await?,
            List::Reposts => archive.reposts(id, after, count + 1).await?,
            List::Comments(order) => archive.comment_ids(id, order, after, count + 1).await?,
        };
        let more = entries.len() > count;
        entries.truncate(count);
        Ok(Page { entries, more })
    }

    /// Returns those of some comments on a post that exist and can be read, in the order asked for.
    pub async fn comments(&self, post: PostId, ids: &[CommentId]) -> Result<Vec<Comment>, Error> {
        if let Some(comments) = self.comments_in_redis(post, ids).await? {
            return Ok(comments);
        }
        if self.archived(&[post], None).await?.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.archive()?.comments(post, ids).await?;
        let mut found: HashMap<_, _> =
            found.into_iter().map(|comment| (comment.id, comment)).collect();
        Ok(ids.iter().filter_map(|id| found.remove(id)).collect())
    }

    /// Returns the same where the post is in Redis; `None` where it is not.
    pub(crate) async fn comments_in_redis(
        &self,
        post: PostId,
        ids: &[CommentId],
    ) -> Result<Option<Vec<Comment>>, Error> {
        let comments = self.store.comments(post, ids).await?;
        if !comments.is_empty() || ids.is_empty() {
            return Ok(Some(comments));
        }
        if self.store.exist(&[post]).await? != [true] {
            return Ok(None);
        }
        // It may have come back just now.
        Ok(Some(self.store.comments(post, ids).await?))
    }
}
