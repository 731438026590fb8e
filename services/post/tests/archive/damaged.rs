//! Damaged keys in Redis and rows of the archive: jobs go on with the others.

use std::time::Duration;

use microblog_post::{Eraser, forget_marked};
use microblog_proto::post::ForgetUserRequest;
use microblog_testkit::redis::cmd;

use crate::{
    aging::{Aging, on_both},
    support::{
        self,
        archives::{ArchiveServer, connect, execute, numbers},
        id,
    },
};

on_both! {
    a_damaged_post_does_not_keep_others_in_redis
    damaged_likes_do_not_stop_the_erasure_of_an_account
    a_damaged_row_does_not_stop_the_deletion_of_its_author
}

const AUTHOR: u64 = id(1);
const GONE: u64 = id(2);

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

async fn damaged_likes_do_not_stop_the_erasure_of_an_account(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 10).await;
    let system = &aging.system;
    let mut posts = Vec::new();
    for text in ["damaged likes", "damaged", "whole"] {
        let post = system.create(AUTHOR, text).await.unwrap().id;
        system.like(GONE, post).await.unwrap();
        posts.push(post);
    }
    damage(&aging, "likes", posts[0]).await;
    damage(&aging, "post", posts[1]).await;
    let request = ForgetUserRequest { user_id: GONE };
    system.client.clone().forget_user(request).await.unwrap();
    forget_marked(&aging.tiered(), &aging.posts()).await.unwrap();
    assert!(Eraser::new(aging.tiered(), Duration::ZERO).run_once().await.unwrap());
    assert_eq!(system.store.forgetting().await.unwrap(), []);
    let whole = system.get(posts[2], GONE).await.unwrap();
    assert_eq!((whole.likes, whole.liked), (0, false));
}

async fn a_damaged_row_does_not_stop_the_deletion_of_its_author(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let mut posts = Vec::new();
    for text in ["damaged", "whole"] {
        posts.push(system.create(GONE, text).await.unwrap().id);
    }
    aging.archive().await;
    assert_eq!(aging.age(&[GONE]).await.evicted, 2);
    let mut archive = connect(&aging.url).await;
    execute(&mut archive, &format!("UPDATE posts SET likes = -1 WHERE id = {}", posts[0])).await;
    let request = ForgetUserRequest { user_id: GONE };
    system.client.clone().forget_user(request).await.unwrap();
    // The second run finds the deletions recorded.
    for _ in 0..2 {
        forget_marked(&aging.tiered(), &aging.posts()).await.unwrap();
        aging.archive().await;
    }
    assert!(Eraser::new(aging.tiered(), Duration::ZERO).run_once().await.unwrap());
    assert_eq!(system.store.forgetting().await.unwrap(), []);
    let left = numbers(&mut archive, "SELECT id FROM posts WHERE deleted = 0").await;
    assert_eq!(left, Vec::<Vec<i64>>::new());
}
