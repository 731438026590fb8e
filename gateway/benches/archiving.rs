//! What archiving costs those who publish: `Publish` at the gateway as fast as it goes, over HTTP/2,
//! with all services in one thread, once without an archive and once with one in an SQLite file, in
//! turn. Says how much faster posts are made than archived, too.
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
use microblog_gateway::Peers;
use microblog_proto::{
    gateway::{LoginRequest, PublishRequest, gateway_service_client::GatewayServiceClient},
    user::{ImportUsersRequest, user_service_client::UserServiceClient},
};
use microblog_testkit::RedisServer;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::sleep,
};
use tonic::{Request, transport::Channel};
use uuid::Uuid;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Who publishes at once, each when the call before has been answered.
const CLIENTS: usize = 32;

const ROUNDS: usize = 10;
const ROUND: Duration = Duration::from_secs(4);

const PASSWORD: &str = "correct horse battery";

/// As long as many posts are.
const TEXT: &str = "the quick brown fox jumps over a lazy dog while people write about weather, \
     music, food, travel, work, football, cats, politics and books and it";

fn main() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", directory.path().join("archive.sqlite").display());
    let without = System::start(&runtime, &[]);
    let with = System::start(&runtime, &["--archive-url", &url]);
    runtime.block_on(async {
        // Connections, functions and tables are there before the measurement begins.
        for system in [&without, &with] {
            system.publish(Duration::from_secs(1)).await;
        }
        let (mut rates, mut left) = ([Vec::new(), Vec::new()], Vec::new());
        for round in 0..ROUNDS {
            let mut order = [0, 1];
            order.rotate_left(round % 2);
            for which in order {
                rates[which].push([&without, &with][which].publish(ROUND).await);
                if which == 1 {
                    left.push(with.drained().await);
                }
            }
        }
        println!("Publish, {CLIENTS} clients, {ROUNDS} rounds of {ROUND:?} each, in turn");
        println!("{:<20}{:>10}{:>10}{:>10}", "calls per second", "median", "least", "most");
        for (name, rates) in ["without an archive", "with an archive"].iter().zip(&mut rates) {
            rates.sort_by(f64::total_cmp);
            let (least, most) = (rates[0], rates[ROUNDS - 1]);
            println!("{name:<20}{:>10.0}{least:>10.0}{most:>10.0}", rates[ROUNDS / 2]);
        }
        println!("with/without: {:.3}", rates[1][ROUNDS / 2] / rates[0][ROUNDS / 2]);
        let most = left.iter().max_by_key(|(waiting, _)| *waiting).unwrap();
        println!("waiting at the end of a round: up to {}, for {:.1} s more", most.0, most.1);
    });
}

/// All services, in a thread of their own.
struct System {
    gateway: GatewayServiceClient<Channel>,
    tokens: Vec<String>,
    store: microblog_post::Store,
    _redis: RedisServer,
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
        thread::spawn(move || {
            let serving = Builder::new_current_thread().enable_all().build().unwrap();
            serving.block_on(run(urls, config, listeners));
        });
        let [gateway, user] = addresses;
        let tokens = runtime.block_on(members(&user, &gateway));
        let channel = Channel::from_shared(gateway).unwrap().tcp_nodelay(true);
        let gateway = runtime.block_on(async { GatewayServiceClient::new(channel.connect_lazy()) });
        Self { gateway, tokens, store, _redis: redis }
    }

    /// Publishes as fast as it goes; returns how often a second.
    async fn publish(&self, how_long: Duration) -> f64 {
        let began = Instant::now();
        let mut clients = JoinSet::new();
        for token in &self.tokens {
            let (mut gateway, token) = (self.gateway.clone(), token.clone());
            clients.spawn(async move {
                let mut calls = 0;
                while began.elapsed() < how_long {
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
        f64::from(calls) / began.elapsed().as_secs_f64()
    }

    /// Waits until all is archived. Returns how much was not, and for how many seconds.
    async fn drained(&self) -> (u64, f64) {
        let began = Instant::now();
        let waiting = self.store.unarchived_count().await.unwrap();
        while self.store.unarchived_count().await.unwrap() > 0 {
            sleep(Duration::from_millis(20)).await;
        }
        (waiting, began.elapsed().as_secs_f64())
    }
}

fn post_config(redis_url: &str, flags: &[String]) -> microblog_post::Config {
    let own = ["post", "--redis-url", redis_url].into_iter();
    microblog_post::Config::parse_from(own.chain(flags.iter().map(String::as_str)))
}

// Serves the gateway and the user service, and calls the others within the process.
async fn run(urls: [String; 4], post: microblog_post::Config, listeners: [TcpListener; 2]) {
    let [user_url, relation_url, _, timeline_url] = &urls;
    let user = microblog_user::Config::parse_from(["user", "--redis-url", user_url]);
    let relation =
        microblog_relation::Config::parse_from(["relation", "--redis-url", relation_url]);
    let timeline =
        microblog_timeline::Config::parse_from(["timeline", "--redis-url", timeline_url]);
    let config = microblog_gateway::Config::parse_from(["gateway"]);
    let chassis = &config.chassis;
    let user = microblog_user::service(&user, Worker::ONLY).await.unwrap();
    let relation = microblog_relation::service(&relation, Worker::ONLY).await.unwrap();
    let graph = Peer::local(&relation, chassis);
    let timeline = microblog_timeline::service(&timeline, graph, Worker::ONLY).await.unwrap();
    let delivery = Peer::local(&timeline, chassis);
    let post = microblog_post::service(&post, Some(delivery), Worker::ONLY).await.unwrap();
    let peer = |service: &Service| Peer::local(service, chassis);
    let peers = Peers {
        user: peer(&user),
        relation: peer(&relation),
        post: peer(&post),
        timeline: peer(&timeline),
    };
    let gateway = microblog_gateway::service(&config, peers, Worker::ONLY);
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

// Makes accounts, and logs them in.
async fn members(user: &str, gateway: &str) -> Vec<String> {
    let channel = |url: &str| Channel::from_shared(url.to_owned()).unwrap().connect_lazy();
    let mut accounts = UserServiceClient::new(channel(user));
    let names: Vec<String> = (0..CLIENTS).map(|n| format!("writer{n}")).collect();
    let import = ImportUsersRequest {
        names: names.clone(),
        email_domain: "example.org".to_owned(),
        password: PASSWORD.to_owned(),
    };
    // The store may take a moment.
    while accounts.import_users(import.clone()).await.is_err() {
        sleep(Duration::from_millis(100)).await;
    }
    let mut sessions = GatewayServiceClient::new(channel(gateway));
    let mut tokens = Vec::with_capacity(CLIENTS);
    for name in names {
        let email = format!("{name}@example.org");
        let login = LoginRequest { email, password: PASSWORD.to_owned() };
        tokens.push(sessions.login(login).await.unwrap().into_inner().token);
    }
    tokens
}
