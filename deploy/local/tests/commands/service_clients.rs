//! Direct calls to the services of a running launcher.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_proto::{
    post::{
        AddCommentRequest, CreatePostRequest, DeletePostRequest, LikeRequest, RepostRequest,
        post_service_client::PostServiceClient,
    },
    relation::{BlockRequest, MuteRequest, relation_service_client::RelationServiceClient},
    user::{GetUserByNameRequest, user_service_client::UserServiceClient},
};
use tokio::runtime::{self, Runtime};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};
use uuid::Uuid;

use crate::launcher::Launcher;

const AT_ONCE: usize = 8;

/// Clients of a launcher's services.
pub(crate) struct ServiceClients {
    runtime: Runtime,
    user: UserServiceClient<Channel>,
    relation: RelationServiceClient<Channel>,
    post: PostServiceClient<Channel>,
}

impl ServiceClients {
    pub(crate) fn of(launcher: &Launcher) -> Self {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let [user, relation, post] = [1, 2, 3].map(|server| {
            let _runtime = runtime.enter();
            Endpoint::from_shared(launcher.url(server)).unwrap().connect_lazy()
        });
        Self {
            runtime,
            user: UserServiceClient::new(user),
            relation: RelationServiceClient::new(relation),
            post: PostServiceClient::new(post),
        }
    }

    /// Returns the id of an account.
    pub(crate) fn id(&self, name: &str) -> u64 {
        let request = GetUserByNameRequest { name: name.to_owned() };
        let mut client = self.user.clone();
        let answer = self.runtime.block_on(client.get_user_by_name(request)).unwrap();
        answer.into_inner().user.unwrap().id
    }

    pub(crate) fn block(&self, user_id: u64, target_id: u64) {
        let mut client = self.relation.clone();
        self.runtime.block_on(client.block(BlockRequest { user_id, target_id })).unwrap();
    }

    pub(crate) fn mute(&self, user_id: u64, target_id: u64) {
        let mut client = self.relation.clone();
        self.runtime.block_on(client.mute(MuteRequest { user_id, target_id })).unwrap();
    }

    /// Publishes `post 0`, `post 1` and so on, and returns their ids, oldest first.
    pub(crate) fn publish(&self, author_id: u64, count: u32) -> Vec<u64> {
        let publish = async |n: u32| {
            let request = CreatePostRequest {
                author_id,
                request_id: Uuid::new_v4().to_string(),
                text: format!("post {n}"),
            };
            let answer = self.post.clone().create_post(request).await?.into_inner();
            Ok::<_, Status>(answer.post.unwrap().id)
        };
        // The last post last, the others concurrently.
        let calls = stream::iter(0..count.saturating_sub(1)).map(publish).buffer_unordered(AT_ONCE);
        let mut posts: Vec<u64> = self.runtime.block_on(calls.try_collect()).unwrap();
        posts.push(self.runtime.block_on(publish(count - 1)).unwrap());
        posts.sort_unstable();
        posts
    }

    /// Reposts a post, and returns the repost's id.
    pub(crate) fn repost(&self, author_id: u64, post_id: u64) -> u64 {
        let request_id = Uuid::new_v4().to_string();
        let request = RepostRequest { author_id, request_id, post_id, text: String::new() };
        let mut client = self.post.clone();
        let answer = self.runtime.block_on(client.repost(request)).unwrap();
        answer.into_inner().post.unwrap().id
    }

    /// Comments on a post, optionally in reply to a comment, and returns the comment's id.
    pub(crate) fn comment(&self, author_id: u64, post_id: u64, in_reply_to_id: u64) -> u64 {
        let (request_id, text) = (Uuid::new_v4().to_string(), format!("about {post_id}"));
        let request = AddCommentRequest { author_id, request_id, post_id, text, in_reply_to_id };
        let mut client = self.post.clone();
        let answer = self.runtime.block_on(client.add_comment(request)).unwrap();
        answer.into_inner().comment.unwrap().id
    }

    pub(crate) fn like(&self, user_id: u64, post_id: u64) {
        let mut client = self.post.clone();
        self.runtime.block_on(client.like(LikeRequest { user_id, post_id })).unwrap();
    }

    pub(crate) fn delete(&self, author_id: u64, post_id: u64) {
        let mut client = self.post.clone();
        self.runtime
            .block_on(client.delete_post(DeletePostRequest { author_id, post_id }))
            .unwrap();
    }
}
