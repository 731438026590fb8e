//! The services whose change feeds this service follows, and what it asks them.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, SystemTime},
};

use futures::{
    StreamExt as _,
    future::try_join_all,
    stream::{self, BoxStream},
};
use microblog_chassis::{Peer, context::as_system};
use microblog_domain::{BATCH_MAX, IdMap, Stamp};
use microblog_proto::{
    common::{FeedPage, FeedQuery},
    post::{self, CommentKey, Post, PostServicePeer},
    relation::{self, RelationServicePeer},
    user::{self, UserServicePeer},
};
use tokio::time::timeout;
use tonic::{Response, Status, Streaming};

use crate::{
    acts::{Comment, Text},
    source::Source,
};

/// How many calls of a kind run at once.
const CALLS_MAX: usize = 64;

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

    /// Returns the posts that exist, with their ids.
    pub(crate) async fn posts(&self, ids: Vec<u64>) -> Result<Vec<(u64, Text)>, Status> {
        let mut posts = Vec::with_capacity(ids.len());
        for part in ids.chunks(BATCH_MAX) {
            let mut post_ids = part.to_vec();
            while !post_ids.is_empty() {
                let request =
                    post::BatchGetPostsRequest { post_ids, viewer_id: 0, allow_partial: true };
                let response = call(self.post().batch_get_posts(request)).await?;
                let text = |post: Post| (post.id, Text::new(post.author_id, &post.entities));
                posts.extend(response.posts.into_iter().map(text));
                post_ids = response.remaining_ids;
            }
        }
        Ok(posts)
    }

    /// Returns the comments that exist.
    pub(crate) async fn comments(&self, keys: Vec<CommentKey>) -> Result<Vec<Comment>, Status> {
        let mut found = Vec::with_capacity(keys.len());
        for part in keys.chunks(BATCH_MAX) {
            let mut comments = part.to_vec();
            while !comments.is_empty() {
                let request = post::BatchGetCommentsRequest { comments, allow_partial: true };
                let response = call(self.post().batch_get_comments(request)).await?;
                found.extend(response.comments.into_iter().map(|comment| Comment {
                    id: comment.id,
                    post_id: comment.post_id,
                    replies_to: comment.in_reply_to_author_id,
                    text: Text::new(comment.author_id, &comment.entities),
                }));
                comments = response.remaining;
            }
        }
        Ok(found)
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

    /// Returns which of follows are answers: the followed account followed before. A follow is the
    /// follower, the followed account and the version.
    pub(crate) async fn answers(
        &self,
        follows: Vec<(u64, u64, Stamp)>,
    ) -> Result<HashSet<(u64, u64)>, Status> {
        let mut by_target: IdMap<u64, Vec<(u64, Stamp)>> = IdMap::default();
        for (follower, target, version) in follows {
            by_target.entry(target).or_default().push((follower, version));
        }
        let by_target: Vec<_> = by_target.into_iter().collect();
        let parts = by_target
            .iter()
            .flat_map(|(target, all)| all.chunks(BATCH_MAX).map(move |part| (*target, part)));
        let mut answers = HashSet::new();
        for parts in parts.collect::<Vec<_>>().chunks(CALLS_MAX) {
            let read = parts.iter().map(|&(target, followers)| self.answers_to(target, followers));
            answers.extend(try_join_all(read).await?.into_iter().flatten());
        }
        Ok(answers)
    }

    async fn answers_to(
        &self,
        target: u64,
        followers: &[(u64, Stamp)],
    ) -> Result<Vec<(u64, u64)>, Status> {
        let mut target_ids: Vec<u64> = followers.iter().map(|(follower, _)| *follower).collect();
        target_ids.sort_unstable();
        target_ids.dedup();
        let request = relation::BatchGetRelationsRequest {
            viewer_id: target,
            target_ids,
            include_following_since: true,
            ..Default::default()
        };
        let response = call(self.relation().batch_get_relations(request)).await?;
        let since: IdMap<u64, SystemTime> = response
            .following_since
            .into_iter()
            .filter_map(|one| Some((one.user_id, SystemTime::try_from(one.since?).ok()?)))
            .collect();
        let is_answer = |(follower, version): &&(u64, Stamp)| {
            since.get(follower).is_some_and(|since| *since <= version.time())
        };
        let answers = followers.iter().filter(is_answer);
        Ok(answers.map(|&(follower, _)| (follower, target)).collect())
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
