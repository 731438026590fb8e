//! Client of the post service, which has the complete list of an author's posts.

use std::time::SystemTime;

use futures::future::try_join_all;
use microblog_chassis::{Peer, context};
use microblog_domain::{BATCH_MAX, PageSize, PostId, UserId};
use microblog_proto::post::{
    ListAuthorsPostsRequest, Post, PostServicePeer, RedeliverPostsRequest,
};
use tonic::Code;

use crate::{entry::Entry, error::Error, list::HOME_MAX, peer};

/// The newest posts of some authors, merged.
pub(crate) struct AuthorPosts {
    /// The authors.
    pub(crate) authors: Vec<UserId>,
    /// Their posts, newest first.
    pub(crate) entries: Vec<Entry>,
    /// The post down to which no post is missing; `None` if there are no others.
    pub(crate) known_down_to: Option<PostId>,
}

/// The posts of authors.
#[derive(Clone)]
pub(crate) struct PostLists {
    post: PostServicePeer<Peer>,
}

impl PostLists {
    pub(crate) fn new(post: Peer) -> Self {
        Self { post: PostServicePeer::new(post) }
    }

    /// Returns the newest posts of authors, in batches of 500 authors: the 800 newest of a batch, or
    /// all. At most four calls or so for each batch, one after the other; batches concurrently.
    pub(crate) async fn newest(&self, authors: &[UserId]) -> Result<Vec<AuthorPosts>, Error> {
        try_join_all(authors.chunks(BATCH_MAX).map(|authors| self.newest_of_batch(authors))).await
    }

    /// Has the posts delivered again that were delivered since a time.
    pub(crate) async fn redeliver(&self, since: SystemTime) -> Result<(), Error> {
        let request = RedeliverPostsRequest { since: Some(since.into()) };
        // Background jobs act for no caller.
        let call = context::as_system(self.post.redeliver_posts(request));
        match peer::call(call).await {
            // An older version remembers no deliveries.
            Err(status) if status.code() == Code::Unimplemented => Ok(()),
            redelivered => redelivered.map(drop).map_err(Error::Post),
        }
    }

    async fn newest_of_batch(&self, authors: &[UserId]) -> Result<AuthorPosts, Error> {
        let (mut entries, mut before_id) = (Vec::new(), 0);
        loop {
            let request = ListAuthorsPostsRequest {
                author_ids: authors.iter().map(|author| author.get()).collect(),
                viewer_id: 0,
                page_size: PageSize::MAX as i32,
                before_id,
                after_id: 0,
            };
            let page = peer::call(self.post.list_authors_posts(request)).await;
            let page = page.map_err(Error::Post)?;
            entries.extend(page.posts.iter().filter_map(entry));
            before_id = page.next_before_id;
            if before_id == 0 || entries.len() >= HOME_MAX {
                let known_down_to = PostId::new(before_id);
                return Ok(AuthorPosts { authors: authors.to_vec(), entries, known_down_to });
            }
        }
    }
}

fn entry(post: &Post) -> Option<Entry> {
    Some(Entry {
        post: PostId::new(post.id)?,
        author: UserId::new(post.author_id)?,
        root: PostId::new(post.root_id),
        has_text: !post.text.is_empty(),
    })
}
