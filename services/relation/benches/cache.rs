//! What the cache answers with a quarter of the memory that everything needs, when requests are skewed as
//! real ones are (Zipf); and beside a Redis that is emptied every five seconds. For some and for many
//! accounts.
//!
//! `cargo bench -p microblog-relation --bench cache`
//!
//! With an edge list (`follower following` a line, not gzipped), instead: what the follows of a real graph take
//! in the cache. `cargo bench -p microblog-relation --bench cache -- "$PWD/FILE"`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use futures::future::{join, join_all, ready};
use microblog_proto::relation::{self as pb, EdgeList};
use microblog_testkit::{
    Database, PATIENCE, PostgresServer, Process, RedisServer, eventually, free_port, item_reads,
    redis::cmd,
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use support::{Client, id, import, list_for};

/// Accounts, each of which follows some of the others, any of them.
const ACCOUNTS: [usize; 2] = [2_000, 10_000];
const FOLLOWING: usize = 50;

const CALLERS: u64 = 64;

/// How long requests run before they count, and while they do.
const WARM_UP: Duration = Duration::from_secs(20);
const RUN: Duration = Duration::from_secs(60);

const EMPTIED_EVERY: Duration = Duration::from_secs(5);

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Cargo adds `--bench`.
    let file = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    runtime.block_on(async {
        if let Some(file) = file {
            let follows = read_graph(&std::fs::read_to_string(file).unwrap());
            let accounts = follows.iter().map(|(one, other)| one.max(other)).max();
            // Below an id are twelve bits of its partition.
            let accounts = (accounts.expect("the graph has follows") >> 12) as usize;
            System::start(accounts).await.fill(&follows).await;
            return;
        }
        for accounts in ACCOUNTS {
            measure(accounts).await;
        }
    });
}

/// Accounts by rank: the n-th is chosen with a probability in proportion to 1 / n.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(accounts: usize) -> Self {
        let mut sum = 0.0;
        let weights = (1..=accounts).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        Self(weights.collect())
    }

    fn account(&self, rng: &mut StdRng) -> u64 {
        let at = rng.random::<f64>() * self.0[self.0.len() - 1];
        id(self.0.partition_point(|&sum| sum < at) as u64 + 1)
    }

    /// Returns which part of the choices are of the quarter that is chosen most.
    fn first_quarter(&self) -> f64 {
        self.0[self.0.len() / 4 - 1] / self.0[self.0.len() - 1]
    }
}

struct System {
    client: Client,
    redis: RedisServer,
    metrics: std::net::SocketAddr,
    zipf: Zipf,
    _servers: (Database, Process),
}

impl System {
    async fn start(accounts: usize) -> Self {
        let redis = RedisServer::start_with(&[("maxmemory-policy", "volatile-lfu")]).await;
        let database = Database::Postgres(PostgresServer::start_with(&["fsync=on"]).await);
        let (url, database_flag) = (redis.url("relation"), database.flag());
        let metrics = format!("127.0.0.1:{}", free_port());
        let flags =
            ["--redis-url", &url, &database_flag, "--log", "error", "--metrics-listen", &metrics];
        let process = Process::start(env!("CARGO_BIN_EXE_microblog-relation"), &flags).await;
        let client = support::client(&process.address()).await;
        let (metrics, zipf) = (metrics.parse().unwrap(), Zipf::new(accounts));
        Self { client, redis, metrics, zipf, _servers: (database, process) }
    }

    /// Imports follows, reads the lists of all accounts, and prints what they take. Returns the used memory
    /// without them and with them.
    async fn fill(&self, follows: &[(u64, u64)]) -> [u64; 2] {
        let created = import(&self.client, follows).await.created;
        let empty = self.used_memory().await;
        let accounts = self.zipf.0.len();
        let users: Vec<u64> = (1..=accounts as u64).map(id).collect();
        let mut full = 0;
        // What the verifier removes of it is loaded again.
        eventually("everything is cached", 20 * PATIENCE, async || {
            for users in users.chunks(8) {
                let lists = users.iter().flat_map(|user| {
                    [EdgeList::Followers, EdgeList::Following].map(|list| (*user, list))
                });
                let reads = lists.map(async |(user, list)| {
                    let request = list_for(user, list, user, 50);
                    self.client.clone().list_edges(request).await.unwrap();
                });
                join_all(reads).await;
            }
            let last = std::mem::replace(&mut full, self.used_memory().await);
            full.abs_diff(last) < (full - empty) / 100
        })
        .await;
        let bytes = full - empty;
        let each = bytes / created;
        println!("{created} follows of {accounts} accounts take {bytes} bytes: {each} each");
        [empty, full]
    }

    async fn used_memory(&self) -> u64 {
        let mut admin = self.redis.admin().await;
        let info: String = cmd("INFO").arg("memory").query_async(&mut admin).await.unwrap();
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        used.unwrap().parse().unwrap()
    }

    /// Calls for a while, beside something else, and prints the calls and how items were read.
    async fn measure(&self, what: &str, beside: impl Future<Output = ()>) {
        let before = item_reads(self.metrics).await;
        let ([calls, failed], ()) = join(self.call(RUN), beside).await;
        let after = item_reads(self.metrics).await;
        let reads = [0, 1, 2].map(|n| after[n] - before[n]);
        let all: f64 = reads.iter().sum();
        let [hits, loads, bypasses] = reads.map(|reads| 100.0 * reads / all);
        println!(
            "{what}: {:.0} calls/s, {failed} failed; of {all} items {hits:.1}% from the cache, \
             {loads:.1}% loaded, {bypasses:.1}% past it",
            calls as f64 / RUN.as_secs_f64()
        );
    }

    /// Calls for a while. Returns the calls that succeeded, and those that failed.
    async fn call(&self, duration: Duration) -> [u64; 2] {
        let (until, calls, failed) = (Instant::now() + duration, Cell::new(0), Cell::new(0));
        let callers = (0..CALLERS).map(async |caller| {
            let mut rng = StdRng::seed_from_u64(caller);
            while Instant::now() < until {
                let user = self.zipf.account(&mut rng);
                let viewer = loop {
                    let viewer = self.zipf.account(&mut rng);
                    if viewer != user {
                        break viewer;
                    }
                };
                let counter =
                    if self.one_call(&mut rng, viewer, user).await { &calls } else { &failed };
                counter.set(counter.get() + 1);
            }
        });
        join_all(callers).await;
        [calls.get(), failed.get()]
    }

    /// A page of followers or of followings that an account sees; one call in ten changes a follow.
    async fn one_call(&self, rng: &mut StdRng, viewer: u64, user: u64) -> bool {
        let mut client = self.client.clone();
        let (follower_id, target_id) = (viewer, user);
        match rng.random_range(0..20) {
            0 => client.follow(pb::FollowRequest { follower_id, target_id }).await.is_ok(),
            1 => client.unfollow(pb::UnfollowRequest { follower_id, target_id }).await.is_ok(),
            n => {
                let list = if n % 2 == 0 { EdgeList::Followers } else { EdgeList::Following };
                client.list_edges(list_for(viewer, list, user, 50)).await.is_ok()
            }
        }
    }

    async fn limit(&self, bytes: u64) {
        let limit = cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).take();
        let () = limit.query_async(&mut self.redis.admin().await).await.unwrap();
    }

    async fn flush(&self) {
        cmd("FLUSHALL").exec_async(&mut self.redis.admin().await).await.unwrap();
    }
}

/// Reads an edge list whose accounts have the numbers from 0 on.
fn read_graph(text: &str) -> Vec<(u64, u64)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let follow = |line: &str| {
        let mut numbers =
            line.split_whitespace().map(|number| id(number.parse::<u64>().unwrap() + 1));
        Some((numbers.next()?, numbers.next()?))
    };
    lines.filter_map(follow).filter(|(follower, target)| follower != target).collect()
}

async fn measure(accounts: usize) {
    let system = System::start(accounts).await;
    let mut rng = StdRng::seed_from_u64(0);
    let mut any = || id(rng.random_range(1..=accounts as u64));
    let follow = |n: usize| (id((n % accounts) as u64 + 1), any());
    let follows = (0..accounts * FOLLOWING).map(follow);
    let follows: Vec<_> = follows.filter(|(follower, target)| follower != target).collect();
    let [empty, full] = system.fill(&follows).await;
    let first = 100.0 * system.zipf.first_quarter();
    println!("of all choices, {first:.1}% are of the quarter of the accounts that is chosen most");

    system.call(WARM_UP).await;
    system.measure("everything cached", ready(())).await;
    let emptied = async {
        let until = Instant::now() + RUN;
        while Instant::now() < until {
            system.flush().await;
            tokio::time::sleep(EMPTIED_EVERY).await;
        }
    };
    system.measure(&format!("emptied every {EMPTIED_EVERY:?}"), emptied).await;
    system.limit(empty + (full - empty) / 4).await;
    system.call(WARM_UP).await;
    system.measure("a quarter of the memory", ready(())).await;
}
