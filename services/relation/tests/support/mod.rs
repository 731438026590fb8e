//! Test support: a relation service with stores of its own.
#![allow(dead_code, reason = "no test file uses all of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

use std::{net::TcpListener, time::Duration};

use clap::Parser as _;
use microblog_chassis::{Worker, serve};
use microblog_proto::{
    common::ErrorReason,
    relation::{
        self as pb, EdgeList, RelationState, relation_service_client::RelationServiceClient,
    },
};
use microblog_relation::Config;
use microblog_testkit::{self as testkit, Database, Topology};
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

/// A service on a free port, with its stores.
pub(crate) struct System {
    pub(crate) redis: testkit::Store,
    pub(crate) database: Database,
    pub(crate) client: Client,
}

impl System {
    pub(crate) async fn start(topology: Topology) -> Self {
        Self::start_with(topology, &[]).await
    }

    /// Starts a service with further flags, and waits until it answers from the cache. A single Redis goes
    /// with SQLite, and a cluster with PostgreSQL.
    pub(crate) async fn start_with(topology: Topology, flags: &[&str]) -> Self {
        let database = match topology {
            Topology::Single => Database::sqlite(),
            Topology::Cluster => Database::postgres().await,
        };
        Self::start_on(testkit::Store::start(topology).await, database, flags).await
    }

    /// Starts the service on stores.
    pub(crate) async fn start_on(
        redis: testkit::Store,
        database: Database,
        flags: &[&str],
    ) -> Self {
        let client = serve_on(&redis, &database, Worker::ONLY, flags).await;
        let system = Self { redis, database, client };
        system.caches().await;
        system
    }

    /// Starts another service on the same stores, without background jobs and with further flags, and
    /// returns its client.
    pub(crate) async fn another(&self, flags: &[&str]) -> Client {
        serve_on(&self.redis, &self.database, Worker { index: 1, count: 2 }, flags).await
    }

    /// Waits until reads are answered from the cache.
    pub(crate) async fn caches(&self) {
        const PROBE: u64 = 4_000_000_000;
        testkit::eventually("the cache is trusted", PATIENCE, async || {
            self.counts(PROBE).await;
            !self.keys(&format!("rel:*:following:*:{PROBE}")).await.is_empty()
        })
        .await;
    }

    /// Returns the keys in Redis that match a pattern.
    pub(crate) async fn keys(&self, pattern: &str) -> Vec<String> {
        let mut all = Vec::new();
        for node in self.redis.nodes() {
            let keys = testkit::redis::cmd("KEYS").arg(pattern).take();
            let keys: Vec<String> = keys.query_async(&mut node.admin().await).await.unwrap();
            all.extend(keys);
        }
        all
    }

    /// Empties Redis.
    pub(crate) async fn flush(&self) {
        for node in self.redis.nodes() {
            let flush = testkit::redis::cmd("FLUSHALL");
            flush.exec_async(&mut node.admin().await).await.unwrap();
        }
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
    pub(crate) async fn list_all(&self, request: pb::ListEdgesRequest) -> Vec<pb::Edge> {
        list_all(&self.client, request).await
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

    /// Waits until no deletion is in progress, and asserts that all invariants hold.
    pub(crate) async fn converges(&self) {
        converges(&self.client).await;
    }
}

/// Starts a service on stores, and waits until it answers.
async fn serve_on(
    redis: &testkit::Store,
    database: &Database,
    worker: Worker,
    flags: &[&str],
) -> Client {
    let (url, database) = (redis.url("relation"), database.flag());
    let common = ["relation", "--redis-url", &url, &database, "--threads", "1"];
    let config = Config::parse_from(common.iter().chain(flags));
    let service = microblog_relation::service(&config, worker).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let chassis = config.chassis.clone();
    tokio::spawn(async move {
        serve(listener, service, &chassis, std::future::pending()).await.unwrap();
    });
    let client = client(&address).await;
    testkit::eventually("the service answers", PATIENCE, async || {
        let request = pb::BatchGetCountsRequest { user_ids: vec![4] };
        client.clone().batch_get_counts(request).await.is_ok()
    })
    .await;
    client
}

/// Reads all pages of a list.
pub(crate) async fn list_all(client: &Client, mut request: pb::ListEdgesRequest) -> Vec<pb::Edge> {
    let mut edges = Vec::new();
    loop {
        let page = client.clone().list_edges(request.clone()).await.unwrap().into_inner();
        edges.extend(page.edges);
        if page.next_page_token.is_empty() {
            return edges;
        }
        request.page_token = page.next_page_token;
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
        sum.rejected_deleted += imported.rejected_deleted;
    }
    sum
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

/// Returns a client of a server that listens, or will.
pub(crate) async fn client(address: &str) -> Client {
    let endpoint = Endpoint::from_shared(address.to_owned()).unwrap();
    Client::new(endpoint.tcp_nodelay(true).connect_lazy())
}

/// Returns the violations that `Verify` reports, and what is under way.
pub(crate) async fn violations(client: &Client) -> Vec<String> {
    let request = pb::VerifyRequest { user_id: 0 };
    let mut reports = client.clone().verify(request).await.unwrap().into_inner();
    let mut found = Vec::new();
    while let Some(report) = reports.message().await.unwrap() {
        found.extend(report.violations);
        found.extend(report.pending);
    }
    found
}

/// Waits until all invariants hold and nothing is under way; panics with what remains.
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
