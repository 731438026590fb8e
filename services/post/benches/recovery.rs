//! The time to record a Redis full of posts, and to restore it, with the process's peak memory
//! meanwhile. Every tenth post has a comment.
//!
//! `cargo bench -p microblog-post --bench recovery [-- POSTS [LIKES_EACH]]`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

#[path = "../../shared/record/benches/support/mod.rs"]
mod recording;
mod support;

use std::sync::Arc;

use clap::Parser as _;
use futures::{StreamExt as _, stream};
use microblog_domain::RequestId;
use microblog_post::{Archive, CommentContent, Config, Store, recorder};
use microblog_testkit::{Database, RedisServer};
use support::{author, english, publish};
use uuid::Uuid;

const AUTHORS: u64 = 2_000;

/// Posts that are made at once.
const AT_ONCE: usize = 64;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let posts = recording::argument(0).unwrap_or(100_000);
    let likes_each = recording::argument(1).unwrap_or(5);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for database in Database::both().await {
            println!("{}:", database.kind());
            measure(&database, posts, likes_each).await;
        }
    });
}

async fn measure(database: &Database, posts: u64, likes_each: u64) {
    let server = RedisServer::start().await;
    let (url, database) = (server.url("post"), database.flag());
    let flags = ["post", "--redis-url", &url, &database, "--posts-per-minute=0"];
    let config = Config::parse_from(flags);
    let store = Store::open(&config).unwrap();
    assert!(store.is_ready().await);
    let made = stream::iter(0..posts).map(|n| make(&store, n, likes_each));
    made.buffer_unordered(AT_ONCE).for_each(|()| async {}).await;
    let archive = Archive::open(&config.database).unwrap().unwrap();
    let recorder = Arc::new(recorder(&store, &archive, &config.archive));
    recording::record(&recorder, (posts, "posts")).await;
    recording::restore_all(&server, &recorder, (posts, "posts")).await;
}

/// Makes a post with what belongs to it.
async fn make(store: &Store, n: u64, likes: u64) {
    let post = publish(store, author(n % AUTHORS), english(n)).await;
    for like in 0..likes {
        store.like(author(n + like), post).await.unwrap().unwrap();
    }
    if n.is_multiple_of(10) {
        let request = RequestId::parse("request_id", &Uuid::new_v4().to_string()).unwrap();
        let (author, text) = (author(n + 9), english(n + 1));
        let content = CommentContent { author, text, in_reply_to: None };
        store.add_comment(post, &content, request).await.unwrap();
    }
}
