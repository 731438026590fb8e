//! Post counts: the number of an account's posts in both tiers.

use futures::future::join_all;
use microblog_post::PostDeletion;
use microblog_proto::post as pb;
use microblog_testkit::redis::cmd;

use crate::{
    aging::{Aging, on_both},
    support::{self, System, archives::ArchiveServer, id, lists::List, user},
};

on_both! {
    posts_are_counted_in_either_tier
    a_deletion_counts_once
    the_evictor_counts_uncounted_posts
    a_wrong_count_is_repaired
}

const AUTHOR: u64 = id(1);
const OTHER: u64 = id(2);
const FAN: u64 = id(3);

async fn count(system: &System, user_ids: &[u64]) -> Vec<u64> {
    let request = pb::BatchGetPostCountsRequest { user_ids: user_ids.to_vec() };
    let answer = system.client.clone().batch_get_post_counts(request).await.unwrap().into_inner();
    let of: Vec<_> = answer.counts.iter().map(|count| count.user_id).collect();
    assert_eq!(of, user_ids);
    answer.counts.iter().map(|count| count.posts).collect()
}

/// Asserts an author's number of posts, by the count and by the list.
async fn has(aging: &Aging, author: u64, posts: u64) {
    assert_eq!(count(&aging.system, &[author]).await, [posts]);
    let listed = List::UserPosts(author).whole(&aging.system.client, 3).await;
    assert_eq!(listed.len() as u64, posts);
    aging.is_sound().await;
}

async fn posts_are_counted_in_either_tier(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 1).await;
    let system = &aging.system;
    assert_eq!(count(system, &[OTHER, AUTHOR]).await, [0, 0]);
    let root = system.create(OTHER, "root").await.unwrap().id;
    let mut posts = vec![system.repost(AUTHOR, root).await.unwrap().id];
    for n in 0..5 {
        posts.push(system.create(AUTHOR, &format!("number {n}")).await.unwrap().id);
    }
    assert_eq!(count(system, &[OTHER, AUTHOR, FAN]).await, [1, 6, 0]);
    assert_eq!(count(system, &[0, OTHER, 1 << 53, AUTHOR, u64::MAX]).await, [0, 1, 0, 6, 0]);
    // The oldest is evictable; then all but the newest are evicted.
    aging.archive().await;
    let oldest = support::post(posts[0]);
    assert_eq!(system.store.make_evictable(user(1), &[oldest]).await.unwrap(), 1);
    has(&aging, AUTHOR, 6).await;
    aging.evict(&posts[..5]).await;
    has(&aging, AUTHOR, 6).await;
    // A restored post still counts once.
    system.like(FAN, posts[1]).await.unwrap();
    has(&aging, AUTHOR, 6).await;
    for (n, left) in [(1, 5), (2, 4), (5, 3)] {
        for _ in 0..2 {
            system.delete(AUTHOR, posts[n]).await.unwrap();
            has(&aging, AUTHOR, left).await;
        }
    }
    aging.age(&[AUTHOR]).await;
    let more = system.create(AUTHOR, "more").await.unwrap().id;
    has(&aging, AUTHOR, 4).await;
    for post in [more, posts[0], posts[3], posts[4]] {
        system.delete(AUTHOR, post).await.unwrap();
    }
    has(&aging, AUTHOR, 0).await;
    system.create(AUTHOR, "anew").await.unwrap();
    has(&aging, AUTHOR, 1).await;
}

async fn a_deletion_counts_once(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let mut posts = Vec::new();
    for n in 0..3 {
        posts.push(system.create(AUTHOR, &format!("number {n}")).await.unwrap().id);
    }
    aging.evict(&posts).await;
    join_all((0..8).map(|_| system.delete(AUTHOR, posts[0]))).await;
    has(&aging, AUTHOR, 2).await;
    // Two calls read the post from the archive. One deletes it, the tombstone is archived, and then
    // the other one deletes it.
    let id = support::post(posts[1]);
    let content = aging.tiered().contents(&[id]).await.unwrap().pop().flatten().unwrap();
    let deletion = PostDeletion { id, content: &content, in_archive: true };
    assert!(system.store.delete(&deletion).await.unwrap().is_some());
    aging.archive().await;
    assert_eq!(system.store.delete(&deletion).await.unwrap(), None);
    has(&aging, AUTHOR, 1).await;
}

async fn the_evictor_counts_uncounted_posts(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 1).await;
    let system = &aging.system;
    let mut posts = Vec::new();
    for n in 0..5 {
        posts.push(system.create(AUTHOR, &format!("number {n}")).await.unwrap().id);
    }
    aging.evict(&posts[..4]).await;
    // The state that versions without counts left.
    let mut admin = system.redis.nodes()[0].admin().await;
    let list = format!("post:{{{}}}:posts:{AUTHOR}", user(1).partition());
    cmd("ZADD").arg(list).arg(0).arg(0).exec_async(&mut admin).await.unwrap();
    assert_eq!(List::UserPosts(AUTHOR).whole(&system.client, 3).await.len(), 5);
    system.delete(AUTHOR, posts[1]).await.unwrap();
    system.delete(AUTHOR, posts[4]).await.unwrap();
    system.create(AUTHOR, "more").await.unwrap();
    aging.is_sound().await;
    aging.age(&[AUTHOR]).await;
    has(&aging, AUTHOR, 4).await;
    system.delete(AUTHOR, posts[0]).await.unwrap();
    has(&aging, AUTHOR, 3).await;
}

async fn a_wrong_count_is_repaired(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 1).await;
    let system = &aging.system;
    let mut posts = Vec::new();
    for n in 0..5 {
        posts.push(system.create(AUTHOR, &format!("number {n}")).await.unwrap().id);
    }
    aging.evict(&posts[..4]).await;
    let mut admin = system.redis.nodes()[0].admin().await;
    let list = format!("post:{{{}}}:posts:{AUTHOR}", user(1).partition());
    cmd("ZINCRBY").arg(list).arg(7).arg(0).exec_async(&mut admin).await.unwrap();
    let wrong = format!("{AUTHOR} counts 12 posts, and has 5");
    assert_eq!(support::verify(&system.client, false).await.0, [wrong]);
    let repaired = format!("the posts of {AUTHOR} are counted again");
    assert_eq!(support::verify(&system.client, true).await, (vec![], vec![repaired]));
    assert_eq!(support::verify(&system.client, true).await, Default::default());
    has(&aging, AUTHOR, 5).await;
}
