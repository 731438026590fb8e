//! The time to recover a partition of 1,000 accounts and 100,000 follows that Redis has lost, and to
//! record and restore a whole graph, with the process's peak memory meanwhile.
//!
//! `cargo bench -p microblog-relation --bench recovery [-- FOLLOWS]`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

#[path = "../../shared/record/benches/support/mod.rs"]
mod recording;

use std::{sync::Arc, time::Instant};

use clap::Parser as _;
use microblog_domain::{Partition, UserId};
use microblog_record::Source;
use microblog_relation::{Config, Edge, EdgeSaga, Store, recorder};
use microblog_testkit::{Database, RedisServer, redis};

const PARTITION_ACCOUNTS: u64 = 1_000;
const FOLLOWS_EACH: u64 = 100;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let follows = recording::argument(0).unwrap_or(1_000_000);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for database in Database::both().await {
            println!("{}:", database.kind());
            measure(&database, follows).await;
        }
    });
}

/// Returns an account, the `n`th one of a partition.
fn account(n: u64, partition: u64) -> UserId {
    UserId::new((1 + n) << 12 | partition << 2).unwrap()
}

async fn measure(database: &Database, follows: u64) {
    let server = RedisServer::start().await;
    let url = server.url("relation");
    let config = Config::parse_from(["relation", "--redis-url", &url, &database.flag()]);
    let store = Store::open(&config).unwrap();
    assert!(store.is_ready().await);
    let edges = EdgeSaga::new(store.clone());
    // Accounts of the first partition follow others, each of another partition.
    let partition = (0..PARTITION_ACCOUNTS).flat_map(|from| {
        (0..FOLLOWS_EACH).map(move |to| Edge {
            from: account(from, 0),
            to: account((from + to) % PARTITION_ACCOUNTS, 1 + (from * 7 + to) % 1_023),
        })
    });
    import(&edges, partition).await;
    let of_all = (0..follows).map(|n| Edge {
        from: account(n / FOLLOWS_EACH / 1_023, 1 + n / FOLLOWS_EACH % 1_023),
        to: account(n % 997, (n * 31 + 5) % 1_024),
    });
    import(&edges, of_all.filter(|edge| edge.from != edge.to)).await;
    let database = microblog_record::Database::open(&config.database).unwrap().unwrap();
    let recorder = Arc::new(recorder(store, database));
    let all = (follows + PARTITION_ACCOUNTS * FOLLOWS_EACH, "follows");
    recording::record(&recorder, all).await;

    let mut admin = server.admin().await;
    lose(&mut admin, "rel:{0}:*").await;
    let begun = recorder.begin_restore(Source::Database, true).await.unwrap();
    let started = Instant::now();
    assert!(recorder.restore(&begun, Partition::new(0)).await.unwrap());
    let seconds = started.elapsed().as_secs_f64();
    println!("  a partition of 100,000 follows recovered: {seconds:.1} s");

    recording::restore_all(&server, &recorder, all).await;
}

async fn import(edges: &EdgeSaga, mut follows: impl Iterator<Item = Edge>) {
    loop {
        let chunk: Vec<_> = follows.by_ref().take(20_000).collect();
        if chunk.is_empty() {
            break;
        }
        edges.import(chunk).await.unwrap();
    }
}

/// Deletes the keys that match a pattern.
async fn lose(admin: &mut redis::aio::MultiplexedConnection, pattern: &str) {
    let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(admin).await.unwrap();
    for keys in keys.chunks(1_000) {
        let () = redis::cmd("UNLINK").arg(keys).query_async(admin).await.unwrap();
    }
}
