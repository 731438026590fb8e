//! The negative cache: reads of posts that never existed do not query the database each time.

use microblog_proto::common::ErrorReason;
use microblog_testkit::{Cost, CostMeter};
use tonic::{Code, Status};

use crate::{
    aging::{Aging, on_both},
    support::{
        archives::{ArchiveServer, connect, execute},
        assert_rejected, id,
    },
};

on_both! {
    missing_posts_are_cached
    posts_above_the_watermark_are_not_queried
}

const AUTHOR: u64 = id(1);

/// Returns ids of missing posts in the same partition, older than all.
fn older_than(post: u64, count: u64) -> Vec<u64> {
    (1..=count).map(|n| post - n * 4096).collect()
}

#[track_caller]
fn is_no_post<T: std::fmt::Debug>(answer: Result<T, Status>) {
    assert_rejected(answer, Code::NotFound, ErrorReason::PostNotFound);
}

/// Without the client-side cache, so that all commands are counted.
const WITHOUT_CACHE: [&str; 2] = ["--redis-cache-bytes", "0"];

/// Asserts that there is no such post, at a cost of these commands.
async fn costs(aging: &Aging, post: u64, commands: &[&str]) {
    let mut meter = CostMeter::new(&aging.system.redis.nodes()[0]).await;
    let cost = meter.cost_once(async || is_no_post(aging.system.get(post, 0).await)).await;
    let commands: Vec<_> = commands.iter().map(|&name| (name, 1)).collect();
    assert_eq!(cost.commands, Cost::new(1, &commands).commands, "{post}");
}

async fn missing_posts_are_cached(archives: &ArchiveServer) {
    let aging = Aging::start_with(archives, 0, &WITHOUT_CACHE).await;
    let system = &aging.system;
    let old = system.create(AUTHOR, "old").await.unwrap().id;
    aging.evict(&[old]).await;
    let ids = older_than(old, 20);
    for &id in &ids {
        is_no_post(system.get(id, 0).await);
    }
    // From now on, queries fail.
    let mut archive = connect(&aging.url).await;
    execute(&mut archive, "ALTER TABLE posts RENAME TO elsewhere").await;
    for _ in 0..3 {
        for &id in &ids {
            is_no_post(system.get(id, 0).await);
            is_no_post(system.like(AUTHOR, id).await);
            system.delete(AUTHOR, id).await.unwrap();
        }
    }
    // The whole cost: read the post, the watermark and the tombstone.
    costs(&aging, ids[0], &["get", "hmget", "zscore"]).await;
    let asked = system.get(older_than(old, 21)[20], 0).await.unwrap_err();
    assert_ne!(asked.code(), Code::NotFound, "an uncached post is read from the archive");
}

async fn posts_above_the_watermark_are_not_queried(archives: &ArchiveServer) {
    let aging = Aging::start_with(archives, 1, &WITHOUT_CACHE).await;
    let system = &aging.system;
    let old = system.create(AUTHOR, "old").await.unwrap().id;
    let hot = system.create(AUTHOR, "hot").await.unwrap().id;
    aging.evict(&[old]).await;
    let mut archive = connect(&aging.url).await;
    execute(&mut archive, "ALTER TABLE posts RENAME TO elsewhere").await;
    let never = hot + 4096;
    let gone = system.create(AUTHOR, "goes").await.unwrap().id;
    system.delete(AUTHOR, gone).await.unwrap();
    // Another partition, without evictable posts.
    let elsewhere = id(2) + (old & !0xfff);
    for id in [never, gone, elsewhere] {
        is_no_post(system.get(id, 0).await);
        costs(&aging, id, &["get", "hmget"]).await;
    }
    assert_ne!(system.get(old, 0).await.unwrap_err().code(), Code::NotFound);
}
