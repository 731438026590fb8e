//! The time to recover a partition of 1,000 accounts and 100,000 follows that Redis has lost, and to
//! record and restore a whole graph, with the process's peak memory meanwhile.
//!
//! `cargo bench -p microblog-relation --bench recovery [-- FOLLOWS]`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser as _;
use futures::{StreamExt as _, stream};
use microblog_domain::{Partition, UserId};
use microblog_record::{Database, Recorder, Restore, Source};
use microblog_relation::{Config, Edge, EdgeSaga, GraphTables, Store, recorder};
use microblog_testkit::{PostgresServer, RedisServer, redis};

const PARTITION_ACCOUNTS: u64 = 1_000;
const FOLLOWS_EACH: u64 = 100;

/// Partitions that are restored at once, as by the RPC.
const AT_ONCE: usize = 8;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let follows = std::env::args().skip(1).find_map(|word| word.parse().ok());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure(follows.unwrap_or(1_000_000)));
}

/// Returns an account, the `n`th one of a partition.
fn account(n: u64, partition: u64) -> UserId {
    UserId::new((1 + n) << 12 | partition << 2).unwrap()
}

async fn measure(follows: u64) {
    let directory = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite://{}/relation.sqlite", directory.path().display());
    let postgres = PostgresServer::start().await;
    for url in [sqlite, postgres.url()] {
        println!("{}:", url.split(':').next().unwrap());
        of_database(&url, follows).await;
    }
}

async fn of_database(url: &str, follows: u64) {
    let server = RedisServer::start().await;
    let flags = ["relation", "--redis-url", &server.url("relation"), "--database-url", url];
    let config = Config::parse_from(flags);
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
    let database = Database::open(&config.database).unwrap().unwrap();
    let recorder = Arc::new(recorder(store, database));
    let all = (follows + PARTITION_ACCOUNTS * FOLLOWS_EACH) as f64;
    let filled = timed(async { recorder.run().await.unwrap() }).await;
    report("recorded from nothing", filled, all);

    let mut admin = server.admin().await;
    lose(&mut admin, "rel:{0}:*").await;
    let begun = recorder.begin_restore(Source::Database, true).await.unwrap();
    let recovered = timed(restore(&recorder, &begun, Partition::new(0))).await;
    println!("  a partition of 100,000 follows recovered: {:.1} s", s(recovered));

    let () = redis::cmd("FLUSHALL").query_async(&mut admin).await.unwrap();
    let restored = timed(async {
        let restored = stream::iter(Partition::all()).map(|at| restore(&recorder, &begun, at));
        restored.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
    });
    report("all restored", restored.await, all);
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

async fn restore(recorder: &Recorder<GraphTables>, begun: &Restore, partition: Partition) {
    assert!(recorder.restore(begun, partition).await.unwrap());
}

/// Deletes the keys that match a pattern.
async fn lose(admin: &mut redis::aio::MultiplexedConnection, pattern: &str) {
    let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(admin).await.unwrap();
    for keys in keys.chunks(1_000) {
        let () = redis::cmd("UNLINK").arg(keys).query_async(admin).await.unwrap();
    }
}

async fn timed(work: impl Future<Output = ()>) -> Duration {
    // Resets the peak.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let begun = Instant::now();
    work.await;
    begun.elapsed()
}

fn report(what: &str, duration: Duration, follows: f64) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim();
    let rate = follows / s(duration);
    println!("  {what}: {:.1} s, {rate:.0} follows a second, peak {peak}", s(duration));
}

fn s(duration: Duration) -> f64 {
    duration.as_secs_f64()
}
