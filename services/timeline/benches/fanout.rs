//! The throughput of fan-out on write, compared with the least that the usual design costs: bare
//! pipelined `ZADD`s and `ZREMRANGEBYRANK`s of the same posts into as many sorted sets of the same
//! length on the same server. Ours is the whole path: a job in the stream and the lists of
//! followers from the relation service over TCP, all in one thread, plus Redis.
//!
//! On a busy machine, set `MICROBLOG_REDIS_TIMEOUT_MS=10000`: a step that waits for Redis for
//! longer than a second is repeated later.
//!
//! `cargo bench -p microblog-timeline --bench fanout`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

mod support;

use std::time::Instant;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_domain::UserId;
use microblog_testkit::{
    Topology,
    redis::{self, aio::MultiplexedConnection, cmd},
};
use support::{
    System, build, id, median, old_entries, own_seconds, post_id, redis_seconds, run_alone,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Follower counts, and the entries of their home timelines: many short ones, and fewer full ones,
/// since 100,000 full sorted sets take 10 GB.
const CASES: [(u64, u64); 2] = [(100_000, 30), (20_000, 800)];

/// Consecutive posts.
const POSTS: u64 = 5;

/// The rounds of both measurements, in turn.
const ROUNDS: usize = 5;

/// The length at which sorted sets are trimmed.
const HOME_MAX: isize = 800;

/// The commands of a pipeline, and the concurrent pipelines: one is encoded while Redis executes
/// another, as the keyspace does.
const PIPELINE: usize = 1_000;
const PIPELINES: usize = 2;

fn main() {
    run_alone(async {
        for (followers, entries) in CASES {
            measure(followers, entries).await;
        }
    });
}

/// The total duration of deliveries, in seconds.
struct Took {
    wall: f64,
    redis: f64,
    own: f64,
}

async fn measure(followers: u64, length: u64) {
    let system = System::start_with(Topology::Single, &["--mode", "push"]).await;
    let author = id(0);
    let users: Vec<u64> = (1..=followers).map(scattered).collect();
    system.import(&users, author).await;
    let entries = old_entries(length, 100);
    build(&system.store, &users, &entries, &[]).await;
    let sets: Vec<String> =
        users.iter().map(|user| format!("tl:{{{}}}:sets:{user}", (user >> 2) & 1023)).collect();
    let mut admin = system.server().admin().await;
    let members: Vec<u64> = entries.iter().map(|entry| entry.post.get()).collect();
    fill(&mut admin, &sets, &members).await;

    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let took = [
            time(&mut admin, async |admin| push(&system, admin, author).await).await,
            time(&mut admin, async |admin| add(admin, &sets, author).await).await,
        ];
        let [our, their] = took;
        // The first round warms up.
        if round > 0 {
            ours.push(our);
            bare.push(their);
        }
    }
    let delivered = length + (ROUNDS as u64 + 1) * POSTS;
    assert_delivered(&system, &users, delivered.min(800)).await;
    print(followers, length, &ours, &bare);
}

fn print(followers: u64, length: u64, ours: &[Took], bare: &[Took]) {
    let deliveries = (followers * POSTS) as f64;
    println!(
        "{POSTS} posts to {followers} followers, each with a home timeline of {length} entries"
    );
    println!("{:<16}{:>14}{:>20}{:>20}", "", "deliveries/s", "µs of Redis each", "µs of ours each");
    let row = |name: &str, took: &[Took]| {
        let of = |what: fn(&Took) -> f64| median(took.iter().map(what).collect());
        let each = |seconds: f64| seconds / deliveries * 1e6;
        let (rate, redis, own) =
            (deliveries / of(|t| t.wall), each(of(|t| t.redis)), each(of(|t| t.own)));
        println!("{name:<16}{rate:>14.0}{redis:>20.2}{own:>20.2}");
        (rate, redis)
    };
    let (our_rate, our_redis) = row("fan-out", ours);
    let (bare_rate, bare_redis) = row("sorted sets", bare);
    println!("{:<16}{:>14.2}{:>20.2}\n", "ratio", our_rate / bare_rate, our_redis / bare_redis);
}

async fn time(
    admin: &mut MultiplexedConnection,
    work: impl AsyncFnOnce(&mut MultiplexedConnection),
) -> Took {
    let (redis, own, began) = (redis_seconds(admin).await, own_seconds(), Instant::now());
    work(admin).await;
    let wall = began.elapsed().as_secs_f64();
    Took { wall, redis: redis_seconds(admin).await - redis, own: own_seconds() - own }
}

/// Our design: from the first call to the end of the last job.
async fn push(system: &System, admin: &mut MultiplexedConnection, author: u64) {
    for _ in 0..POSTS {
        system.post(author).await;
    }
    system.drained(admin, author).await;
}

/// The usual design.
async fn add(admin: &mut MultiplexedConnection, sets: &[String], author: u64) {
    for _ in 0..POSTS {
        let post = post_id(author);
        let pipelines = sets.chunks(PIPELINE / 2).map(|sets| {
            let mut admin = admin.clone();
            async move {
                let mut pipeline = redis::pipe();
                for set in sets {
                    pipeline.cmd("ZADD").arg(set).arg(post).arg(post).ignore();
                    pipeline.cmd("ZREMRANGEBYRANK").arg(set).arg(0).arg(-HOME_MAX - 1).ignore();
                }
                pipeline.exec_async(&mut admin).await
            }
        });
        let added: Result<(), _> =
            stream::iter(pipelines).buffer_unordered(PIPELINES).try_collect().await;
        added.unwrap();
    }
}

/// Fills all sorted sets alike.
async fn fill(admin: &mut MultiplexedConnection, sets: &[String], members: &[u64]) {
    let first = &sets[0];
    for &member in members {
        cmd("ZADD").arg(first).arg(member).arg(member).exec_async(admin).await.unwrap();
    }
    for others in sets[1..].chunks(PIPELINE) {
        let mut pipeline = redis::pipe();
        for set in others {
            pipeline.cmd("COPY").arg(first).arg(set).ignore();
        }
        pipeline.exec_async(admin).await.unwrap();
    }
}

async fn assert_delivered(system: &System, users: &[u64], expected: u64) {
    for &user in users.iter().step_by(users.len() / 100) {
        let home = system.store.home(UserId::new(user).unwrap()).await.unwrap().unwrap();
        assert_eq!(home.entries.len() as u64, expected);
    }
}

/// Returns the id of the nth follower, in a partition independent of n.
fn scattered(n: u64) -> u64 {
    let partition = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    ((1_000_000 + n) << 12) | (partition << 2)
}
