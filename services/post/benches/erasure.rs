//! The speed of the walk that erases deleted accounts: over posts without likes, liked posts, and
//! comments.
//!
//! `cargo bench -p microblog-post --bench erasure`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

mod support;

use std::time::{Duration, Instant};

use clap::Parser as _;
use futures::{StreamExt as _, stream};
use microblog_domain::{PostId, RequestId};
use microblog_post::{CommentContent, Config, Eraser, Store, TieredStore};
use microblog_testkit::RedisServer;
use support::{author, english, publish};
use uuid::Uuid;

const AUTHORS: u64 = 300;
const POSTS: u64 = 60_000;
const COMMENTS: u64 = 60_000;

/// Concurrent writes.
const AT_ONCE: usize = 64;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure());
}

async fn measure() {
    let server = RedisServer::start().await;
    let redis = server.url("post");
    let flags = ["post", "--redis-url", &redis, "--posts-per-minute", "0"];
    let config = Config::parse_from(flags.into_iter().chain(["--comments-per-minute", "0"]));
    let store = &Store::open(&config).unwrap();
    let none = erase(store, 0).await;
    let publish = |n| publish(store, author(n % AUTHORS), english(n));
    let discussed: Vec<PostId> =
        stream::iter(0..10).map(publish).buffer_unordered(AT_ONCE).collect().await;
    let comment = |n| comment(store, discussed[n as usize % 10], n);
    stream::iter(0..COMMENTS).map(comment).buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
    let commented = erase(store, 1).await;
    let posts: Vec<PostId> =
        stream::iter(0..POSTS).map(publish).buffer_unordered(AT_ONCE).collect().await;
    let unliked = erase(store, 2).await;
    let like = |&post| async move { store.like(author(AUTHORS), post).await.unwrap() };
    stream::iter(&posts).map(like).buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
    let liked = erase(store, 3).await;

    println!("one walk over nothing takes {:.2} s; besides that", none.as_secs_f64());
    let rate = |what: &str, count: u64, took: Duration, before: Duration| {
        let seconds = took.saturating_sub(before).as_secs_f64();
        println!("  {:>9.0} {what} a second", count as f64 / seconds);
    };
    rate("posts without likes", POSTS, unliked, commented);
    rate("posts that are liked", POSTS, liked, commented);
    rate("comments", COMMENTS, commented, none);
}

/// Erases an account that wrote nothing. Returns the duration.
async fn erase(store: &Store, n: u64) -> Duration {
    store.forget(author(AUTHORS + 100 + n)).await.unwrap();
    let tiered = TieredStore::new(store.clone(), None, Duration::ZERO);
    let begun = Instant::now();
    assert!(Eraser::new(tiered, Duration::ZERO).run_once().await.unwrap());
    begun.elapsed()
}

async fn comment(store: &Store, post: PostId, n: u64) {
    let request = RequestId::parse("request_id", &Uuid::new_v4().to_string()).unwrap();
    let (author, text) = (author(n % AUTHORS), "well said".to_owned());
    let content = CommentContent { author, text, in_reply_to: None };
    store.add_comment(post, &content, request).await.unwrap();
}
