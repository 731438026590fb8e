//! Redis at `maxmemory`: posts are evicted until there is room.

use std::time::Duration;

use microblog_chassis::{Worker, status};
use microblog_proto::common::ErrorReason;
use microblog_testkit::{Store as Redis, Topology, eventually, redis};

use crate::{
    aging::{Aging, flags, on_both},
    support::{self, System, WITHOUT_JOBS, archives::ArchiveServer, id},
};

on_both! {
    a_smaller_hot_window_frees_memory
}

const AUTHORS: u64 = 6;
const POSTS_EACH: usize = 100;

/// The evictor visits 32 partitions a second, and some of them twice.
const ROUNDS: Duration = Duration::from_secs(180);

async fn admin(redis: &Redis, command: &mut redis::Cmd) -> String {
    let node = &redis.nodes()[0];
    let answer: redis::Value = command.query_async(&mut node.admin().await).await.unwrap();
    redis::from_redis_value(answer).unwrap_or_default()
}

async fn used_memory(redis: &Redis) -> u64 {
    let info = admin(redis, redis::cmd("INFO").arg("memory")).await;
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.unwrap().parse().unwrap()
}

async fn limit_memory(redis: &Redis, bytes: u64) {
    admin(redis, redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes)).await;
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
    let used = used_memory(&system.redis).await;
    limit_memory(&system.redis, used - used / 20).await;
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
    assert!(used_memory(&system.redis).await < used);
    jobs.iter().for_each(tokio::task::JoinHandle::abort);
}
