//! The lists and comments of a post, across Redis and the archive.

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
            // A post is evicted with its lists: only an empty page may mean that they are archived.
            if !page.entries.is_empty() {
                return Ok(page);
            }
            match self.store.presence(list, id).await? {
                Presence::Empty => return Ok(page),
                // A restore may have happened in between; otherwise the cursor is behind the last
                // entry.
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

    /// Returns the existing, readable comments among some on a post, in the given order.
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

    /// Likewise from Redis alone; `None` if the post is not there.
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
        // A restore may have happened in between.
        Ok(Some(self.store.comments(post, ids).await?))
    }
}
