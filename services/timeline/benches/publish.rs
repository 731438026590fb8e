//! The latency of `Deliver` for authors with 10, 10,000 and 1,000,000 followers with fan-out on
//! write: without load, and during the fan-out of the author with the most. The followers have no
//! home timelines: the benchmark shows that `Deliver` does not wait for the fan-out.
//!
//! `cargo bench -p microblog-timeline --bench publish`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

mod support;

use std::time::Instant;

use microblog_testkit::{
    Topology,
    redis::{aio::MultiplexedConnection, cmd},
};
use support::{System, id, run_alone};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The followers of each author, fewest first.
const FOLLOWERS: [u64; 3] = [10, 10_000, 1_000_000];

/// The posts of each author without load, in turn.
const ROUNDS: usize = 50;

/// The posts of each author during fan-outs.
const BUSY_ROUNDS: usize = 300;

fn main() {
    run_alone(async {
        let system = System::start_with(Topology::Single, &["--mode", "push"]).await;
        let mut admin = system.server().admin().await;
        for (n, followers) in (0..).zip(FOLLOWERS) {
            let followers: Vec<_> = (1_000..1_000 + followers).map(id).collect();
            system.import(&followers, id(n)).await;
        }
        print("nothing else is under way", quiescent(&system, &mut admin).await);
        print("a fan-out to 1,000,000 is under way", busy(&system, &mut admin).await);
    });
}

/// The milliseconds of each call, for each author.
type Latencies = Vec<Vec<f64>>;

fn print(when: &str, mut latencies: Latencies) {
    println!("milliseconds of Deliver while {when}, {} calls each", latencies[0].len());
    println!("{:<16}{:>10}{:>10}{:>14}", "followers", "p50", "p99", "p50 ratio");
    latencies.iter_mut().for_each(|of_one| of_one.sort_by(f64::total_cmp));
    let at = |of_one: &[f64], part: usize| of_one[of_one.len() * part / 100];
    for (followers, of_one) in FOLLOWERS.iter().zip(&latencies) {
        let ratio = at(of_one, 50) / at(&latencies[0], 50);
        println!("{followers:<16}{:>10.2}{:>10.2}{ratio:>14.2}", at(of_one, 50), at(of_one, 99));
    }
    println!();
}

/// One call at a time, each after all fan-outs are complete.
async fn quiescent(system: &System, admin: &mut MultiplexedConnection) -> Latencies {
    let mut latencies = vec![Vec::new(); FOLLOWERS.len()];
    for _ in 0..ROUNDS {
        for (n, of_one) in (0..).zip(&mut latencies) {
            of_one.push(post(system, n).await);
            system.drained(admin, id(n)).await;
        }
    }
    latencies
}

/// One call at a time of the other authors, during fan-outs of the author with the most followers.
async fn busy(system: &System, admin: &mut MultiplexedConnection) -> Latencies {
    let largest = FOLLOWERS.len() - 1;
    let stream = format!("tl:{{{largest}}}:fanout");
    let mut latencies = vec![Vec::new(); largest];
    for _ in 0..BUSY_ROUNDS {
        if cmd("XLEN").arg(&stream).query_async::<u64>(admin).await.unwrap() == 0 {
            post(system, largest as u64).await;
        }
        for (n, of_one) in (0..).zip(&mut latencies) {
            of_one.push(post(system, n).await);
        }
    }
    latencies
}

/// Returns the milliseconds of a delivery.
async fn post(system: &System, author: u64) -> f64 {
    let began = Instant::now();
    system.post(id(author)).await;
    began.elapsed().as_secs_f64() * 1e3
}
