//! Test support: a relation service on a store of its own.
#![allow(dead_code, reason = "no test file uses all of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

pub(crate) mod database;

use std::{net::TcpListener, time::Duration};

use clap::Parser as _;
use microblog_chassis::{Worker, serve};
use microblog_domain::{Partition, UserId};
use microblog_keyspace::Version;
use microblog_proto::{
    common::ErrorReason,
    relation::{
        self as pb, EdgeList, RelationState, relation_service_client::RelationServiceClient,
    },
};
use microblog_relation::{Config, JournalEntry, Store};
use microblog_testkit as testkit;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

pub(crate) type Client = RelationServiceClient<Channel>;

pub(crate) use microblog_testkit::PATIENCE;

pub(crate) const NONE: i32 = RelationState::None as i32;
pub(crate) const OWN: i32 = RelationState::Self_ as i32;
pub(crate) const FOLLOWING: i32 = RelationState::Following as i32;
pub(crate) const FOLLOWER: i32 = RelationState::Follower as i32;
pub(crate) const MUTUAL: i32 = RelationState::Mutual as i32;

/// Returns a configuration with further flags.
pub(crate) fn config(url: &str, flags: &[&str]) -> Config {
    Config::parse_from(["relation", "--redis-url", url, "--threads", "1"].iter().chain(flags))
}

/// A service on a free port, with its store and background jobs.
pub(crate) struct System {
    pub(crate) redis: testkit::Store,
    pub(crate) client: Client,
    pub(crate) store: Store,
}

impl System {
    pub(crate) async fn start(topology: testkit::Topology) -> Self {
        Self::start_with(topology, &[]).await
    }

    pub(crate) async fn start_with(topology: testkit::Topology, flags: &[&str]) -> Self {
        Self::start_as(Worker::ONLY, topology, flags).await
    }

    /// Starts the service without background jobs, whose commands would be counted.
    pub(crate) async fn start_without_jobs(topology: testkit::Topology) -> Self {
        Self::start_as(Worker { index: 1, count: 2 }, topology, &[]).await
    }

    async fn start_as(worker: Worker, topology: testkit::Topology, flags: &[&str]) -> Self {
        Self::start_on(testkit::Store::start(topology).await, worker, flags).await
    }

    /// Starts the service on a Redis.
    pub(crate) async fn start_on(redis: testkit::Store, worker: Worker, flags: &[&str]) -> Self {
        let (client, store) = Self::serve(&redis, worker, flags).await;
        ready(&store).await;
        Self { redis, client, store }
    }

    /// Starts another service on the same Redis, with further flags, and returns its client.
    pub(crate) async fn another(&self, flags: &[&str]) -> Client {
        let (client, store) = Self::serve(&self.redis, Worker::ONLY, flags).await;
        ready(&store).await;
        client
    }

    pub(crate) async fn serve(
        redis: &testkit::Store,
        worker: Worker,
        flags: &[&str],
    ) -> (Client, Store) {
        let config = config(&redis.url("relation"), flags);
        let service = microblog_relation::service(&config, worker).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let chassis = config.chassis.clone();
        tokio::spawn(async move {
            serve(listener, service, &chassis, std::future::pending()).await.unwrap();
        });
        (client(&address).await, Store::open(&config).unwrap())
    }

    pub(crate) async fn follow(&self, follower_id: u64, target_id: u64) -> Result<i32, Status> {
        let request = pb::FollowRequest { follower_id, target_id };
        Ok(self.client.clone().follow(request).await?.into_inner().state)
    }

    pub(crate) async fn unfollow(&self, follower_id: u64, target_id: u64) -> Result<i32, Status> {
        let request = pb::UnfollowRequest { follower_id, target_id };
        Ok(self.client.clone().unfollow(request).await?.into_inner().state)
    }

    pub(crate) async fn block(&self, user_id: u64, target_id: u64) -> Result<(), Status> {
        let request = pb::BlockRequest { user_id, target_id };
        self.client.clone().block(request).await.map(|_| ())
    }

    pub(crate) async fn relation(&self, viewer_id: u64, target_id: u64) -> pb::Relation {
        let request = pb::GetRelationRequest { viewer_id, target_id };
        let response = self.client.clone().get_relation(request).await.unwrap();
        response.into_inner().relation.unwrap()
    }

    pub(crate) async fn list(
        &self,
        request: &pb::ListEdgesRequest,
    ) -> Result<pb::ListEdgesResponse, Status> {
        Ok(self.client.clone().list_edges(request.clone()).await?.into_inner())
    }

    /// Reads all pages of a list.
    pub(crate) async fn list_all(&self, mut request: pb::ListEdgesRequest) -> Vec<pb::Edge> {
        let mut edges = Vec::new();
        loop {
            let page = self.list(&request).await.unwrap();
            edges.extend(page.edges);
            if page.next_page_token.is_empty() {
                return edges;
            }
            request.page_token = page.next_page_token;
        }
    }

    pub(crate) async fn counts(&self, user_id: u64) -> (u64, u64, u64) {
        let request = pb::BatchGetCountsRequest { user_ids: vec![user_id] };
        let response = self.client.clone().batch_get_counts(request).await.unwrap();
        let counts = response.into_inner().counts[0];
        (counts.following, counts.followers, counts.mutuals)
    }

    /// Imports follows.
    pub(crate) async fn import(&self, follows: &[(u64, u64)]) -> pb::ImportFollowsResponse {
        import(&self.client, follows).await
    }

    /// Waits until the outbox is empty and all invariants hold.
    pub(crate) async fn converges(&self) {
        converges(&self.client).await;
    }
}

/// Imports follows, a thousand in each call: a call has a deadline, also on a busy machine.
pub(crate) async fn import(client: &Client, follows: &[(u64, u64)]) -> pb::ImportFollowsResponse {
    let mut sum = pb::ImportFollowsResponse::default();
    for follows in follows.chunks(1_000) {
        let follow = |&(follower_id, target_id)| pb::Follow { follower_id, target_id };
        let request = pb::ImportFollowsRequest { follows: follows.iter().map(follow).collect() };
        let imported = client.clone().import_follows(request).await.unwrap().into_inner();
        sum.created += imported.created;
        sum.unchanged += imported.unchanged;
        sum.rejected_self += imported.rejected_self;
        sum.rejected_blocked += imported.rejected_blocked;
        sum.rejected_limit += imported.rejected_limit;
        sum.rejected_forgotten += imported.rejected_forgotten;
    }
    sum
}

/// Waits until a service accepts calls.
async fn ready(store: &Store) {
    testkit::eventually("the service is ready", PATIENCE, async || store.is_ready().await).await;
}

/// Returns the request of a list that does not depend on the viewer.
pub(crate) fn list_of(list: EdgeList, user_id: u64, page_size: i32) -> pb::ListEdgesRequest {
    pb::ListEdgesRequest { user_id, list: list.into(), page_size, ..Default::default() }
}

/// Returns the request of a list that depends on the viewer.
pub(crate) fn list_for(
    viewer_id: u64,
    list: EdgeList,
    user_id: u64,
    page_size: i32,
) -> pb::ListEdgesRequest {
    pb::ListEdgesRequest { viewer_id, ..list_of(list, user_id, page_size) }
}

/// Returns the accounts of a page.
pub(crate) fn ids(edges: &[pb::Edge]) -> Vec<u64> {
    edges.iter().map(|edge| edge.user_id).collect()
}

/// Returns an admin connection to the server that has a key.
pub(crate) async fn admin_of(
    redis: &testkit::Store,
    key: &str,
) -> testkit::redis::aio::MultiplexedConnection {
    let node = match redis {
        testkit::Store::Single(_) => 0,
        testkit::Store::Cluster(cluster) => cluster.primary_of(key, 0).await,
    };
    redis.nodes()[node].admin().await
}

fn journal_key(partition: Partition) -> String {
    format!("rel:{{{partition}}}:journal")
}

/// Opens the journal of a partition, unless it is open.
pub(crate) async fn open_journal(redis: &testkit::Store, partition: Partition) {
    let key = journal_key(partition);
    let mut admin = admin_of(redis, &key).await;
    let opened: u64 =
        testkit::redis::cmd("EXISTS").arg(&key).query_async(&mut admin).await.unwrap();
    if opened == 0 {
        let mut open = testkit::redis::cmd("XADD");
        open.arg(key).arg("1-0").arg("c").arg("opened").exec_async(&mut admin).await.unwrap();
    }
}

/// Returns the versions and the texts of the entries of a partition's journal.
pub(crate) async fn journal_texts(
    redis: &testkit::Store,
    partition: Partition,
) -> Vec<(Version, String)> {
    let key = journal_key(partition);
    let mut admin = admin_of(redis, &key).await;
    let read = testkit::redis::cmd("XRANGE").arg(key).arg("-").arg("+").take();
    let entries: Vec<(String, [String; 2])> = read.query_async(&mut admin).await.unwrap();
    entries.into_iter().map(|(id, [_, text])| (id.parse().unwrap(), text)).collect()
}

/// Returns the changes in a partition's journal.
pub(crate) async fn journal(redis: &testkit::Store, partition: Partition) -> Vec<JournalEntry> {
    let texts = journal_texts(redis, partition).await.into_iter();
    let texts = texts.filter(|(_, text)| !text.starts_with("opened"));
    texts.map(|(_, text)| JournalEntry::parse(&text).expect(&text)).collect()
}

/// Returns a client of a server that listens, or will.
pub(crate) async fn client(address: &str) -> Client {
    let endpoint = Endpoint::from_shared(address.to_owned()).unwrap();
    Client::new(endpoint.tcp_nodelay(true).connect_lazy())
}

/// Returns the violations that `Verify` reports, and what is pending.
pub(crate) async fn violations(client: &Client) -> Vec<String> {
    verify(client, false).await.0
}

/// Repairs everything. Returns the remaining violations, and the repairs.
pub(crate) async fn repair(client: &Client) -> (Vec<String>, Vec<String>) {
    verify(client, true).await
}

async fn verify(client: &Client, repair: bool) -> (Vec<String>, Vec<String>) {
    let request = pb::VerifyRequest { user_id: 0, repair };
    let mut reports = client.clone().verify(request).await.unwrap().into_inner();
    let (mut violations, mut repaired) = (Vec::new(), Vec::new());
    while let Some(report) = reports.message().await.unwrap() {
        violations.extend(report.violations);
        violations.extend(report.pending);
        repaired.extend(report.repaired);
    }
    (violations, repaired)
}

/// Waits until the outbox is empty and all invariants hold; panics with the remaining violations.
pub(crate) async fn converges(client: &Client) {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let violations = violations(client).await;
        if violations.is_empty() {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{violations:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns the id of the n-th test user, each in a partition of its own.
pub(crate) const fn id(n: u64) -> u64 {
    (n << 12) + ((n * 37) % 1024) * 4
}

pub(crate) const fn user(n: u64) -> UserId {
    UserId::new(id(n)).unwrap()
}

/// Asserts the status of a rejected call.
#[track_caller]
pub(crate) fn assert_rejected<T: std::fmt::Debug>(
    result: Result<T, Status>,
    code: Code,
    reason: ErrorReason,
) -> Status {
    let status = result.expect_err("a rejection");
    assert_eq!(status.code(), code, "{status:?}");
    assert_eq!(microblog_chassis::status::reason_of(&status), Some(reason), "{status:?}");
    status
}

/// Asserts that a call was rejected because of one field.
#[track_caller]
pub(crate) fn assert_invalid_field<T: std::fmt::Debug>(result: Result<T, Status>, field: &str) {
    use tonic_types::StatusExt as _;
    let status = result.expect_err("a rejection");
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let violations = status.get_details_bad_request().expect("a BadRequest").field_violations;
    let fields: Vec<_> = violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(fields, [field], "{status:?}");
}
