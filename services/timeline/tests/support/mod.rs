//! Test support: a timeline service and a relation service on a store of their own.
#![allow(dead_code, reason = "no test file uses all of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

pub(crate) mod pages;
pub(crate) mod posts;
pub(crate) mod queue;
pub(crate) mod relations;

use std::{
    future,
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use clap::Parser as _;
use microblog_chassis::{Peer, Service, Worker, serve};
use microblog_domain::{PostId, UserId};
use microblog_proto::{
    common::ErrorReason,
    relation::{self, relation_service_client::RelationServiceClient},
    timeline::{self as pb, timeline_service_client::TimelineServiceClient},
};
use microblog_testkit as testkit;
use microblog_timeline::{Config, Entry, Store};
use pages::Timeline;
use testkit::Topology;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

pub(crate) type Client = TimelineServiceClient<Channel>;

pub(crate) use microblog_testkit::PATIENCE;

/// Returns a configuration with further flags.
pub(crate) fn config(url: &str, flags: &[&str]) -> Config {
    let own = ["timeline", "--redis-url", url, "--threads", "1"];
    Config::parse_from(own.iter().chain(flags))
}

/// Both services on free ports, with their background jobs.
pub(crate) struct System {
    pub(crate) redis: Arc<testkit::Store>,
    pub(crate) config: Config,
    pub(crate) address: String,
    pub(crate) client: Client,
    pub(crate) relation: RelationServiceClient<Channel>,
    pub(crate) relation_url: String,
    pub(crate) store: Store,
}

impl System {
    pub(crate) async fn start(topology: Topology) -> Self {
        Self::start_with(topology, &[]).await
    }

    pub(crate) async fn start_with(topology: Topology, flags: &[&str]) -> Self {
        Self::start_as(Worker::ONLY, topology, flags).await
    }

    /// Starts the timeline service without most background jobs: only the stream of partition 15
    /// has a worker.
    pub(crate) async fn start_without_jobs(topology: Topology) -> Self {
        Self::start_as(Worker { index: 15, count: 1_000 }, topology, &[]).await
    }

    /// Starts another timeline service with the same store and relation service.
    pub(crate) async fn another(&self, flags: &[&str]) -> Self {
        Self::on(Worker::ONLY, self.redis.clone(), self.relation_url.clone(), flags).await
    }

    async fn start_as(worker: Worker, topology: Topology, flags: &[&str]) -> Self {
        let redis = Arc::new(testkit::Store::start(topology).await);
        let relation_url = start_relation(&redis).await;
        Self::on(worker, redis, relation_url, flags).await
    }

    /// Starts a timeline service on a store, with a running relation service.
    pub(crate) async fn on(
        worker: Worker,
        redis: Arc<testkit::Store>,
        relation_url: String,
        flags: &[&str],
    ) -> Self {
        Self::with_posts(worker, redis, relation_url, None, flags).await
    }

    /// Starts a timeline service that also calls a post service.
    pub(crate) async fn with_posts(
        worker: Worker,
        redis: Arc<testkit::Store>,
        relation_url: String,
        post_url: Option<&str>,
        flags: &[&str],
    ) -> Self {
        let config = config(&redis.url("timeline"), flags);
        let post = post_url.map(|url| Peer::remote(url, &config.chassis).unwrap());
        let peer = Peer::remote(&relation_url, &config.chassis).unwrap();
        let service = microblog_timeline::service(&config, peer, post, worker).await.unwrap();
        let ready = service.ready.clone();
        let address = run(service, &config.chassis);
        // A new cluster may take a moment.
        testkit::eventually("the store is ready", PATIENCE, async || ready().await).await;
        let relation = RelationServiceClient::new(channel(&relation_url));
        let (client, store) = (client(&address), Store::open(&config.redis).unwrap());
        Self { redis, config, address, client, relation, relation_url, store }
    }

    /// Delivers a post of an author, and returns its id.
    pub(crate) async fn post(&self, author: u64) -> u64 {
        self.deliver(delivery(post_id(author), author, 0)).await
    }

    /// Delivers a plain repost, and returns its id.
    pub(crate) async fn repost(&self, author: u64, root: u64) -> u64 {
        self.deliver(delivery(post_id(author), author, root)).await
    }

    /// Delivers a repost with a text, and returns its id.
    pub(crate) async fn quote(&self, author: u64, root: u64) -> u64 {
        let delivery = delivery(post_id(author), author, root);
        self.deliver(pb::Delivery { has_text: true, ..delivery }).await
    }

    pub(crate) async fn deliver(&self, delivery: pb::Delivery) -> u64 {
        let request = pb::DeliverRequest { deliveries: vec![delivery] };
        self.client.clone().deliver(request).await.unwrap();
        delivery.post_id
    }

    pub(crate) async fn follow(&self, follower_id: u64, target_id: u64) {
        let request = relation::FollowRequest { follower_id, target_id };
        self.relation.clone().follow(request).await.unwrap();
    }

    pub(crate) async fn unfollow(&self, follower_id: u64, target_id: u64) {
        let request = relation::UnfollowRequest { follower_id, target_id };
        self.relation.clone().unfollow(request).await.unwrap();
    }

    /// Returns a page of a home timeline: `(entries, next_page_token, since_token)`.
    pub(crate) async fn home_page(
        &self,
        user_id: u64,
        page_size: i32,
        page_token: &str,
        since_token: &str,
    ) -> Result<(Vec<pb::Entry>, String, String), Status> {
        let request = Timeline::Home.request(user_id, page_size, page_token, since_token);
        let page = self.client.clone().get_timeline(request).await?.into_inner();
        Ok((page.entries, page.next_page_token, page.since_token))
    }

    /// Returns the posts of a home timeline's first page of 200.
    pub(crate) async fn home(&self, user_id: u64) -> Vec<u64> {
        posts(&self.home_page(user_id, 200, "", "").await.unwrap().0)
    }

    /// Waits until a home timeline's first page has these posts.
    pub(crate) async fn home_becomes(&self, user_id: u64, expected: &[u64]) {
        testkit::eventually("the home timeline is as expected", PATIENCE, async || {
            self.home(user_id).await == expected
        })
        .await;
    }
}

/// Starts a relation service on a store, with a database of its own, and returns its address.
pub(crate) async fn start_relation(redis: &testkit::Store) -> String {
    let (url, database) = (redis.url("relation"), testkit::Database::sqlite());
    let flags = ["relation", "--redis-url", &url, &database.flag(), "--threads", "1"];
    let config = microblog_relation::Config::parse_from(flags);
    let service = microblog_relation::service(&config, Worker::ONLY).await.unwrap();
    let ready = service.ready.clone();
    let address = run(service, &config.chassis);
    testkit::eventually("relation is ready", PATIENCE, async || ready().await).await;
    // For as long as the service.
    tokio::spawn(async move {
        let _database = database;
        future::pending::<()>().await;
    });
    address
}

/// Serves a service on a free port and returns its address.
pub(crate) fn run(service: Service, config: &microblog_chassis::Config) -> String {
    run_on(TcpListener::bind("127.0.0.1:0").unwrap(), service, config)
}

/// Serves a service on a socket and returns its address.
pub(crate) fn run_on(
    listener: TcpListener,
    service: Service,
    config: &microblog_chassis::Config,
) -> String {
    listener.set_nonblocking(true).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let config = config.clone();
    tokio::spawn(async move {
        serve(listener, service, &config, future::pending()).await.unwrap();
    });
    address
}

pub(crate) fn channel(address: &str) -> Channel {
    Endpoint::from_shared(address.to_owned()).unwrap().connect_lazy()
}

pub(crate) fn client(address: &str) -> Client {
    TimelineServiceClient::new(channel(address))
}

/// Returns the id of the nth account, each in a partition of its own.
pub(crate) fn id(n: u64) -> u64 {
    ((1_000_000 + n) << 12) | ((n % 1024) << 2)
}

/// Returns the id of a new post: newer than all before, in its author's partition.
pub(crate) fn post_id(author: u64) -> u64 {
    static TICK: AtomicU64 = AtomicU64::new(50_000_000);
    (TICK.fetch_add(1, Ordering::SeqCst) << 12) | (author & 0xffc)
}

pub(crate) fn delivery(post_id: u64, author_id: u64, root_id: u64) -> pb::Delivery {
    pb::Delivery { post_id, author_id, root_id, has_text: root_id == 0 }
}

/// Returns an entry for the store.
pub(crate) fn entry(post: u64, author: u64) -> Entry {
    let (post, author) = (PostId::new(post).unwrap(), UserId::new(author).unwrap());
    Entry { post, author, root: None, has_text: true }
}

pub(crate) fn posts(entries: &[pb::Entry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.post_id).collect()
}

/// Asserts that a call was rejected with this status.
pub(crate) fn assert_rejected<T: std::fmt::Debug>(
    answer: Result<T, Status>,
    code: Code,
    reason: ErrorReason,
) {
    let status = answer.unwrap_err();
    let actual = microblog_chassis::status::reason_of(&status);
    assert_eq!((status.code(), actual), (code, Some(reason)), "{status:?}");
}

/// Asserts that a call was rejected because of these fields.
#[track_caller]
pub(crate) fn assert_invalid_fields<T: std::fmt::Debug>(
    answer: Result<T, Status>,
    fields: &[&str],
) {
    use tonic_types::StatusExt as _;
    let status = answer.expect_err("a rejection");
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let violations = status.get_details_bad_request().expect("a BadRequest").field_violations;
    let named: Vec<_> = violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(named, fields, "{status:?}");
}
