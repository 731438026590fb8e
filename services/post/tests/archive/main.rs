//! Posts that leave Redis for the archive, and come back.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

#[path = "../support/mod.rs"]
mod support;

use microblog_domain::Partition;
use microblog_post::{Archive, Archiver, Config, Mover, Store};
use microblog_testkit::Topology::Single;
use support::{System, id, lists::List};

/// Archives and moves what is old, as the job does, at once.
async fn move_now(config: &Config) -> (u64, u64) {
    let store = Store::open(config).unwrap();
    let archive = Archive::open(&config.archive).unwrap().unwrap();
    let mut archiver = Archiver::new(store.clone(), archive.clone());
    while archiver.pass().await.unwrap() {}
    let mover = Mover::new(store, archive, &config.archive);
    let (mut retired, mut evicted) = (0, 0);
    for partition in Partition::all() {
        let moved = mover.partition(partition).await.unwrap();
        retired += moved.retired;
        evicted += moved.evicted;
    }
    (retired, evicted)
}

#[tokio::test]
async fn smoke() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/archive.sqlite", directory.path().display());
    let flags = ["--archive-url", &url, "--hot-window=0s", "--hot-posts=3", "--warm-window=0s"];
    let system = System::start_with(Single, &flags).await;
    let config = support::config(&system.redis.url("post"), &flags);
    move_now(&config).await;
    let mut made = Vec::new();
    for n in 0..20 {
        made.insert(0, system.create(id(1), &format!("post {n}")).await.unwrap().id);
    }
    let old = made[19];
    system.like(id(2), old).await.unwrap();
    system.like(id(3), old).await.unwrap();
    system.comment(id(2), old, "well", 0).await.unwrap();
    let repost = system.repost(id(4), old).await.unwrap().id;
    system.settles().await;
    println!("{:?}", move_now(&config).await);
    assert_eq!(List::UserPosts(id(1)).whole(&system.client, 7).await, made);
    let post = system.get(old, id(2)).await.unwrap();
    assert_eq!((post.likes, post.comments, post.reposts, post.liked), (2, 1, 1, true));
    assert_eq!(List::Likers(old).whole(&system.client, 1).await, [id(3), id(2)]);
    assert_eq!(List::Reposts(old).whole(&system.client, 1).await, [repost]);
    assert_eq!(system.like(id(5), old).await.unwrap(), 3);
    assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
    println!("{:?}", move_now(&config).await);
    assert_eq!(List::Likers(old).whole(&system.client, 1).await, [id(5), id(3), id(2)]);
    system.delete(id(1), old).await.unwrap();
    system.get(old, 0).await.unwrap_err();
    made.pop();
    assert_eq!(List::UserPosts(id(1)).whole(&system.client, 3).await, made);
    println!("{:?}", move_now(&config).await);
    system.get(old, 0).await.unwrap_err();
    assert_eq!(List::UserPosts(id(1)).whole(&system.client, 3).await, made);
    assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
}
