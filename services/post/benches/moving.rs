//! The Redis memory of 100,000 old posts of 1,000 authors, before and after their eviction to the
//! archive, an SQLite file here. Half of the posts have likes and comments.
//!
//! `cargo bench -p microblog-post --bench moving`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

mod support;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser as _;
use futures::{StreamExt as _, stream};
use microblog_domain::{Partition, PostId, RequestId};
use microblog_post::{Archive, CommentContent, Config, Evictor, Store, recorder};
use microblog_testkit::RedisServer;
use support::{author, english, info, publish, remove, used};
use uuid::Uuid;

const AUTHORS: u64 = 1_000;
const POSTS_EACH: u64 = 100;
const POSTS: u64 = AUTHORS * POSTS_EACH;

/// How many of an author's newest posts stay. (By default, all of these would.)
const STAY: u64 = 10;

/// Likes of every other post, each of which has a comment as well.
const LIKES: u64 = 3;

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
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("archive.sqlite");
    let (redis, archive) = (server.url("post"), format!("sqlite://{}", file.display()));
    let flags = ["post", "--redis-url", &redis, "--database-url", &archive, "--hot-window", "0s"];
    let limits = ["--posts-per-minute", "0", "--comments-per-minute", "0", "--hot-posts"];
    let stay = STAY.to_string();
    let config = Config::parse_from(flags.into_iter().chain(limits).chain([stay.as_str()]));
    let store = Store::open(&config).unwrap();
    let archive = Archive::open(&config.database).unwrap().unwrap();
    let recorder = Arc::new(recorder(&store, &archive, &config.archive));
    let mut admin = server.admin().await;
    // Connections, functions and tables exist before the measurement.
    recorder.run().await.unwrap();
    let empty = used(&mut admin).await;

    for round in 0..POSTS_EACH {
        let make = |n| make(&store, n, round * AUTHORS + n);
        let ids: Vec<_> =
            stream::iter((0..AUTHORS).map(make)).buffer_unordered(AT_ONCE).collect().await;
        store.delivered(&ids).await.unwrap();
        remove(&mut admin, "*request:*").await;
    }
    let began = Instant::now();
    recorder.run().await.unwrap();
    let archived = began.elapsed();
    let before = used(&mut admin).await - empty;
    let began = Instant::now();
    let evictor = Evictor::new(store.clone(), archive, recorder, &config.archive);
    let mut evicted = 0;
    for partition in Partition::all() {
        evicted += evictor.partition(partition).await.unwrap().evicted;
    }
    let moved = began.elapsed();
    assert_eq!(evicted, POSTS - AUTHORS * STAY);
    // Redis frees memory in the background.
    while !info(&mut admin).await.contains("lazyfree_pending_objects:0") {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let after = used(&mut admin).await - empty;

    println!("{POSTS} posts of {AUTHORS} authors, {evicted} evicted");
    let row = |when: &str, bytes: i64| {
        println!(
            "  {when:<8}{:>8.1} MB{:>8.1} bytes a post",
            bytes as f64 / 1e6,
            bytes as f64 / POSTS as f64
        );
    };
    row("before", before);
    row("after", after);
    println!(
        "  after/before {:.3}; of the posts alone that stay: {:.3}",
        after as f64 / before as f64,
        (AUTHORS * STAY) as f64 / POSTS as f64
    );
    let size = std::fs::metadata(&file).unwrap().len();
    println!("  the archive's file: {:.1} MB", size as f64 / 1e6);
    let each = |time: Duration, count: u64| time.as_secs_f64() * 1e6 / count as f64;
    println!(
        "  archived in {:.0} us a post, evicted in {:.0} us a post",
        each(archived, POSTS),
        each(moved, evicted)
    );
}

async fn make(store: &Store, n: u64, seed: u64) -> PostId {
    let id = publish(store, author(n), english(seed)).await;
    if seed.is_multiple_of(2) {
        for fan in 0..LIKES {
            store.like(author(AUTHORS + fan), id).await.unwrap();
        }
        let request = RequestId::parse("request_id", &Uuid::new_v4().to_string()).unwrap();
        let text = "well said".to_owned();
        let content = CommentContent { author: author(n), text, in_reply_to: None };
        store.add_comment(id, &content, request).await.unwrap();
    }
    id
}
