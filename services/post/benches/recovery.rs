//! The time to record a Redis full of posts, and to restore it, with the process's peak memory
//! meanwhile. Each post has 5 likes and a comment.
//!
//! `cargo bench -p microblog-post --bench recovery [-- POSTS]`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

mod support;

use std::{
    fs,
    time::{Duration, Instant},
};

use clap::Parser as _;
use futures::{StreamExt as _, stream};
use microblog_domain::{Partition, RequestId};
use microblog_post::{Archive, CommentContent, Config, Content, Published, Store, recorder};
use microblog_record::Source;
use microblog_testkit::{PostgresServer, RedisServer, redis};
use support::{author, english};
use uuid::Uuid;

const AUTHORS: u64 = 2_000;
const LIKES_EACH: u64 = 5;

/// Concurrent writes, and partitions that are restored at once, as by the RPC.
const AT_ONCE: usize = 8;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let posts = std::env::args().skip(1).find_map(|word| word.parse().ok());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure(posts.unwrap_or(100_000)));
}

async fn measure(posts: u64) {
    let server = RedisServer::start().await;
    let directory = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite://{}/post.sqlite", directory.path().display());
    let postgres = PostgresServer::start().await;
    let url = server.url("post");
    let config = Config::parse_from(["post", "--redis-url", &url, "--posts-per-minute=0"]);
    let store = Store::open(&config).unwrap();
    assert!(store.is_ready().await);
    let made = stream::iter(0..posts).map(|n| publish(&store, n)).buffer_unordered(4 * AT_ONCE);
    made.for_each(|()| async {}).await;
    for url in [sqlite, postgres.url()] {
        println!("{}:", url.split(':').next().unwrap());
        of_database(&server, &url, posts as f64).await;
    }
}

/// Publishes a post with its likes and its comment.
async fn publish(store: &Store, n: u64) {
    let request = || RequestId::parse("request_id", &Uuid::new_v4().to_string()).unwrap();
    let by = author(n % AUTHORS);
    let content = Content { author: by, text: english(n), origin: None };
    let Published::New(id) = store.publish(&content, request()).await.unwrap() else {
        panic!("a new post");
    };
    for like in 0..LIKES_EACH {
        store.like(author(n + like), id).await.unwrap().unwrap();
    }
    let content = CommentContent { author: author(n + 9), text: english(n + 1), in_reply_to: None };
    store.add_comment(id, &content, request()).await.unwrap();
}

async fn of_database(server: &RedisServer, url: &str, posts: f64) {
    let flags = ["post", "--redis-url", &server.url("post"), "--database-url", url];
    let config = Config::parse_from(flags);
    let store = Store::open(&config).unwrap();
    assert!(store.is_ready().await);
    let archive = Archive::open(&config.database).unwrap().unwrap();
    let recorder = recorder(&store, &archive, &config.archive);
    archive.migrate().await.unwrap();
    let begun = recorder.begin_restore(Source::Redis, true).await.unwrap();
    let recorded = timed(async {
        for partition in Partition::all() {
            assert!(recorder.restore(&begun, partition).await.unwrap());
        }
    });
    report("recorded from nothing", recorded.await, posts);

    let mut admin = server.admin().await;
    let () = redis::cmd("FLUSHALL").query_async(&mut admin).await.unwrap();
    let begun = recorder.begin_restore(Source::Database, true).await.unwrap();
    let restored = timed(async {
        let restore = async |partition| recorder.restore(&begun, partition).await.unwrap();
        let restored = stream::iter(Partition::all()).map(restore).buffer_unordered(AT_ONCE);
        assert!(restored.all(async |restored| restored).await);
    });
    report("all restored", restored.await, posts);
}

async fn timed(work: impl Future<Output = ()>) -> Duration {
    // Resets the peak.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let begun = Instant::now();
    work.await;
    begun.elapsed()
}

fn report(what: &str, duration: Duration, posts: f64) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim();
    let seconds = duration.as_secs_f64();
    println!("  {what}: {seconds:.1} s, {:.0} posts a second, peak {peak}", posts / seconds);
}
