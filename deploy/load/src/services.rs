//! What more than one command asks of the services behind the gateway.

use anyhow::anyhow;
use microblog_local::{
    graph::Target,
    keys::Keys,
    remote::{self, CALL_TIMEOUT},
};
use microblog_proto::{
    post::{CreatePostRequest, post_service_client::PostServiceClient},
    timeline::{
        GetHomeTimelineRequest, GetHomeTimelineResponse,
        timeline_service_client::TimelineServiceClient,
    },
};
use tonic::{Status, transport::Channel};
use uuid::Uuid;

use crate::system::Urls;

/// A short post.
pub(crate) const TEXT: &str = "the quick brown fox jumps over a lazy dog";

/// Of the e-mail addresses of all accounts that are made here.
const EMAIL_DOMAIN: &str = "load.invalid";

/// Returns where graphs are brought in, and the password of their accounts; without one nobody logs
/// in to them.
pub(crate) fn import_target(urls: &Urls, password: &str) -> Target {
    Target {
        user_url: urls.user.clone(),
        relation_url: urls.relation.clone(),
        password: password.to_owned(),
        email_domain: EMAIL_DOMAIN.to_owned(),
        keys: Keys::default(),
    }
}

/// The services that keep posts and timelines.
#[derive(Clone)]
pub(crate) struct Services {
    posts: PostServiceClient<Channel>,
    timelines: TimelineServiceClient<Channel>,
}

impl Services {
    /// Reaches them, which serve already.
    pub(crate) async fn of(urls: &Urls) -> anyhow::Result<Self> {
        Ok(Self {
            posts: PostServiceClient::new(remote::serving(&urls.post).await?),
            timelines: TimelineServiceClient::new(remote::serving(&urls.timeline).await?),
        })
    }

    /// Returns the post service, for what else is to be done to posts.
    pub(crate) fn posts(&self) -> PostServiceClient<Channel> {
        self.posts.clone()
    }

    /// Publishes, again where that fails in passing, and returns the post.
    pub(crate) async fn publish(&self, author_id: u64, text: &str) -> Result<u64, Status> {
        let request_id = Uuid::new_v4().to_string();
        let message = CreatePostRequest { author_id, request_id, text: text.to_owned() };
        let answer = remote::repeatedly(async || {
            self.posts().create_post(remote::request(message.clone(), CALL_TIMEOUT)).await
        });
        let post = answer.await?.into_inner().post;
        Ok(post.ok_or_else(|| Status::data_loss("a new post that is none"))?.id)
    }

    /// Returns the first page of an account's home timeline, which is there from then on.
    pub(crate) async fn home(&self, user_id: u64) -> Result<GetHomeTimelineResponse, Status> {
        let message = GetHomeTimelineRequest { user_id, ..Default::default() };
        let request = remote::request(message, CALL_TIMEOUT);
        Ok(self.timelines.clone().get_home_timeline(request).await?.into_inner())
    }
}

/// Returns what came of a call, or its error as people read it.
pub(crate) fn told<T>(answer: Result<T, Status>) -> anyhow::Result<T> {
    answer.map_err(|status| anyhow!("{}", remote::told(&status)))
}
