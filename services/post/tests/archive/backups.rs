//! Posts that leave Redis only once a backup of the database has them.

use std::time::SystemTime;

use microblog_post::Evictor;
use microblog_testkit::redis::cmd;

use crate::{
    aging::{Aging, on_both},
    damaged::damage,
    support::{
        self,
        archives::{ArchiveServer, connect, execute},
        id,
    },
};

on_both! {
    posts_wait_for_a_backup
    a_damaged_post_does_not_hold_back_others_that_a_backup_has
}

const AUTHOR: u64 = id(1);
const FAN: u64 = id(2);

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

async fn backed_up(aging: &Aging, until: u64) {
    let update = format!("UPDATE backup_watermark SET backed_up_until = {until}");
    assert_eq!(execute(&mut connect(&aging.url).await, &update).await, 1);
}

/// Lets a post have been recorded right after its mark. Recorded posts wait for a minute's margin.
async fn let_time_pass(aging: &Aging, post: u64) {
    let partition = support::post(post).partition();
    let mut admin = aging.system.redis.nodes()[0].admin().await;
    let hash = format!("post:{{{partition}}}:post:{post}");
    let mark: u64 = cmd("HGET").arg(hash).arg("m").query_async(&mut admin).await.unwrap();
    let set = format!("post:{{{partition}}}:evictable");
    let add = cmd("ZADD").arg(set).arg("XX").arg("CH").arg(mark + 1).arg(post).take();
    assert_eq!(add.query_async::<u64>(&mut admin).await.unwrap(), 1);
}

/// Starts a service whose posts leave Redis only after a backup, except the newest of each author.
async fn start(archives: &ArchiveServer) -> Aging {
    let mut aging = Aging::start(archives, 1).await;
    aging.config.archive.evict_after_backup = true;
    let (store, archive) = (aging.system.store.clone(), aging.archive.clone());
    aging.evictor = Evictor::new(store, archive, aging.recorder.clone(), &aging.config.archive);
    aging
}

async fn posts_wait_for_a_backup(archives: &ArchiveServer) {
    let aging = start(archives).await;
    let system = &aging.system;
    let mut posts = Vec::new();
    for text in ["first", "second", "newest"] {
        posts.push(system.create(AUTHOR, text).await.unwrap().id);
    }
    let [first, second] = [posts[0], posts[1]];
    system.like(FAN, first).await.unwrap();
    let evictions = aging.age(&[AUTHOR]).await;
    assert_eq!((evictions.evictable, evictions.evicted), (2, 0), "there is no backup");
    backed_up(&aging, now()).await;
    assert_eq!(aging.age(&[AUTHOR]).await.evicted, 0, "the backup began too early");

    // A backup from before the posts were recorded, then a later one.
    let_time_pass(&aging, first).await;
    let_time_pass(&aging, second).await;
    backed_up(&aging, now() - 3600).await;
    assert_eq!(aging.age(&[AUTHOR]).await.evicted, 0);
    // A post that changes waits for another one.
    system.like(FAN, second).await.unwrap();
    backed_up(&aging, now() + 1).await;
    assert_eq!(aging.age(&[AUTHOR]).await.evicted, 1);
    assert!(support::keys_of(system, first).await.is_empty());
    assert!(!support::keys_of(system, second).await.is_empty());
    let_time_pass(&aging, second).await;
    backed_up(&aging, now() + 1).await;
    assert_eq!(aging.age(&[AUTHOR]).await.evicted, 1);
    assert!(support::keys_of(system, second).await.is_empty());
    for (post, likes) in posts.into_iter().zip([1, 1, 0]) {
        assert_eq!(system.get(post, 0).await.unwrap().likes, likes);
    }
    aging.is_sound().await;
}

async fn a_damaged_post_does_not_hold_back_others_that_a_backup_has(archives: &ArchiveServer) {
    let aging = start(archives).await;
    let mut posts = Vec::new();
    for text in ["damaged", "whole", "newest"] {
        posts.push(aging.system.create(AUTHOR, text).await.unwrap().id);
    }
    aging.archive().await;
    damage(&aging, "post", posts[0]).await;
    let evictions = aging.age(&[AUTHOR]).await;
    assert_eq!((evictions.evictable, evictions.evicted), (2, 0), "there is no backup");
    let_time_pass(&aging, posts[1]).await;
    backed_up(&aging, now() + 1).await;
    assert_eq!(aging.age(&[AUTHOR]).await.evicted, 1);
    assert!(support::keys_of(&aging.system, posts[1]).await.is_empty());
}
