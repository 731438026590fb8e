//! Processes are killed, and databases killed and paused, while posts are published, changed,
//! deleted, evicted and restored. Nothing is lost or duplicated, and no existing post is ever
//! reported as missing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod erasure;
mod load;
mod outcome;
#[path = "../support/mod.rs"]
mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::{join, join_all};
use load::Load;
use microblog_domain::Partition;
use microblog_post::{Archive, Config, Evictor, Store, recorder};
use microblog_testkit::{self as testkit, Process, RedisServer};
use support::{
    archives::{ArchiveServer, Kind},
    client, config,
    timelines::Timelines,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_microblog-post");

/// The partitions of all accounts. Few, since the evictor visits some each second.
const PARTITIONS: u16 = 4;

/// The number of successful calls between two faults.
const CALLS: usize = 150;

/// Returns the id of the n-th account.
pub(crate) const fn account(n: u64) -> u64 {
    (n << 12) | ((n % PARTITIONS as u64) << 2)
}

/// The post service as a process, with its stores and the timelines that it delivers to.
struct Deployed {
    redis: RedisServer,
    archives: ArchiveServer,
    timelines: Timelines,
    port: u16,
    args: Vec<String>,
}

impl Deployed {
    async fn new(kind: Kind) -> Self {
        let (redis, archives) = (RedisServer::start().await, ArchiveServer::start(kind).await);
        let timelines = Timelines::default();
        let url = redis.url("post");
        let timeline_url = timelines.listen(&config(&url, &[]));
        let args = [
            format!("--redis-url={url}"),
            format!("--timeline-url={timeline_url}"),
            format!("--database-url={}", archives.url()),
            "--posts-per-minute=0".to_owned(),
            "--comments-per-minute=0".to_owned(),
            "--restores-per-minute=0".to_owned(),
            // The grace period of an erasure is twice as long.
            "--max-timeout-ms=3000".to_owned(),
            "--hot-window=0s".to_owned(),
            "--hot-posts=5".to_owned(),
            "--warm-window=200ms".to_owned(),
        ];
        Self { redis, archives, timelines, port: testkit::free_port(), args: args.into() }
    }

    async fn start(&self) -> Process {
        let args: Vec<_> = self.args.iter().map(String::as_str).collect();
        Process::start_on(self.port, PROGRAM, &args).await
    }

    /// Returns the configuration of another process that records and evicts like this one.
    fn config(&self, flags: &[&str]) -> Config {
        let archive_url = format!("--database-url={}", self.archives.url());
        let flags: Vec<_> =
            [&*archive_url, "--hot-window=0s"].into_iter().chain(flags.iter().copied()).collect();
        config(&self.redis.url("post"), &flags)
    }
}

/// Records and evicts beside the process, without its leases, and is cancelled again and again.
async fn records_and_evicts(config: &Config, is_done: &AtomicBool, evicted: &AtomicU64) {
    let store = Store::open(config).unwrap();
    let partitions: Vec<_> = (0..PARTITIONS).map(Partition::new).collect();
    let archive = Archive::open(&config.database).unwrap().unwrap();
    let recorder = Arc::new(recorder(&store, &archive, &config.archive));
    // Calls are rejected until the stores were compared once.
    testkit::eventually("the stores are compared", support::PATIENCE, async || {
        recorder.run().await.is_ok()
    })
    .await;
    let evictor = Evictor::new(store, archive, recorder.clone(), &config.archive);
    let moving = async {
        let mut milliseconds = 1;
        while !is_done.load(Ordering::Relaxed) {
            let work = async {
                loop {
                    // Failures are ignored, since every outage ends.
                    let moved = join_all(partitions.iter().map(async |partition| {
                        let moved = evictor.partition(*partition).await;
                        let moved = moved.map_or(0, |moved| moved.evicted);
                        evicted.fetch_add(moved, Ordering::Relaxed);
                    }));
                    let (recorded, _) = join(recorder.record(&partitions), moved).await;
                    let pause = if recorded.is_ok() { 5 } else { 100 };
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
            };
            let _ = tokio::time::timeout(Duration::from_millis(milliseconds), work).await;
            milliseconds = (milliseconds * 13 + 7) % 900;
        }
    };
    // After each outage of Redis, calls wait for a comparison.
    tokio::select! {
        () = recorder.compare_after_connecting() => {}
        () = moving => {}
    }
}

/// Stops and starts the dependencies of the service, and the service itself.
async fn faults(deployed: &Deployed, kind: Kind, load: &Load) {
    let mut process = deployed.start().await;
    for round in 0..2 {
        load.goes_well(CALLS).await;
        process.kill9();
        process = deployed.start().await;
        load.goes_well(CALLS).await;
        deployed.redis.kill();
        load.meets_trouble().await;
        deployed.redis.restart().await;
        load.goes_well(CALLS).await;
        if kind == Kind::Postgres {
            let postgres = deployed.archives.postgres();
            if round == 0 {
                postgres.kill();
                load.makes_posts(CALLS / 4).await;
                postgres.restart().await;
            } else {
                postgres.pause();
                load.makes_posts(CALLS / 4).await;
                process.kill9();
                process = deployed.start().await;
                load.makes_posts(CALLS / 4).await;
                postgres.resume();
            }
            load.goes_well(CALLS).await;
        }
    }
    load.goes_well(CALLS).await;
    load.stop();
    // The process runs as long as the callers need it.
    load.is_over().await;
}

async fn nothing_is_lost(kind: Kind) {
    let deployed = Deployed::new(kind).await;
    let client = client(&format!("http://127.0.0.1:{}", deployed.port));
    let load = Load::default();
    let (is_done, evicted) = (AtomicBool::new(false), AtomicU64::new(0));
    let driver = deployed.config(&["--hot-posts=5", "--warm-window=200ms"]);
    let moving = records_and_evicts(&driver, &is_done, &evicted);
    let work = async {
        join(load.run(&client), faults(&deployed, kind, &load)).await;
        is_done.store(true, Ordering::Relaxed);
    };
    join(moving, work).await;
    let evicted = evicted.load(Ordering::Relaxed);
    assert!(evicted > 100, "this process evicted {evicted}");

    let process = deployed.start().await;
    let config = deployed.config(&["--hot-posts=0", "--warm-window=0s"]);
    outcome::is_right(&client, &load, &config, &deployed.timelines).await;
    drop(process);
}

#[tokio::test]
async fn nothing_is_lost_with_postgres() {
    nothing_is_lost(Kind::Postgres).await;
}

#[tokio::test]
async fn nothing_is_lost_with_sqlite() {
    nothing_is_lost(Kind::Sqlite).await;
}
