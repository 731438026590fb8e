//! The services whose change feeds this service follows, and what it asks them.

use std::{collections::HashMap, time::Duration};

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use microblog_chassis::{Peer, context::as_system, status};
use microblog_domain::{BATCH_MAX, Stamp};
use microblog_proto::{
    common::{ErrorReason, FeedPage, FeedQuery},
    post::{self, Comment, Post, PostServicePeer},
    relation::{self, RelationServicePeer},
    user::{self, UserServicePeer},
};
use tokio::time::timeout;
use tonic::{Response, Status, Streaming};

use crate::feed::Source;

/// The timeout of a response, and of the opening of a stream.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest time without a message of a feed, which has one every five seconds.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// The services that this service calls.
#[derive(Clone)]
pub struct Peers {
    /// Accounts and names.
    pub user: Peer,
    /// The follow graph.
    pub relation: Peer,
    /// Posts, comments and likes.
    pub post: Peer,
}

/// The pages of a change feed. It has no end but an error.
pub(crate) type Pages = BoxStream<'static, Result<FeedPage, Status>>;

impl Peers {
    fn user(&self) -> UserServicePeer<Peer> {
        UserServicePeer::new(self.user.clone())
    }

    fn relation(&self) -> RelationServicePeer<Peer> {
        RelationServicePeer::new(self.relation.clone())
    }

    fn post(&self) -> PostServicePeer<Peer> {
        PostServicePeer::new(self.post.clone())
    }

    /// Follows the change feed of a service.
    pub(crate) async fn feed(&self, source: Source, query: FeedQuery) -> Result<Pages, Status> {
        let query = Some(query);
        match source {
            Source::User => {
                let request = user::StreamChangesRequest { query };
                pages(self.user().stream_changes(request), |response| response.page).await
            }
            Source::Relation => {
                let request = relation::StreamChangesRequest { query };
                pages(self.relation().stream_changes(request), |response| response.page).await
            }
            Source::Post => {
                let request = post::StreamChangesRequest { query };
                pages(self.post().stream_changes(request), |response| response.page).await
            }
        }
    }

    /// Returns the posts that exist.
    pub(crate) async fn posts(&self, ids: Vec<u64>) -> Result<Vec<Post>, Status> {
        let mut posts = Vec::with_capacity(ids.len());
        for part in ids.chunks(BATCH_MAX) {
            let mut post_ids = part.to_vec();
            while !post_ids.is_empty() {
                let request =
                    post::BatchGetPostsRequest { post_ids, viewer_id: 0, allow_partial: true };
                let response = call(self.post().batch_get_posts(request)).await?;
                if !response.unavailable_ids.is_empty() {
                    return Err(Status::unavailable("the archive is unavailable"));
                }
                posts.extend(response.posts);
                post_ids = response.remaining_ids;
            }
        }
        Ok(posts)
    }

    /// Returns a comment, if it exists.
    pub(crate) async fn comment(
        &self,
        post_id: u64,
        comment_id: u64,
    ) -> Result<Option<Comment>, Status> {
        let request = post::GetCommentRequest { post_id, comment_id };
        match call(self.post().get_comment(request)).await {
            Ok(response) => Ok(response.comment),
            Err(status) if status::reason_of(&status) == Some(ErrorReason::CommentNotFound) => {
                Ok(None)
            }
            Err(status) => Err(status),
        }
    }

    /// Returns the accounts of names.
    pub(crate) async fn named(&self, names: Vec<String>) -> Result<HashMap<String, u64>, Status> {
        let mut named = HashMap::new();
        for part in names.chunks(BATCH_MAX) {
            let request = user::BatchResolveNamesRequest { names: part.to_vec() };
            let response = call(self.user().batch_resolve_names(request)).await?;
            named.extend(response.users.into_iter().map(|one| (one.name, one.user_id)));
        }
        Ok(named)
    }

    /// Returns whether an account follows another one, and did at the time of a version.
    pub(crate) async fn has_followed_before(
        &self,
        follower: u64,
        target: u64,
        version: u64,
    ) -> Result<bool, Status> {
        let request = relation::BatchGetRelationsRequest {
            viewer_id: follower,
            target_ids: vec![target],
            include_following_since: true,
            ..Default::default()
        };
        let response = call(self.relation().batch_get_relations(request)).await?;
        let since = response.following_since.first().and_then(|one| one.since);
        let since = since.and_then(|since| std::time::SystemTime::try_from(since).ok());
        Ok(since.zip(Stamp::new(version)).is_some_and(|(since, version)| since <= version.time()))
    }
}

/// Returns the message of a response. Background jobs act for no caller.
async fn call<T>(response: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Status> {
    within(as_system(response)).await.map(Response::into_inner)
}

async fn pages<R: Send + 'static>(
    opening: impl Future<Output = Result<Response<Streaming<R>>, Status>>,
    page: fn(R) -> Option<FeedPage>,
) -> Result<Pages, Status> {
    let responses = within(as_system(opening)).await?.into_inner();
    let next = move |mut responses: Streaming<R>| async move {
        let message = timeout(SILENCE_MAX, responses.message()).await;
        let message = message.unwrap_or_else(|_| Err(Status::unavailable("the feed is silent")))?;
        let page = message.and_then(page);
        let page = page.ok_or_else(|| Status::unavailable("the feed has ended"))?;
        Ok(Some((page, responses)))
    };
    Ok(stream::try_unfold(responses, next).boxed())
}

async fn within<T>(answer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let answer = timeout(RESPONSE_TIMEOUT, answer).await;
    answer.unwrap_or_else(|_| Err(Status::unavailable("the service timed out")))
}
