//! What the cache answers of a post that many accounts like at a time, some of whom end that at once, while
//! others comment on it and read it, through four processes. And whether its counts are exact then.
//!
//! `cargo bench -p microblog-post --bench cache`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::{net::SocketAddr, time::Duration};

use futures::future::{join_all, join4};
use microblog_proto::post as pb;
use microblog_testkit::{
    Database, PATIENCE, PostgresServer, Process, RedisServer, eventually, free_port, item_reads,
};
use support::{Client, id, request_id};
use tokio::time::{Instant, sleep_until};
use tonic::transport::{Channel, Endpoint};

const PROCESSES: usize = 4;

/// Calls a second.
const LIKES: u64 = 2_000;
/// So many likes are one that ends at once.
const UNLIKED: u64 = 10;
const COMMENTS: u64 = 20;
const READS: u64 = 5_000;

const RUN: Duration = Duration::from_secs(20);

struct Server {
    client: Client,
    metrics: SocketAddr,
    _process: Process,
}

impl Server {
    async fn start(redis: &RedisServer, database: &Database) -> Self {
        let (url, database) = (redis.url("post"), database.flag());
        let metrics = format!("127.0.0.1:{}", free_port());
        let flags = ["--redis-url", &url, &database, "--log", "error", "--threads", "1"];
        let limits = ["--metrics-listen", &metrics, "--comments-per-minute", "0"];
        let flags = [&flags[..], &limits].concat();
        let process = Process::start(env!("CARGO_BIN_EXE_microblog-post"), &flags).await;
        let endpoint = Endpoint::from_shared(process.address()).unwrap();
        let channel: Channel = endpoint.connect().await.unwrap();
        let (client, metrics) = (Client::new(channel), metrics.parse().unwrap());
        Self { client, metrics, _process: process }
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure());
}

/// Calls so often a second, each call through another process than the one before. Returns how many succeeded.
async fn call(
    servers: &[Server],
    per_second: u64,
    one: impl AsyncFn(Client, u64) -> bool + Copy,
) -> u64 {
    let start = Instant::now();
    let calls = (0..per_second * RUN.as_secs()).map(async |n| {
        sleep_until(start + Duration::from_secs(1) * n as u32 / per_second as u32).await;
        one(servers[n as usize % servers.len()].client.clone(), n).await
    });
    join_all(calls).await.into_iter().filter(|is_done| *is_done).count() as u64
}

async fn measure() {
    let redis = RedisServer::start().await;
    let database = Database::Postgres(PostgresServer::start_with(&["fsync=on"]).await);
    let start = (0..PROCESSES).map(|_| Server::start(&redis, &database));
    let servers = join_all(start).await;
    let request = pb::CreatePostRequest {
        author_id: id(1),
        request_id: request_id(),
        text: "a post that many like".to_owned(),
    };
    let mut client = servers[0].client.clone();
    let post_id = client.create_post(request).await.unwrap().into_inner().post.unwrap().id;

    let like = async |mut client: Client, n: u64| {
        let request = pb::LikeRequest { user_id: id(1_000 + n), post_id };
        let is_liked = client.like(request).await.is_ok();
        if !n.is_multiple_of(UNLIKED) {
            return is_liked;
        }
        let request = pb::UnlikeRequest { user_id: id(1_000 + n), post_id };
        client.unlike(request).await.unwrap();
        false
    };
    let comment = async |mut client: Client, n: u64| {
        let request = pb::AddCommentRequest {
            author_id: id(1_000 + n),
            request_id: request_id(),
            post_id,
            text: "so do I".to_owned(),
            in_reply_to_id: 0,
        };
        client.add_comment(request).await.is_ok()
    };
    let view = async |mut client: Client, n: u64| {
        let request = pb::GetPostRequest { post_id, viewer_id: id(500 + n % 100) };
        client.get_post(request).await.is_ok()
    };
    let likers = async |mut client: Client, _| {
        let request = pb::ListLikersRequest { post_id, page_size: 20, ..Default::default() };
        client.list_likers(request).await.is_ok()
    };
    let reads = async || {
        let each = servers.iter().map(|server| item_reads(server.metrics));
        let each = join_all(each).await;
        [0, 1, 2].map(|at| each.iter().map(|reads| reads[at]).sum::<f64>())
    };

    let before = reads().await;
    let [likes, comments, views, pages] = join4(
        call(&servers, LIKES, like),
        call(&servers, COMMENTS, comment),
        call(&servers, READS / 2, view),
        call(&servers, READS / 2, likers),
    )
    .await
    .into();
    let after = reads().await;

    let reads = [0, 1, 2].map(|at| after[at] - before[at]);
    let all: f64 = reads.iter().sum();
    let [hits, loads, bypasses] = reads.map(|reads| 100.0 * reads / all);
    println!(
        "{likes} likes that stay, {comments} comments, {views} views and {pages} pages of likes in {RUN:?}: of {all} \
         items {hits:.2}% from the cache, {loads:.2}% loaded, {bypasses:.2}% past it"
    );
    eventually("each process has the counts", PATIENCE, async || {
        let counts = servers.iter().map(async |server| {
            let request = pb::GetPostRequest { post_id, viewer_id: 0 };
            let answer = server.client.clone().get_post(request).await.unwrap().into_inner();
            let post = answer.post.unwrap();
            (post.likes, post.comments)
        });
        join_all(counts).await.into_iter().all(|counts| counts == (likes, comments))
    })
    .await;
}
