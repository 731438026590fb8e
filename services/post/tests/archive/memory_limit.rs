//! Redis at `maxmemory`: posts are evicted until there is room.

use std::time::Duration;

use microblog_chassis::{Worker, status};
use microblog_proto::common::ErrorReason;
use microblog_testkit::{RedisServer, Store as Redis, Topology, eventually, redis};
use tonic::Code;

use crate::{
    aging::{Aging, flags, on_both},
    support::{
        self, System, WITHOUT_JOBS, archives::ArchiveServer, assert_rejected, id, lists::List, user,
    },
};

on_both! {
    a_smaller_hot_window_frees_memory
    a_repost_that_is_stored_or_deleted_is_not_rejected_as_full
}

const AUTHORS: u64 = 6;
const POSTS_EACH: usize = 100;

/// The evictor visits 32 partitions a second, and some of them twice.
const ROUNDS: Duration = Duration::from_secs(180);

async fn admin(node: &RedisServer, command: &mut redis::Cmd) -> String {
    let answer: redis::Value = command.query_async(&mut node.admin().await).await.unwrap();
    redis::from_redis_value(answer).unwrap_or_default()
}

async fn used_memory(node: &RedisServer) -> u64 {
    let info = admin(node, redis::cmd("INFO").arg("memory")).await;
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.unwrap().parse().unwrap()
}

async fn limit_memory(node: &RedisServer, bytes: u64) {
    admin(node, redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes)).await;
}

async fn a_smaller_hot_window_frees_memory(archives: &ArchiveServer) {
    // Started with a hot window of 30 days: no post is old.
    let url = archives.another().await;
    let before = [format!("--database-url={url}"), "--hot-posts=1".to_owned()];
    let before: Vec<_> = before.iter().map(String::as_str).collect();
    let system = System::start_as(WITHOUT_JOBS, Topology::Single, &before).await;
    let aging = Aging::on(system, &url, 1).await;
    let system = &aging.system;
    let text = "x".repeat(2_000);
    for author in 1..=AUTHORS {
        for _ in 0..POSTS_EACH {
            system.create(id(author), &text).await.unwrap();
        }
    }
    let used = used_memory(&system.redis.nodes()[0]).await;
    limit_memory(&system.redis.nodes()[0], used - used / 20).await;
    let refusal = system.create(id(1), "no room").await.unwrap_err();
    assert_eq!(status::reason_of(&refusal), Some(ErrorReason::StoreFull), "{refusal:?}");

    // Restarted with a hot window of zero.
    let after = flags(&url, 1);
    let after: Vec<_> = after.iter().map(String::as_str).collect();
    let config = support::config(&system.redis.url("post"), &after);
    let mut service = microblog_post::service(&config, None, Worker::ONLY).await.unwrap();
    let jobs: Vec<_> =
        std::mem::take(&mut service.background).into_iter().map(tokio::spawn).collect();
    let client = support::client(&support::run(service, &config));
    let system = System { client, ..aging.system };
    eventually("memory is freed", ROUNDS, async || system.create(id(1), "room").await.is_ok())
        .await;
    assert!(used_memory(&system.redis.nodes()[0]).await < used);
    jobs.iter().for_each(tokio::task::JoinHandle::abort);
}

async fn a_repost_that_is_stored_or_deleted_is_not_rejected_as_full(archives: &ArchiveServer) {
    let aging = Aging::start_in(Topology::Cluster, archives, 0, &[]).await;
    let system = &aging.system;
    let Redis::Cluster(cluster) = &system.redis else { unreachable!("it is a cluster") };
    let node_of = async |n| {
        let tag = format!("{{{}}}", user(n).partition());
        cluster.primary_of(&tag, 0).await
    };
    // The node of the root is full, that of its reposts is not.
    let (full, mut n) = (node_of(1).await, 2);
    while node_of(n).await == full {
        n += 1;
    }
    let (author, fan) = (id(1), id(n));
    let root = system.create(author, "root").await.unwrap().id;
    let first = system.repost(fan, root).await.unwrap().id;
    aging.evict(&[root]).await;
    limit_memory(&cluster.nodes()[full], 1).await;
    let liked = system.like(fan, root).await;
    assert_rejected(liked, Code::ResourceExhausted, ErrorReason::StoreFull);

    let stored = system.repost(fan, root).await;
    assert_rejected(stored, Code::Unavailable, ErrorReason::StoreUnavailable);
    let deleted = system.delete(fan, first).await;
    assert_rejected(deleted, Code::Unavailable, ErrorReason::StoreUnavailable);
    assert_rejected(system.get(first, 0).await, Code::NotFound, ErrorReason::PostNotFound);
    let left = List::UserPosts(fan).whole(&system.client, 5).await;
    assert_eq!(left.len(), 1);

    limit_memory(&cluster.nodes()[full], 0).await;
    let delivery = microblog_post::Delivery::new(system.store.clone(), None);
    let mut sweeper = microblog_post::Sweeper::new(aging.tiered(), delivery);
    sweeper.notify_targets(Duration::ZERO).await.unwrap();
    assert_eq!(List::Reposts(root).whole(&system.client, 5).await, left);
    aging.is_sound().await;
}
