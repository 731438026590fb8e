//! Redis lacks writes of the timeline service, about posts that the post service knows as delivered.

use std::{net::TcpListener, path::Path, process::Command, sync::Arc};

use clap::Parser as _;
use microblog_chassis::{Peer, Worker};
use microblog_proto::post::{CreatePostRequest, post_service_client::PostServiceClient};
use microblog_testkit::{
    self as testkit, RedisServer,
    Topology::{Cluster, Single},
    eventually,
    redis::cmd,
};
use tonic::transport::Channel;

use crate::support::{
    self, PATIENCE, System, channel, id, queue::published, run_on, start_relation,
};

const AUTHORS: u64 = 12;

/// Publishes a post of each author, and returns them, newest first.
async fn publish(posts: &PostServiceClient<Channel>) -> Vec<u64> {
    let mut made = Vec::new();
    for author in 1..=AUTHORS {
        let request_id = uuid::Uuid::new_v4().to_string();
        let request =
            CreatePostRequest { author_id: id(author), request_id, text: "text".to_owned() };
        let post = posts.clone().create_post(request).await.unwrap().into_inner().post;
        made.push(post.unwrap().id);
    }
    made.sort_unstable_by(|one, other| other.cmp(one));
    made
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
        let others = testkit::Store::start(Single).await;
        let relation_url = start_relation(&others).await;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let post_url = format!("http://{}", listener.local_addr().unwrap());
        let system =
            System::with_posts(Worker::ONLY, redis.clone(), relation_url, Some(&post_url), &[]);
        let system = system.await;
        let url = others.url("post");
        let flags = ["post", "--redis-url", &url, "--threads", "1", "--posts-per-minute", "0"];
        let config = microblog_post::Config::parse_from(flags);
        let timeline = Peer::remote(&system.address, &config.chassis).unwrap();
        let service = microblog_post::service(&config, Some(timeline), Worker::ONLY).await.unwrap();
        let posts = PostServiceClient::new(channel(&run_on(listener, service, &config.chassis)));

        let readers = [1, 2, 3, 4, 5, 6].map(|n| id(AUTHORS + n));
        for &reader in &readers {
            for author in 1..=AUTHORS {
                system.follow(reader, id(author)).await;
            }
        }
        let mut all = publish(&posts).await;
        all_have(&system, &readers, &all).await;
        for server in redis.nodes() {
            eventually("it has a checkpoint", PATIENCE, async || has_checkpoint(server).await)
                .await;
            let (data, old) = ("appendonlydir", server.directory().join("old"));
            copy(&server.directory().join(data), &old);
            all.splice(0..0, publish(&posts).await);
            all_have(&system, &readers, &all).await;
            server.kill();
            server.delete_data();
            copy(&old, &server.directory().join(data));
            server.restart().await;
            all_have(&system, &readers, &all).await;
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
