//! Clients of the services, shared by several commands.

use anyhow::anyhow;
use microblog_local::{
    graph::{Accounts, Target},
    keys::SignedChannel,
    remote::{self, CALL_TIMEOUT},
};
use microblog_proto::{
    post::{CreatePostRequest, post_service_client::PostServiceClient},
    relation::relation_service_client::RelationServiceClient,
    timeline::{
        GetTimelineRequest, GetTimelineResponse, TimelineKind,
        timeline_service_client::TimelineServiceClient,
    },
    user::user_service_client::UserServiceClient,
};
use tonic::Status;
use uuid::Uuid;

use crate::system::Urls;

/// A short text of a post.
pub(crate) const TEXT: &str = "the quick brown fox jumps over a lazy dog";

/// The e-mail domain of all created accounts.
const EMAIL_DOMAIN: &str = "load.invalid";

/// Returns the target of a graph import, and the password of new accounts. Without a password,
/// log-in to them is impossible.
pub(crate) fn import_target(urls: &Urls, password: &str) -> Target {
    let accounts = Accounts {
        user_url: urls.user.clone(),
        password: password.to_owned(),
        email_domain: EMAIL_DOMAIN.to_owned(),
        keys: urls.keys.clone(),
    };
    Target { accounts, relation_url: urls.relation.clone() }
}

/// Clients of the user, relation, post and timeline services.
#[derive(Clone)]
pub(crate) struct ServiceClients {
    users: UserServiceClient<SignedChannel>,
    relations: RelationServiceClient<SignedChannel>,
    posts: PostServiceClient<SignedChannel>,
    timelines: TimelineServiceClient<SignedChannel>,
}

impl ServiceClients {
    /// Connects to the services, which must be serving.
    pub(crate) async fn connect(urls: &Urls) -> anyhow::Result<Self> {
        let Urls { user, relation, post, timeline, keys, .. } = urls;
        Ok(Self {
            users: UserServiceClient::new(keys.sign(remote::connect(user).await?)),
            relations: RelationServiceClient::new(keys.sign(remote::connect(relation).await?)),
            posts: PostServiceClient::new(keys.sign(remote::connect(post).await?)),
            timelines: TimelineServiceClient::new(keys.sign(remote::connect(timeline).await?)),
        })
    }

    /// Returns the client of the user service.
    pub(crate) fn users(&self) -> UserServiceClient<SignedChannel> {
        self.users.clone()
    }

    /// Returns the client of the relation service.
    pub(crate) fn relations(&self) -> RelationServiceClient<SignedChannel> {
        self.relations.clone()
    }

    /// Returns the client of the post service.
    pub(crate) fn posts(&self) -> PostServiceClient<SignedChannel> {
        self.posts.clone()
    }

    /// Publishes a post, with retries of transient errors, and returns its id.
    pub(crate) async fn publish(&self, author_id: u64, text: &str) -> Result<u64, Status> {
        let request_id = Uuid::new_v4().to_string();
        let message = CreatePostRequest { author_id, request_id, text: text.to_owned() };
        let answer = remote::retry(async || {
            self.posts().create_post(remote::request(message.clone(), CALL_TIMEOUT)).await
        });
        let post = answer.await?.into_inner().post;
        Ok(post.ok_or_else(|| Status::data_loss("response has no post"))?.id)
    }

    /// Returns the first page of a home timeline. The read creates the timeline.
    pub(crate) async fn home(&self, user_id: u64) -> Result<GetTimelineResponse, Status> {
        let kind = TimelineKind::Home.into();
        let message = GetTimelineRequest { user_id, kind, ..Default::default() };
        let request = remote::request(message, CALL_TIMEOUT);
        Ok(self.timelines.clone().get_timeline(request).await?.into_inner())
    }
}

/// Converts a status into an error with a readable message.
pub(crate) fn status_to_error<T>(answer: Result<T, Status>) -> anyhow::Result<T> {
    answer.map_err(|status| anyhow!("{}", remote::error_message(&status)))
}
