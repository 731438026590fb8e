//! A post service with its own Redis, the timelines that it delivers to, and helpers to call it.
#![allow(dead_code, reason = "no test file uses all of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

pub(crate) mod archives;
pub(crate) mod lists;
pub(crate) mod timelines;

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use clap::Parser as _;
use microblog_chassis::{Peer, Service, Worker, serve};
use microblog_domain::{PostId, UserId};
use microblog_post::{Archive, Config, Content, PostDeletion, Store, TieredStore, recorder};
use microblog_proto::{
    common::ErrorReason,
    post::{self as pb, post_service_client::PostServiceClient},
};
use microblog_testkit as testkit;
use timelines::Timelines;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};
use uuid::Uuid;

pub(crate) type Client = PostServiceClient<Channel>;

pub(crate) use microblog_testkit::PATIENCE;

/// The worker of a process that has no background jobs.
pub(crate) const WITHOUT_JOBS: Worker = Worker { index: 1, count: 2 };

/// A configuration for a Redis, without rate limits unless further flags set them.
pub(crate) fn config(url: &str, flags: &[&str]) -> Config {
    let own = ["post", "--redis-url", url, "--threads", "1"];
    let limits = ["--posts-per-minute=0", "--comments-per-minute=0", "--restores-per-minute=0"];
    let limits = limits.iter().filter(|limit| {
        let name = limit.trim_end_matches("=0");
        !flags.iter().any(|flag| flag.starts_with(name))
    });
    Config::parse_from(own.iter().chain(limits).chain(flags))
}

/// Returns the tiered store of a Redis without an archive.
pub(crate) fn tiered(store: &Store) -> TieredStore {
    TieredStore::new(store.clone(), None, Duration::ZERO)
}

/// Returns the deletion of a post that is in Redis.
pub(crate) fn deletion(id: PostId, content: &Content) -> PostDeletion<'_> {
    PostDeletion { id, content, in_archive: false }
}

/// A Redis whose service runs on a free port, with its background jobs.
pub(crate) struct System {
    pub(crate) redis: testkit::Store,
    pub(crate) address: String,
    pub(crate) client: Client,
    pub(crate) store: Store,
    pub(crate) timelines: Timelines,
}

impl System {
    pub(crate) async fn start(topology: testkit::Topology) -> Self {
        Self::start_with(topology, &[]).await
    }

    pub(crate) async fn start_with(topology: testkit::Topology, flags: &[&str]) -> Self {
        Self::start_as(Worker::ONLY, topology, flags).await
    }

    /// Starts the service without its background jobs, whose commands would be counted.
    pub(crate) async fn start_without_jobs(topology: testkit::Topology) -> Self {
        Self::start_as(WITHOUT_JOBS, topology, &[]).await
    }

    pub(crate) async fn start_as(
        worker: Worker,
        topology: testkit::Topology,
        flags: &[&str],
    ) -> Self {
        Self::start_on(testkit::Store::start(topology).await, worker, flags).await
    }

    /// Starts the service on a Redis.
    pub(crate) async fn start_on(redis: testkit::Store, worker: Worker, flags: &[&str]) -> Self {
        let config = config(&redis.url("post"), flags);
        let timelines = Timelines::default();
        let peer = Peer::local(&timelines.service(), &config.chassis);
        let service = microblog_post::service(&config, Some(peer), worker).await.unwrap();
        let ready = service.ready.clone();
        let address = run(service, &config);
        let (client, store) = (client(&address), Store::open(&config).unwrap());
        // The job that compares Redis with the database, and then opens it.
        let archive = Archive::open(&config.database).unwrap().filter(|_| !worker.is_first());
        let recorder = archive.map(|archive| recorder(&store, &archive, &config.archive));
        // A new cluster may take a moment, longer on a busy machine.
        testkit::eventually("the store is ready", PATIENCE, async || {
            if let Some(recorder) = &recorder {
                let _ = recorder.run().await;
            }
            ready().await
        })
        .await;
        Self { redis, address, client, store, timelines }
    }

    pub(crate) async fn create(&self, author_id: u64, text: &str) -> Result<pb::Post, Status> {
        testkit::next_millisecond().await;
        let (request_id, text) = (request_id(), text.to_owned());
        let request = pb::CreatePostRequest { author_id, request_id, text };
        Ok(self.client.clone().create_post(request).await?.into_inner().post.unwrap())
    }

    pub(crate) async fn repost(&self, author_id: u64, post_id: u64) -> Result<pb::Post, Status> {
        self.quote(author_id, post_id, "").await
    }

    pub(crate) async fn quote(
        &self,
        author_id: u64,
        post_id: u64,
        text: &str,
    ) -> Result<pb::Post, Status> {
        testkit::next_millisecond().await;
        let (request_id, text) = (request_id(), text.to_owned());
        let request = pb::RepostRequest { author_id, request_id, post_id, text };
        Ok(self.client.clone().repost(request).await?.into_inner().post.unwrap())
    }

    pub(crate) async fn get(&self, post_id: u64, viewer_id: u64) -> Result<pb::Post, Status> {
        let request = pb::GetPostRequest { post_id, viewer_id };
        Ok(self.client.clone().get_post(request).await?.into_inner().post.unwrap())
    }

    pub(crate) async fn delete(&self, author_id: u64, post_id: u64) -> Result<(), Status> {
        let request = pb::DeletePostRequest { author_id, post_id };
        self.client.clone().delete_post(request).await.map(|_| ())
    }

    pub(crate) async fn like(&self, user_id: u64, post_id: u64) -> Result<u64, Status> {
        testkit::next_millisecond().await;
        let request = pb::LikeRequest { user_id, post_id };
        Ok(self.client.clone().like(request).await?.into_inner().likes)
    }

    pub(crate) async fn unlike(&self, user_id: u64, post_id: u64) -> Result<u64, Status> {
        let request = pb::UnlikeRequest { user_id, post_id };
        Ok(self.client.clone().unlike(request).await?.into_inner().likes)
    }

    pub(crate) async fn comment(
        &self,
        author_id: u64,
        post_id: u64,
        text: &str,
        in_reply_to_id: u64,
    ) -> Result<pb::Comment, Status> {
        testkit::next_millisecond().await;
        let (request_id, text) = (request_id(), text.to_owned());
        let request =
            pb::AddCommentRequest { author_id, request_id, post_id, text, in_reply_to_id };
        Ok(self.client.clone().add_comment(request).await?.into_inner().comment.unwrap())
    }

    pub(crate) async fn uncomment(
        &self,
        user_id: u64,
        post_id: u64,
        comment_id: u64,
    ) -> Result<(), Status> {
        let request = pb::DeleteCommentRequest { user_id, post_id, comment_id };
        self.client.clone().delete_comment(request).await.map(|_| ())
    }

    /// Reads comments by their posts and ids.
    pub(crate) async fn batch_comments(
        &self,
        keys: &[(u64, u64)],
        allow_partial: bool,
    ) -> Result<pb::BatchGetCommentsResponse, Status> {
        let key = |&(post_id, comment_id): &(u64, u64)| pb::CommentKey { post_id, comment_id };
        let comments = keys.iter().map(key).collect();
        let request = pb::BatchGetCommentsRequest { comments, allow_partial };
        Ok(self.client.clone().batch_get_comments(request).await?.into_inner())
    }

    /// Waits until the backlogs are empty and all invariants hold.
    pub(crate) async fn settles(&self) {
        settles(&self.client).await;
    }
}

/// Returns the keys of a post.
pub(crate) async fn keys_of(system: &System, post_id: u64) -> Vec<String> {
    let mut found = Vec::new();
    for node in system.redis.nodes() {
        let mut keys = testkit::redis::cmd("KEYS");
        let keys: Vec<String> =
            keys.arg(format!("*:{post_id}")).query_async(&mut node.admin().await).await.unwrap();
        found.extend(keys);
    }
    found
}

/// Runs a service on a free port and returns its address.
pub(crate) fn run(service: Service, config: &Config) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let chassis = config.chassis.clone();
    tokio::spawn(async move {
        serve(listener, service, &chassis, std::future::pending()).await.unwrap();
    });
    address
}

/// Returns a client, which connects lazily.
pub(crate) fn client(address: &str) -> Client {
    let endpoint = Endpoint::from_shared(address.to_owned()).unwrap();
    Client::new(endpoint.tcp_nodelay(true).connect_lazy())
}

/// Returns a new idempotency key.
pub(crate) fn request_id() -> String {
    Uuid::new_v4().to_string()
}

/// Returns the violations that `Verify` finds, and what is pending.
pub(crate) async fn violations(client: &Client) -> Vec<String> {
    verify(client, false).await.0
}

/// Returns the violations that `Verify` finds with what is pending, and its repairs, if requested.
pub(crate) async fn verify(client: &Client, repair: bool) -> (Vec<String>, Vec<String>) {
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

/// Returns how many accounts are being erased, by `Verify`.
pub(crate) async fn being_erased(client: &Client) -> u64 {
    let request = pb::VerifyRequest::default();
    let mut reports = client.clone().verify(request).await.unwrap().into_inner();
    let mut accounts = 0;
    while let Some(report) = reports.message().await.unwrap() {
        accounts += report.accounts_being_erased;
    }
    accounts
}

/// Waits until the backlogs are empty and all invariants hold; panics with the violations.
pub(crate) async fn settles(client: &Client) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let violations = violations(client).await;
        if violations.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{violations:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns the id of the n-th user of a test; they lie in different partitions.
pub(crate) const fn id(n: u64) -> u64 {
    (n << 12) + ((n * 37) % 1024) * 4
}

pub(crate) const fn user(n: u64) -> UserId {
    UserId::new(id(n)).unwrap()
}

pub(crate) const fn post(id: u64) -> PostId {
    PostId::new(id).unwrap()
}

/// Returns when a post was published, in seconds since the Unix epoch.
pub(crate) fn seconds(id: u64) -> i64 {
    let made = post(id).created_at().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(made.as_secs()).unwrap()
}

/// Asserts how a call was rejected.
#[track_caller]
pub(crate) fn assert_rejected<T: std::fmt::Debug>(
    result: Result<T, Status>,
    code: Code,
    reason: ErrorReason,
) -> Status {
    let status = result.expect_err("an error");
    assert_eq!(status.code(), code, "{status:?}");
    assert_eq!(microblog_chassis::status::reason_of(&status), Some(reason), "{status:?}");
    status
}

/// Asserts that a call was rejected for some fields.
#[track_caller]
pub(crate) fn names_fields<T: std::fmt::Debug>(result: Result<T, Status>, fields: &[&str]) {
    use tonic_types::StatusExt as _;
    let status = result.expect_err("an error");
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let violations = status.get_details_bad_request().expect("a BadRequest").field_violations;
    let named: Vec<_> = violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(named, fields, "{status:?}");
}
