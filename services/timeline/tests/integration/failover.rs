//! Redis lacks writes of the timeline service, about posts that the post service knows as delivered.

use std::{
    net::TcpListener,
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::future::join_all;
use microblog_chassis::{Peer, Worker};
use microblog_proto::post::{
    CreatePostRequest, RedeliverPostsRequest, post_service_client::PostServiceClient,
};
use microblog_testkit::{
    self as testkit, PostgresServer, RedisServer,
    Topology::{Cluster, Single},
    eventually,
    redis::cmd,
};
use tonic::transport::Channel;

use crate::support::{
    self, PATIENCE, System, channel, id,
    pages::Timeline,
    posts::config_of_posts,
    queue::{depth, drained, published},
    run_on, start_relation,
};

const AUTHORS: u64 = 12;
const HOME_MAX: usize = 800;

/// A timeline service and a post service that deliver to each other, and have a Redis each.
struct Services {
    system: System,
    posts: PostServiceClient<Channel>,
    database: PostgresServer,
    _of_post: testkit::Store,
}

impl Services {
    async fn start(redis: Arc<testkit::Store>, flags: &[&str]) -> Self {
        let of_post = testkit::Store::start(Single).await;
        let relation_url = start_relation(&of_post).await;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let post_url = format!("http://{}", listener.local_addr().unwrap());
        let system =
            System::with_posts(Worker::ONLY, redis, relation_url, Some(&post_url), flags).await;
        let database = PostgresServer::start().await;
        let flag = format!("--database-url={}", database.url());
        let config = config_of_posts(&of_post.url("post"), &flag);
        let timeline = Peer::remote(&system.address, &config.chassis).unwrap();
        let service = microblog_post::service(&config, Some(timeline), Worker::ONLY).await.unwrap();
        let posts = PostServiceClient::new(channel(&run_on(listener, service, &config.chassis)));
        Self { system, posts, database, _of_post: of_post }
    }

    /// Publishes so many posts of each author, and returns them, newest first.
    async fn publish(&self, each: usize) -> Vec<u64> {
        let publish = async |author: u64| {
            let mut made = Vec::new();
            for _ in 0..each {
                let request_id = uuid::Uuid::new_v4().to_string();
                let text = "text".to_owned();
                let request = CreatePostRequest { author_id: id(author), request_id, text };
                let post = self.posts.clone().create_post(request).await.unwrap().into_inner().post;
                made.push(post.unwrap().id);
            }
            made
        };
        let mut made = join_all((1..=AUTHORS).map(publish)).await.concat();
        made.sort_unstable_by(|one, other| other.cmp(one));
        made
    }

    /// Returns the number of posts that are to be delivered.
    fn undelivered(&self) -> u64 {
        let count =
            "SELECT (SELECT COUNT(*) FROM undelivered) + (SELECT COUNT(*) FROM redeliveries)";
        self.database.sql(count).parse().unwrap()
    }
}

async fn has_checkpoint(server: &RedisServer) -> bool {
    let keys: Vec<String> =
        cmd("KEYS").arg("tl:*:checkpoint").query_async(&mut server.admin().await).await.unwrap();
    !keys.is_empty()
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// The timeline service and the others have a Redis each. One server after the other starts with an
/// older copy, from before the last posts.
#[tokio::test]
async fn lost_deliveries_are_repeated() {
    for topology in [Single, Cluster] {
        let redis = Arc::new(testkit::Store::start(topology).await);
        let services = Services::start(redis.clone(), &[]).await;
        let system = &services.system;

        let readers = [1, 2, 3, 4, 5, 6].map(|n| id(AUTHORS + n));
        for &reader in &readers {
            for author in 1..=AUTHORS {
                system.follow(reader, id(author)).await;
            }
        }
        let mut all = services.publish(1).await;
        all_have(system, &readers, &all).await;
        for server in redis.nodes() {
            eventually("it has a checkpoint", PATIENCE, async || has_checkpoint(server).await)
                .await;
            let (data, old) = ("appendonlydir", server.directory().join("old"));
            copy(&server.directory().join(data), &old);
            all.splice(0..0, services.publish(1).await);
            all_have(system, &readers, &all).await;
            server.kill();
            server.delete_data();
            copy(&old, &server.directory().join(data));
            server.restart().await;
            all_have(system, &readers, &all).await;
        }
    }
}

/// A home timeline is full of posts of the last minute, which are all delivered again, as after a
/// failover or a restart that lost none of them.
#[tokio::test]
async fn repeated_deliveries_hide_no_newer_posts() {
    const EACH: usize = 80;
    for mode in ["push", "pull", "hybrid"] {
        let redis = Arc::new(testkit::Store::start(Single).await);
        let services = Services::start(redis.clone(), &["--mode", mode]).await;
        let (system, reader) = (&services.system, id(AUTHORS + 1));
        for author in 1..=AUTHORS {
            system.follow(reader, id(author)).await;
        }
        assert_eq!(system.home(reader).await, [0; 0]);
        let begin = SystemTime::now();
        let mut newest = services.publish(EACH).await;
        newest.truncate(HOME_MAX);
        let home = async || Timeline::Home.whole(&system.client, reader, 200, "").await;
        eventually("all are there", PATIENCE, async || home().await == newest).await;
        for is_stale in [false, true] {
            drained(system).await;
            if is_stale {
                system.store.record_unpushed(Duration::ZERO).await.unwrap();
            }
            let request = RedeliverPostsRequest { since: Some(begin.into()) };
            services.posts.clone().redeliver_posts(request).await.unwrap();
            let mut is_under_way = true;
            while is_under_way {
                is_under_way = services.undelivered() + depth(&system.redis).await > 0;
                assert!(home().await == newest, "{mode}, stale: {is_stale}");
            }
        }
    }
}

/// Waits until all home timelines and user timelines have posts.
async fn all_have(system: &System, readers: &[u64], all: &[u64]) {
    for &reader in readers {
        eventually("the home timeline has all posts", PATIENCE, async || {
            let home = system.home_page(reader, 200, "", "").await;
            home.is_ok_and(|(entries, ..)| support::posts(&entries) == all)
        })
        .await;
    }
    eventually("the user timelines have all posts", PATIENCE, async || {
        let mut found = Vec::new();
        for author in 1..=AUTHORS {
            found.extend(published(&system.store, id(author)).await);
        }
        found.sort_unstable_by(|one, other| other.cmp(one));
        found == all
    })
    .await;
}
