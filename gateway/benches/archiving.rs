//! The cost of archiving for callers of `Publish`: maximum throughput at the gateway over HTTP/2,
//! with all services in one thread. Compares a system without an archive, one with an SQLite file,
//! and a second one without an archive as a control. They take turns in all orders, each after the
//! same pause, because some machines are 10% faster after a pause. Also reports the archive's lag
//! at the end.
//!
//! `cargo bench -p microblog-gateway --bench archiving`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

use std::{
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use clap::Parser as _;
use microblog_chassis::{Peer, Service, Worker, serve};
use microblog_domain::Partition;
use microblog_gateway::Peers;
use microblog_proto::{
    gateway::{LoginRequest, PublishRequest, gateway_service_client::GatewayServiceClient},
    user::{ImportUsersRequest, user_service_client::UserServiceClient},
};
use microblog_testkit::{Database, RedisServer, redis::cmd};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::sleep,
};
use tonic::{Request, transport::Channel};
use uuid::Uuid;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Concurrent callers, each with one call in flight.
const CLIENTS: usize = 32;

/// Number of authors: far fewer than a limit of one post a second would require.
const AUTHORS: usize = 512;

/// The orders of turns: each of all orders twice.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];
const ROUNDS: usize = 2 * ORDERS.len();
const ROUND: Duration = Duration::from_secs(3);

/// The pause after a turn: longer than archiving the rest takes.
const PAUSE: Duration = Duration::from_secs(3);

const PASSWORD: &str = "correct horse battery";

/// A typical length of a post.
const TEXT: &str = "the quick brown fox jumps over a lazy dog while people write about weather, \
     music, food, travel, work, football, cats, politics and books and it";

fn main() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", directory.path().join("archive.sqlite").display());
    let flags: [(&str, &[&str]); 3] = [
        ("without an archive", &[]),
        ("with an archive", &["--database-url", &url]),
        ("without, once more", &[]),
    ];
    let systems = flags.map(|(_, flags)| System::start(&runtime, flags));
    runtime.block_on(async {
        // Creates connections, functions and tables before the measurement.
        for system in &systems {
            system.publish(Duration::from_secs(1)).await;
        }
        let mut measured = [const { Measured::new() }; 3];
        for round in 0..ROUNDS {
            for which in ORDERS[round % ORDERS.len()] {
                let (system, measured) = (&systems[which], &mut measured[which]);
                let before = cpu(&systems).await;
                let calls = system.publish(ROUND).await;
                measured.spent += cpu(&systems).await - before;
                measured.calls += calls;
                measured.rates.push(calls / ROUND.as_secs_f64());
                let pause = sleep(PAUSE);
                let (waiting, seconds) = system.drained().await;
                pause.await;
                measured.waiting = measured.waiting.max(waiting);
                measured.drained = measured.drained.max(seconds);
            }
        }
        println!(
            "Publish, {CLIENTS} clients, {AUTHORS} authors, {ROUNDS} rounds of {ROUND:?} each"
        );
        println!(
            "{:<20}{:>16}{:>8}{:>8}{:>14}{:>18}",
            "", "calls a second", "least", "most", "ratio", "processor time"
        );
        let without = (measured[0].median() + measured[2].median()) / 2.0;
        for ((name, _), measured) in flags.iter().zip(&measured) {
            let (median, [least, most]) = (measured.median(), measured.extremes());
            let each = measured.spent * 1e6 / measured.calls;
            println!(
                "{name:<20}{median:>16.0}{least:>8.0}{most:>8.0}{:>14.3}{each:>15.1} us",
                median / without
            );
        }
        let Measured { waiting, drained, .. } = &measured[1];
        println!("not archived at the end of a round: up to {waiting}, for {drained:.1} s more");
    });
}

/// The measurements of a system in all rounds.
struct Measured {
    rates: Vec<f64>,
    calls: f64,
    /// Seconds of processor time, including clients and Redis.
    spent: f64,
    waiting: u64,
    drained: f64,
}

impl Measured {
    const fn new() -> Self {
        Self { rates: Vec::new(), calls: 0.0, spent: 0.0, waiting: 0, drained: 0.0 }
    }

    fn sorted(&self) -> Vec<f64> {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates
    }

    fn median(&self) -> f64 {
        let sorted = self.sorted();
        (sorted[(ROUNDS - 1) / 2] + sorted[ROUNDS / 2]) / 2.0
    }

    fn extremes(&self) -> [f64; 2] {
        let sorted = self.sorted();
        [sorted[0], sorted[ROUNDS - 1]]
    }
}

/// All services, in a separate thread.
struct System {
    gateway: GatewayServiceClient<Channel>,
    tokens: Vec<String>,
    tiered: microblog_post::TieredStore,
    redis: RedisServer,
}

impl System {
    fn start(runtime: &Runtime, post: &[&str]) -> Self {
        let redis = runtime.block_on(RedisServer::start());
        let listeners = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses =
            [0, 1].map(|n: usize| format!("http://{}", listeners[n].local_addr().unwrap()));
        let urls = ["user", "relation", "post", "timeline"].map(|name| redis.url(name));
        let flags = ["--posts-per-minute", "0"].iter().chain(post);
        let flags: Vec<String> = flags.map(|&flag| flag.to_owned()).collect();
        let config = post_config(&urls[2], &flags);
        let store = microblog_post::Store::open(&config).unwrap();
        let archive = microblog_post::Archive::open(&config.database).unwrap();
        let tiered = microblog_post::TieredStore::new(store, archive, Duration::ZERO);
        thread::spawn(move || {
            let serving = Builder::new_current_thread().enable_all().build().unwrap();
            serving.block_on(run(urls, config, listeners));
        });
        let [gateway, user] = addresses;
        let tokens = runtime.block_on(members(&user, &gateway));
        let channel = Channel::from_shared(gateway).unwrap().tcp_nodelay(true);
        let gateway = runtime.block_on(async { GatewayServiceClient::new(channel.connect_lazy()) });
        Self { gateway, tokens, tiered, redis }
    }

    /// Publishes at maximum rate; returns the number of posts.
    async fn publish(&self, how_long: Duration) -> f64 {
        let began = Instant::now();
        let mut clients = JoinSet::new();
        for tokens in self.tokens.chunks(AUTHORS / CLIENTS) {
            let (mut gateway, tokens) = (self.gateway.clone(), tokens.to_vec());
            clients.spawn(async move {
                let mut calls = 0;
                for token in tokens.iter().cycle().take_while(|_| began.elapsed() < how_long) {
                    let request_id = Uuid::new_v4().to_string();
                    let message = PublishRequest { request_id, text: TEXT.to_owned() };
                    let mut request = Request::new(message);
                    let value = format!("Bearer {token}").parse().unwrap();
                    request.metadata_mut().insert("authorization", value);
                    gateway.publish(request).await.unwrap();
                    calls += 1;
                }
                calls
            });
        }
        let calls: u32 = clients.join_all().await.into_iter().sum();
        f64::from(calls)
    }

    /// Waits until everything is recorded. Returns the backlog at the start, and the duration in
    /// seconds.
    async fn drained(&self) -> (u64, f64) {
        let began = Instant::now();
        let waiting = self.unrecorded().await;
        while self.unrecorded().await > 0 {
            sleep(Duration::from_millis(100)).await;
        }
        (waiting, began.elapsed().as_secs_f64())
    }

    async fn unrecorded(&self) -> u64 {
        let mut count = 0;
        for partition in Partition::all() {
            count += self.tiered.unrecorded(partition).await.unwrap();
        }
        count
    }
}

// Returns the seconds of processor time of this process and the redis-servers so far.
async fn cpu(systems: &[System]) -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The 12th and 13th fields after the name, which may have spaces; in hundredths of a second.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let mut seconds: f64 = fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum();
    seconds /= 100.0;
    for system in systems {
        let mut admin = system.redis.admin().await;
        let info: String = cmd("INFO").arg("cpu").query_async(&mut admin).await.unwrap();
        for name in ["used_cpu_user:", "used_cpu_sys:"] {
            let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            seconds += line.trim().parse::<f64>().unwrap();
        }
    }
    seconds
}

fn post_config(redis_url: &str, flags: &[String]) -> microblog_post::Config {
    let own = ["post", "--redis-url", redis_url].into_iter();
    microblog_post::Config::parse_from(own.chain(flags.iter().map(String::as_str)))
}

// Serves the gateway and the user service; the others are called in process.
async fn run(urls: [String; 4], post: microblog_post::Config, listeners: [TcpListener; 2]) {
    let [user_url, relation_url, _, timeline_url] = &urls;
    let databases = [(); 2].map(|()| Database::sqlite());
    let [of_user, of_relation] = databases.each_ref().map(Database::flag);
    let user = microblog_user::Config::parse_from(["user", "--redis-url", user_url, &of_user]);
    let relation = ["relation", "--redis-url", relation_url, &of_relation];
    let relation = microblog_relation::Config::parse_from(relation);
    let timeline =
        microblog_timeline::Config::parse_from(["timeline", "--redis-url", timeline_url]);
    let config = microblog_gateway::Config::parse_from([
        "gateway",
        "--post-calls-per-minute=0",
        "--logins-per-minute=0",
    ]);
    let limits = microblog_gateway::Limits::new(&config.limits);
    let chassis = &config.chassis;
    let user = microblog_user::service(&user, Worker::ONLY).await.unwrap();
    let relation = microblog_relation::service(&relation, Worker::ONLY).await.unwrap();
    let graph = Peer::local(&relation, chassis);
    let timeline = microblog_timeline::service(&timeline, graph, None, Worker::ONLY).await.unwrap();
    let delivery = Peer::local(&timeline, chassis);
    let post = microblog_post::service(&post, Some(delivery), Worker::ONLY).await.unwrap();
    let peer = |service: &Service| Peer::local(service, chassis);
    let peers = Peers {
        user: peer(&user),
        relation: peer(&relation),
        post: peer(&post),
        timeline: peer(&timeline),
        // Not called.
        notice: peer(&timeline),
    };
    let gateway = microblog_gateway::service(&config, limits, peers, Worker::ONLY);
    let mut jobs = JoinSet::new();
    for service in [relation, timeline, post] {
        service.background.into_iter().for_each(|job| drop(jobs.spawn(job)));
    }
    let [gateway_listener, user_listener] = listeners;
    let forever = std::future::pending;
    let (served, _) = tokio::join!(
        serve(gateway_listener, gateway, chassis, forever()),
        serve(user_listener, user, chassis, forever()),
    );
    served.unwrap();
}

// Creates accounts and logs in.
async fn members(user: &str, gateway: &str) -> Vec<String> {
    let channel = |url: &str| Channel::from_shared(url.to_owned()).unwrap().connect_lazy();
    let mut accounts = UserServiceClient::new(channel(user));
    let names: Vec<String> = (0..AUTHORS).map(|n| format!("writer{n}")).collect();
    let import = ImportUsersRequest {
        names: names.clone(),
        email_domain: "example.org".to_owned(),
        password: PASSWORD.to_owned(),
    };
    // The store may need some time.
    while accounts.import_users(import.clone()).await.is_err() {
        sleep(Duration::from_millis(100)).await;
    }
    let mut sessions = GatewayServiceClient::new(channel(gateway));
    let mut tokens = Vec::with_capacity(AUTHORS);
    for name in names {
        let email = format!("{name}@example.org");
        let login = LoginRequest { login: email, password: PASSWORD.to_owned() };
        tokens.push(sessions.login(login).await.unwrap().into_inner().token);
    }
    tokens
}
