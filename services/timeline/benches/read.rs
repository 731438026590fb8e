//! The cost of a page of 20 from a full home timeline: round trips and commands of Redis, with
//! those of the relation service, and its time. Compared with a `ZREVRANGE` of 20 from a sorted set
//! of the same posts. Each pulled author has 50 posts.
//!
//! `cargo bench -p microblog-timeline --bench read`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

mod support;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_domain::UserId;
use microblog_testkit::{
    Topology,
    redis::{RedisError, aio::MultiplexedConnection, cmd},
};
use support::{System, build, delivery, id, median, old_entries, redis_seconds, run_alone};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The entries of the timeline, and their authors.
const ENTRIES: u64 = 800;
const AUTHORS: u64 = 100;

/// The numbers of pulled authors, and the posts of each.
const PULLED: [u64; 3] = [0, 10, 50];
const PULLED_POSTS: u64 = 50;

const PAGE: i32 = 20;

/// The reads per round, the concurrency, and the rounds, in turn.
const READS: usize = 5_000;
const AT_ONCE: usize = 32;
const ROUNDS: usize = 5;

/// The commands that the benchmark itself sends.
const ITS_OWN: [&str; 5] = ["info", "config|resetstat", "auth", "hello", "client|setinfo"];

fn main() {
    run_alone(async {
        println!(
            "a page of {PAGE} of {ENTRIES} entries of {AUTHORS} authors, {AT_ONCE} reads at once"
        );
        println!(
            "{:<24}{:>12}{:>10}{:>18}{:>8}  commands",
            "", "round trips", "commands", "µs of Redis", "ratio"
        );
        for pulled in PULLED {
            measure(pulled).await;
        }
    });
}

async fn measure(pulled: u64) {
    // Without background jobs, which would be counted.
    let system = System::start_without_jobs(Topology::Single).await;
    let mut admin = system.server().admin().await;
    let reader = id(0);
    let entries = old_entries(ENTRIES, AUTHORS);
    let pulls: Vec<u64> = (0..pulled).map(|n| id(600_000 + n)).collect();
    let authors = entries[..AUTHORS as usize].iter().map(|entry| entry.author.get());
    for author in authors.chain(pulls.iter().copied()) {
        system.follow(reader, author).await;
    }
    for &author in &pulls {
        for n in 0..PULLED_POSTS {
            // Between the others.
            let post = ((40_000_000 + ENTRIES - n) << 12) | (author & 0xffc);
            system.deliver(delivery(post, author, 0)).await;
        }
    }
    let pulls: Vec<_> = pulls.iter().map(|&author| UserId::new(author).unwrap()).collect();
    build(&system.store, &[reader], &entries, &pulls).await;
    let mut add = cmd("ZADD");
    add.arg("home");
    for post in entries.iter().map(|entry| entry.post.get()) {
        add.arg(post).arg(post);
    }
    add.exec_async(&mut admin).await.unwrap();
    assert_eq!(system.home_page(reader, PAGE, "", "").await.unwrap().0.len(), PAGE as usize);

    let trips = round_trips(&system, &mut admin, reader).await;
    let commands = commands(&system, reader).await;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let both = [read(&system, &mut admin, reader).await, range(&mut admin).await];
        // The first round warms up.
        if round > 0 {
            ours.push(both[0]);
            bare.push(both[1]);
        }
    }
    let (ours, bare) = (median(ours), median(bare));
    let count: u64 = commands.iter().map(|(_, count)| count).sum();
    let commands: Vec<_> = commands.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let name = format!("{pulled} authors are pulled");
    println!(
        "{name:<24}{trips:>12}{count:>10}{ours:>18.1}{:>8.1}  {}",
        ours / bare,
        commands.join(", ")
    );
    println!("{:<24}{:>12}{:>10}{bare:>18.1}{:>8.1}", "ZREVRANGE home 0 19", 1, 1, 1.0);
}

/// Returns the round trips of one read.
async fn round_trips(system: &System, admin: &mut MultiplexedConnection, reader: u64) -> u64 {
    let mut fewest = u64::MAX;
    // Sometimes something else runs.
    for _ in 0..ROUNDS {
        let before = sent(admin).await;
        system.home_page(reader, PAGE, "", "").await.unwrap();
        // The counter query is one of them.
        fewest = fewest.min(sent(admin).await - before - 1);
    }
    fewest
}

async fn sent(admin: &mut MultiplexedConnection) -> u64 {
    let info: String = cmd("INFO").arg("stats").query_async(admin).await.unwrap();
    let reads = info.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
    reads.unwrap().trim().parse().unwrap()
}

/// Returns the commands of one read with their counts.
async fn commands(system: &System, reader: u64) -> Vec<(String, u64)> {
    system.server().reset_commandstats().await;
    system.home_page(reader, PAGE, "", "").await.unwrap();
    let commands = system.server().commandstats().await;
    let is_ours = |(name, _): &(String, u64)| !ITS_OWN.contains(&&**name);
    let mut commands: Vec<_> = commands.into_iter().filter(is_ours).collect();
    commands.sort();
    commands
}

/// Returns the microseconds of Redis' time for one of our pages.
async fn read(system: &System, admin: &mut MultiplexedConnection, reader: u64) -> f64 {
    let before = redis_seconds(admin).await;
    let reads = (0..READS).map(|_| system.home_page(reader, PAGE, "", ""));
    stream::iter(reads).buffer_unordered(AT_ONCE).try_for_each(async |_| Ok(())).await.unwrap();
    (redis_seconds(admin).await - before) / READS as f64 * 1e6
}

/// Returns the same for the usual design, with the same concurrency on one connection.
async fn range(admin: &mut MultiplexedConnection) -> f64 {
    let before = redis_seconds(admin).await;
    let reads = (0..READS).map(|_| {
        let mut admin = admin.clone();
        async move {
            let mut range = cmd("ZREVRANGE");
            let range = range.arg("home").arg(0).arg(PAGE - 1);
            Ok::<_, RedisError>(range.query_async::<Vec<u64>>(&mut admin).await?.len())
        }
    });
    let reads = stream::iter(reads).buffer_unordered(AT_ONCE);
    reads.try_for_each(async |_| Ok(())).await.unwrap();
    (redis_seconds(admin).await - before) / READS as f64 * 1e6
}
