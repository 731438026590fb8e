//! What `Follow` costs at each durability level, with one and with two workers: throughput, latency,
//! commands and transactions.
//!
//! `cargo bench -p microblog-relation --bench durability`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::{
    process::{Child, Command},
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use microblog_domain::Partition;
use microblog_proto::relation::FollowRequest;
use microblog_testkit::{PATIENCE, RedisServer, eventually, free_port};
use sqlx::{AnyConnection, Connection as _};
use support::{Client, database::Database, id};

const FOLLOWS: u64 = 6_400;

/// Follows of one caller at a time.
const FOLLOWS_ALONE: u64 = 640;

/// Connections to the service.
const CLIENTS: u64 = 8;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for (workers, callers) in [(1, 64), (2, 64), (1, 1)] {
            for level in ["local", "replicated", "recorded"] {
                measure(workers, callers, level, Database::postgres().await).await;
                measure(workers, callers, level, Database::sqlite()).await;
            }
        }
    });
}

/// The service in a process of its own. Dropping it kills it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn measure(workers: usize, callers: usize, level: &str, database: Database) {
    let redis = RedisServer::start().await;
    let _replica = redis.start_replica().await;
    let address = format!("127.0.0.1:{}", free_port());
    let mut server = Command::new(env!("CARGO_BIN_EXE_microblog-relation"));
    server.args(["--redis-url", &redis.url("relation"), "--listen", &address, &database.flag()]);
    server.args(["--threads", &workers.to_string(), "--durability", level, "--log", "error"]);
    let _server = Server(server.spawn().unwrap());
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(support::client(&format!("http://{address}")).await);
    }
    // Every partition is recorded, and its functions are loaded.
    for partition in Partition::all() {
        let follower = (1 << 40) + u64::from(partition.number()) * 4;
        eventually("a change is acknowledged", PATIENCE, async || {
            follow(clients[0].clone(), follower, id(1)).await.is_some()
        })
        .await;
    }
    redis.reset_commandstats().await;
    let follows = if callers == 1 { FOLLOWS_ALONE } else { FOLLOWS };
    let begun = Instant::now();
    let call = |n: u64| follow(clients[(n % CLIENTS) as usize].clone(), id(n), id(n + FOLLOWS));
    let mut latencies: Vec<Duration> = stream::iter(1..=follows)
        .map(async |n| call(n).await.unwrap())
        .buffer_unordered(callers)
        .collect()
        .await;
    let rate = follows as f64 / begun.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let [median, last] = [50, 99].map(|part| latencies[latencies.len() * part / 100]);
    let calls = redis.commandstats().await;
    let each = |name: &str| *calls.get(name).unwrap_or(&0) as f64 / follows as f64;
    println!(
        "{workers} workers, {callers} callers, {level}, {}: {rate:.0}/s, median {median:.1?}, \
         99% {last:.1?}; per follow: {:.2} fcall, {:.2} xrange, {:.3} wait{}",
        if matches!(database, Database::Sqlite(_)) { "SQLite" } else { "PostgreSQL" },
        each("fcall"),
        each("xrange"),
        each("wait"),
        transactions(&database, follows).await,
    );
}

/// Returns how long an acknowledged follow took.
async fn follow(mut client: Client, follower_id: u64, target_id: u64) -> Option<Duration> {
    let begun = Instant::now();
    client.follow(FollowRequest { follower_id, target_id }).await.ok()?;
    Some(begun.elapsed())
}

/// Returns how many transactions wrote the follows. PostgreSQL alone tells.
async fn transactions(database: &Database, follows: u64) -> String {
    if let Database::Sqlite(_) = database {
        return String::new();
    }
    sqlx::any::install_default_drivers();
    let mut connection = AnyConnection::connect(&database.url()).await.unwrap();
    let count: i64 =
        sqlx::query_scalar("SELECT count(DISTINCT xmin::text) FROM edges WHERE source < $1")
            .bind(1_i64 << 40)
            .fetch_one(&mut connection)
            .await
            .unwrap();
    format!(", {:.3} transactions", count as f64 / follows as f64)
}
