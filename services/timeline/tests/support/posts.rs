//! A post service beside the timeline service, and losses of the latter's data.

use std::{future::pending, sync::Arc};

use clap::Parser as _;
use microblog_chassis::Worker;
use microblog_proto::{
    post::{self as pb, post_service_client::PostServiceClient},
    timeline,
};
use microblog_testkit::{self as testkit, Database, Topology, next_millisecond, redis};
use tonic::transport::Channel;

use super::{PATIENCE, System, channel, run, start_relation};

/// A timeline service with a relation and a post service. The test delivers the posts.
pub(crate) struct WithPosts {
    pub(crate) system: System,
    posts: PostServiceClient<Channel>,
}

impl WithPosts {
    pub(crate) async fn start(topology: Topology, flags: &[&str]) -> Self {
        let redis = Arc::new(testkit::Store::start(topology).await);
        let relation_url = start_relation(&redis).await;
        let post_url = start_posts(&redis).await;
        let posts = PostServiceClient::new(channel(&post_url));
        let url = Some(&*post_url);
        let system = System::with_posts(Worker::ONLY, redis, relation_url, url, flags).await;
        Self { system, posts }
    }

    /// Publishes a post, which is not delivered.
    pub(crate) async fn publish(&self, author_id: u64) -> timeline::Delivery {
        next_millisecond().await;
        let request_id = uuid::Uuid::new_v4().to_string();
        let request = pb::CreatePostRequest { author_id, request_id, text: "text".to_owned() };
        delivery(self.posts.clone().create_post(request).await.unwrap().into_inner().post)
    }

    /// Publishes and delivers a post.
    pub(crate) async fn post(&self, author_id: u64) -> u64 {
        self.system.deliver(self.publish(author_id).await).await
    }

    /// Publishes and delivers a repost.
    pub(crate) async fn repost(&self, author_id: u64, post_id: u64, text: &str) -> u64 {
        next_millisecond().await;
        let (request_id, text) = (uuid::Uuid::new_v4().to_string(), text.to_owned());
        let request = pb::RepostRequest { author_id, request_id, post_id, text };
        let post = self.posts.clone().repost(request).await.unwrap().into_inner().post;
        self.system.deliver(delivery(post)).await
    }

    /// Deletes all keys of the timeline service, or those of a user's partition.
    pub(crate) async fn lose(&self, partition_of: Option<u64>) {
        let pattern = partition_of
            .map_or("tl:*".to_owned(), |user| format!("tl:{{{}}}:*", (user >> 2) & 1023));
        for node in self.system.redis.nodes() {
            let mut admin = node.admin().await;
            let keys: Vec<String> =
                redis::cmd("KEYS").arg(&pattern).query_async(&mut admin).await.unwrap();
            for key in keys {
                redis::cmd("DEL").arg(key).exec_async(&mut admin).await.unwrap();
            }
        }
    }
}

/// Starts a post service on a store, which delivers nothing, and returns its address.
pub(crate) async fn start_posts(redis: &testkit::Store) -> String {
    let config = config_of_posts(&redis.url("post"), &lasting_database());
    let service = microblog_post::service(&config, None, Worker::ONLY).await.unwrap();
    let ready = service.ready.clone();
    let address = run(service, &config.chassis);
    testkit::eventually("post is ready", PATIENCE, async || ready().await).await;
    address
}

/// Returns the configuration of a post service on its stores.
pub(crate) fn config_of_posts(redis_url: &str, database_flag: &str) -> microblog_post::Config {
    let args =
        ["post", "--redis-url", redis_url, database_flag, "--threads=1", "--posts-per-minute=0"];
    microblog_post::Config::parse_from(args)
}

/// Returns the flag of a database that stays for as long as the test.
fn lasting_database() -> String {
    let database = Database::sqlite();
    let flag = database.flag();
    tokio::spawn(async move {
        let _database = database;
        pending::<()>().await;
    });
    flag
}

fn delivery(post: Option<pb::Post>) -> timeline::Delivery {
    let post = post.unwrap();
    timeline::Delivery {
        post_id: post.id,
        author_id: post.author_id,
        root_id: post.root_id,
        has_text: !post.text.is_empty(),
    }
}
