//! The Redis memory of a post, compared with a plain layout: a hash with named fields for each
//! post, and a sorted set of each author's posts.
//!
//! `cargo bench -p microblog-post --bench memory`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

mod support;

use clap::Parser as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_post::{Config, Store};
use microblog_testkit::{
    RedisServer,
    redis::{self, aio::MultiplexedConnection, cmd},
};
use support::{CHARACTERS, author, chinese, english, publish, remove, usage, used};

const AUTHORS: u64 = 200;
const POSTS_EACH: u64 = 100;
const POSTS: u64 = AUTHORS * POSTS_EACH;

/// The posts of an author with many: more than a packed list holds.
const LONG: u64 = 2_000;

/// Concurrent writes.
const AT_ONCE: usize = 32;

/// The defaults of Redis.
const DEFAULTS: [(&str, &str); 4] = [
    ("hash-max-listpack-value", "64"),
    ("zset-max-listpack-entries", "128"),
    ("zset-max-listpack-value", "64"),
    ("set-max-intset-entries", "512"),
];

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        println!("{POSTS} posts of {AUTHORS} authors, {CHARACTERS} characters each\n");
        measure("English", english).await;
        measure("Chinese", chinese).await;
    });
}

async fn measure(language: &str, text: fn(u64) -> String) {
    let ours = ours(text).await;
    let same = plain(&[], text).await;
    let defaults = plain(&DEFAULTS, text).await;
    println!("{language:<44} bytes/post   ours/this   MEMORY USAGE of a post");
    let row = |name: &str, held: &Held| {
        let (bytes, ratio) = (held.bytes_per_post, ours.held.bytes_per_post / held.bytes_per_post);
        println!("  {name:<42} {bytes:>10.1} {ratio:>11.2} {:>24}", held.key_bytes);
    };
    row("this service", &ours.held);
    row("plain hash, the same configuration", &same);
    row("plain hash, Redis' own configuration", &defaults);
    let Ours { held, request, rate_limit, index, long_index } = ours;
    let key_bytes = held.key_bytes as f64;
    println!(
        "  of this service's: the post's key {key_bytes:.0}, its place in the author's list {index:.1},"
    );
    println!(
        "    the rest (the table of keys; clocks, authors) {:.1}",
        held.bytes_per_post - key_bytes - index
    );
    println!("  a place in an author's list of {LONG}, which is not packed: {long_index:.1}");
    println!("  beside, for 24 hours: the request's key {request:.1}");
    println!("  beside, for a minute: an author's rate limit {rate_limit:.1}\n");
}

/// The memory of posts.
struct Held {
    bytes_per_post: f64,
    /// MEMORY USAGE of one post's key.
    key_bytes: u64,
}

struct Ours {
    held: Held,
    /// For each post.
    index: f64,
    long_index: f64,
    request: f64,
    /// For each author.
    rate_limit: f64,
}

async fn ours(text: fn(u64) -> String) -> Ours {
    let server = RedisServer::start().await;
    let url = server.url("post");
    // The limit is never reached, but its key is stored.
    let flags = ["post", "--redis-url", &url, "--posts-per-minute", "1000000"];
    let store = Store::open(&Config::parse_from(flags)).unwrap();
    let mut admin = server.admin().await;
    // Connections, buffers and functions exist before the measurement.
    publish(&store, author(AUTHORS), "first".to_owned()).await;
    remove(&mut admin, "*:request:*").await;
    let before = used(&mut admin).await;

    let (mut requests, mut last) = (0, None);
    for round in 0..POSTS_EACH {
        let posts = (0..AUTHORS).map(|n| publish(&store, author(n), text(round * AUTHORS + n)));
        let ids: Vec<_> = stream::iter(posts).buffer_unordered(AT_ONCE).collect().await;
        store.delivered(&ids).await.unwrap();
        last = ids.last().copied();
        // All at once, so that the hash table of keys grows as if most posts were old.
        let with_requests = used(&mut admin).await;
        assert_eq!(remove(&mut admin, "*:request:*").await, AUTHORS);
        requests += with_requests - used(&mut admin).await;
    }
    let with_rate_limits = used(&mut admin).await;
    assert_eq!(remove(&mut admin, "*:post_rate:*").await, AUTHORS + 1);
    let after = used(&mut admin).await;

    let id = last.unwrap();
    let (partition, owner) = (id.partition(), author(0));
    let key = format!("post:{{{partition}}}:post:{id}");
    let list = format!("post:{{{}}}:posts:{owner}", owner.partition());
    Ours {
        held: Held {
            bytes_per_post: (after - before) as f64 / POSTS as f64,
            key_bytes: usage(&mut admin, &key).await,
        },
        index: usage(&mut admin, &list).await as f64 / POSTS_EACH as f64,
        long_index: long_index(&mut admin).await,
        request: requests as f64 / POSTS as f64,
        rate_limit: (with_rate_limits - after) as f64 / AUTHORS as f64,
    }
}

/// Returns the memory of each post in the list of an author with many.
async fn long_index(admin: &mut MultiplexedConnection) -> f64 {
    let mut add = cmd("ZADD");
    add.arg("long");
    for n in 0..LONG {
        add.arg(plain_id(n)).arg(plain_id(n));
    }
    add.exec_async(admin).await.unwrap();
    usage(admin, "long").await as f64 / LONG as f64
}

async fn plain(options: &[(&str, &str)], text: fn(u64) -> String) -> Held {
    let server = RedisServer::start_with(options).await;
    let admin = server.admin().await;
    let before = used(&mut admin.clone()).await;
    let writes = (0..POSTS).map(|n| {
        let mut admin = admin.clone();
        async move {
            let (id, author) = (plain_id(n), author(n % AUTHORS).get());
            let mut pipeline = redis::pipe();
            pipeline.cmd("HSET").arg(format!("post:{id}"));
            pipeline.arg("id").arg(id).arg("author_id").arg(author).arg("text").arg(text(n));
            pipeline.arg("created_at").arg(1_700_000_000_000 + n);
            pipeline.arg("likes").arg(0).arg("comments").arg(0).arg("reposts").arg(0);
            pipeline.cmd("ZADD").arg(format!("user:{author}:posts")).arg(id).arg(id);
            pipeline.exec_async(&mut admin).await
        }
    });
    stream::iter(writes).buffer_unordered(AT_ONCE).try_collect::<()>().await.unwrap();
    let mut admin = admin;
    let after = used(&mut admin).await;
    let key_bytes = usage(&mut admin, &format!("post:{}", plain_id(7))).await;
    Held { bytes_per_post: (after - before) as f64 / POSTS as f64, key_bytes }
}

fn plain_id(n: u64) -> u64 {
    ((62_000_000_000 + n * 13) << 12) | ((n * 37 % 1024) << 2)
}
