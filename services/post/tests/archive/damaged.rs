//! Damaged keys in Redis: a job skips their posts, and goes on with the others.

use microblog_testkit::redis::cmd;

use crate::{
    aging::{Aging, on_both},
    support::{self, archives::ArchiveServer, id},
};

on_both! {
    a_damaged_post_does_not_keep_others_in_redis
}

const AUTHOR: u64 = id(1);

/// Gives a key of a post another type. Returns the key.
pub(crate) async fn damage(aging: &Aging, kind: &str, post: u64) -> String {
    let key = format!("post:{{{}}}:{kind}:{post}", support::post(post).partition());
    let set = cmd("SET").arg(&key).arg("rubbish").take();
    set.exec_async(&mut aging.system.redis.nodes()[0].admin().await).await.unwrap();
    key
}

async fn a_damaged_post_does_not_keep_others_in_redis(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let mut posts = Vec::new();
    for text in ["first", "damaged", "last"] {
        posts.push(aging.system.create(AUTHOR, text).await.unwrap().id);
    }
    aging.archive().await;
    let damaged = damage(&aging, "post", posts[1]).await;
    let evictions = aging.age(&[AUTHOR]).await;
    assert_eq!((evictions.evictable, evictions.evicted), (3, 2));
    for post in [posts[0], posts[2]] {
        assert_eq!(support::keys_of(&aging.system, post).await, Vec::<String>::new());
    }
    assert_eq!(support::keys_of(&aging.system, posts[1]).await, [damaged]);
}
