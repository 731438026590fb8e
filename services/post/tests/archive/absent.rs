//! Who asks for what never was does not make the service ask the database each time.

use microblog_proto::common::ErrorReason;
use tonic::{Code, Status};

use crate::{
    aging::{Aging, on_both},
    support::{
        archives::{ArchiveServer, connect, execute},
        id, refused,
    },
};

on_both! {
    what_the_archive_does_not_know_is_remembered
    what_is_newer_than_all_old_posts_is_not_asked_for
}

const AUTHOR: u64 = id(1);

/// Returns ids of the same partition that no post has, older than all.
fn older_than(post: u64, count: u64) -> Vec<u64> {
    (1..=count).map(|n| post - n * 4096).collect()
}

#[track_caller]
fn is_no_post<T: std::fmt::Debug>(answer: Result<T, Status>) {
    refused(answer, Code::NotFound, ErrorReason::PostNotFound);
}

/// Nothing is remembered of Redis: what it is asked is counted.
const FORGETFUL: [&str; 2] = ["--redis-recall-bytes", "0"];

/// Returns how often each command ran in Redis for a call.
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

async fn what_the_archive_does_not_know_is_remembered(archives: &ArchiveServer) {
    let aging = Aging::start_with(archives, 0, &FORGETFUL).await;
    let system = &aging.system;
    let old = system.create(AUTHOR, "old").await.unwrap().id;
    aging.evict(&[old]).await;
    let ids = older_than(old, 20);
    for &id in &ids {
        is_no_post(system.get(id, 0).await);
    }
    // Nobody can ask any more; who does meets an error.
    let mut archive = connect(&aging.url).await;
    execute(&mut archive, "ALTER TABLE posts RENAME TO elsewhere").await;
    for _ in 0..3 {
        for &id in &ids {
            is_no_post(system.get(id, 0).await);
            is_no_post(system.like(AUTHOR, id).await);
            system.delete(AUTHOR, id).await.unwrap();
        }
    }
    // All that it costs: the post is looked for, the newest old one is looked up, and whether it
    // ended.
    let again = commands_of(&aging, async { is_no_post(system.get(ids[0], 0).await) }).await;
    assert_eq!(again, counts(&[("get", 1), ("hmget", 1), ("zscore", 1)]));
    let asked = system.get(older_than(old, 21)[20], 0).await.unwrap_err();
    assert_ne!(asked.code(), Code::NotFound, "the archive is asked for what is not remembered");
}

async fn what_is_newer_than_all_old_posts_is_not_asked_for(archives: &ArchiveServer) {
    let aging = Aging::start_with(archives, 1, &FORGETFUL).await;
    let system = &aging.system;
    let old = system.create(AUTHOR, "old").await.unwrap().id;
    let hot = system.create(AUTHOR, "hot").await.unwrap().id;
    aging.evict(&[old]).await;
    let mut archive = connect(&aging.url).await;
    execute(&mut archive, "ALTER TABLE posts RENAME TO elsewhere").await;
    let never = hot + 4096;
    let gone = system.create(AUTHOR, "goes").await.unwrap().id;
    system.delete(AUTHOR, gone).await.unwrap();
    // Of another partition, where nothing is old.
    let elsewhere = id(2) + (old & !0xfff);
    for id in [never, gone, elsewhere] {
        is_no_post(system.get(id, 0).await);
        let cost = commands_of(&aging, async { is_no_post(system.get(id, 0).await) }).await;
        assert_eq!(cost, counts(&[("get", 1), ("hmget", 1)]), "{id}");
    }
    assert_ne!(system.get(old, 0).await.unwrap_err().code(), Code::NotFound);
}
