//! The negative cache: reads of posts that never existed do not query the database each time.

use microblog_proto::common::ErrorReason;
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

/// Returns how often each command ran in Redis during a call.
async fn commands_of(aging: &Aging, call: impl Future<Output = ()>) -> Vec<(String, u64)> {
    let redis = &aging.system.redis.nodes()[0];
    let before = redis.commandstats().await;
    call.await;
    let after = redis.commandstats().await.into_iter();
    let others = ["info", "auth", "client|setinfo", "client|setname", "ping", "role", "hello"];
    let ran = after.map(|(name, calls)| (calls - before.get(&name).unwrap_or(&0), name));
    let ran = ran.filter(|(calls, name)| *calls > 0 && !others.contains(&name.as_str()));
    let mut ran: Vec<_> = ran.map(|(calls, name)| (name, calls)).collect();
    ran.sort();
    ran
}

fn counts(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    expected.iter().map(|&(name, calls)| (name.to_owned(), calls)).collect()
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
    let again = commands_of(&aging, async { is_no_post(system.get(ids[0], 0).await) }).await;
    assert_eq!(again, counts(&[("get", 1), ("hmget", 1), ("zscore", 1)]));
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
        let cost = commands_of(&aging, async { is_no_post(system.get(id, 0).await) }).await;
        assert_eq!(cost, counts(&[("get", 1), ("hmget", 1)]), "{id}");
    }
    assert_ne!(system.get(old, 0).await.unwrap_err().code(), Code::NotFound);
}
