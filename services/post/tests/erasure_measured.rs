//! How fast the walk is that erases what deleted accounts wrote. It is a measurement, so it runs only
//! when asked for:
//!
//!     cargo test --package microblog-post --test erasure_measured -- --ignored --nocapture

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod support;

use std::time::{Duration, Instant};

use futures::future::{join_all, try_join_all};
use microblog_domain::{PostId, RequestId};
use microblog_post::{Content, Eraser, Published, Store};
use microblog_testkit::Topology;
use support::{System, id, request_id, user};

const AUTHORS: u64 = 300;
const POSTS: usize = 30_000;
const COMMENTS: usize = 20_000;

async fn publish(store: &Store, author: u64) -> PostId {
    let content = Content { author: user(author), text: "hello".to_owned(), origin: None };
    let request = RequestId::parse("request_id", &request_id()).unwrap();
    match store.publish(&content, request).await.unwrap() {
        Published::New(id) => id,
        other => panic!("{other:?}"),
    }
}

/// Erases an account, and prints how long that took.
async fn erases(store: &Store, account: u64, what: &str) {
    store.forget(user(account)).await.unwrap();
    let begun = Instant::now();
    assert!(Eraser::new(support::tiers(store), Duration::ZERO).round().await.unwrap());
    println!("{what}: {:?}", begun.elapsed());
}

#[tokio::test]
#[ignore = "it measures"]
async fn how_fast_the_walk_is() {
    let system = System::start_without_jobs(Topology::Single).await;
    let store = &system.store;
    erases(store, 900, "no posts").await;
    let mut posts = Vec::new();
    while posts.len() < POSTS {
        posts.extend(join_all((1..=AUTHORS).map(|author| publish(store, author))).await);
    }
    erases(store, 901, "30,000 posts that nobody likes").await;
    for posts in posts.chunks(500) {
        try_join_all(posts.iter().map(|&post| store.like(user(800), post))).await.unwrap();
    }
    erases(store, 902, "30,000 posts with likes").await;
    for _ in 0..COMMENTS / 500 {
        let comment = |_| system.comment(id(700), posts[0].get(), "this is a comment", 0);
        try_join_all((0..500).map(comment)).await.unwrap();
    }
    erases(store, 903, "the same with 20,000 comments").await;
}
