//! A post service with its own Redis, the timelines that it delivers to, and helpers to call it.
#![allow(dead_code, reason = "no test file uses all of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

pub(crate) mod lists;
pub(crate) mod processes;
pub(crate) mod timelines;

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use clap::Parser as _;
use microblog_chassis::{Peer, Service, Worker, serve};
use microblog_domain::{PostId, UserId};
use microblog_post::Config;
use microblog_proto::{
    common::ErrorReason,
    post::{self as pb, post_service_client::PostServiceClient},
};
use microblog_testkit::{self as testkit, Process, Store, redis::cmd};
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Row as _};
use timelines::Timelines;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};
use uuid::Uuid;

pub(crate) type Client = PostServiceClient<Channel>;

pub(crate) use microblog_testkit::{Database, PATIENCE, Topology};

/// The worker of a process that has no background jobs.
pub(crate) const WITHOUT_JOBS: Worker = Worker { index: 1, count: 2 };

/// Returns the flags of a service on stores, without rate limits unless further flags set them.
fn args(redis_url: &str, database_url: &str, flags: &[&str]) -> Vec<String> {
    let own = [
        ("--redis-url", redis_url),
        ("--database-url", database_url),
        ("--threads", "1"),
        ("--log", "off"),
        ("--posts-per-minute", "0"),
        ("--comments-per-minute", "0"),
        // On a busy machine, statements exceed the default timeouts.
        ("--default-timeout-ms", "60000"),
        ("--database-timeout-ms", "20000"),
    ];
    let own = own.into_iter().filter(|(flag, _)| !flags.contains(flag));
    let own = own.flat_map(|(flag, value)| [flag, value]);
    own.chain(flags.iter().copied()).map(str::to_owned).collect()
}

/// Returns a configuration with further flags.
pub(crate) fn config(redis_url: &str, database_url: &str, flags: &[&str]) -> Config {
    let args = args(redis_url, database_url, flags);
    Config::parse_from(["post"].into_iter().chain(args.iter().map(String::as_str)))
}

/// A service in this process, with its stores, and the timelines that it delivers to.
pub(crate) struct System {
    pub(crate) redis: Store,
    pub(crate) database: Database,
    pub(crate) address: String,
    pub(crate) client: Client,
    pub(crate) timelines: Timelines,
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
        Self::start_on(Store::start(topology).await, database, flags).await
    }

    /// Starts a service on stores.
    pub(crate) async fn start_on(redis: Store, database: Database, flags: &[&str]) -> Self {
        let redis_url = redis.url("post");
        Self::start_as(&redis_url, redis, database, flags).await
    }

    /// Starts a service on stores, at an address of Redis.
    pub(crate) async fn start_as(
        redis_url: &str,
        redis: Store,
        database: Database,
        flags: &[&str],
    ) -> Self {
        let timelines = Timelines::default();
        let address = start(redis_url, &database.url(), &timelines, Worker::ONLY, flags).await;
        let client = connect(&address).await;
        let system = Self { redis, database, address, client, timelines };
        system.caches().await;
        system
    }

    /// Starts another service on the same stores, without background jobs and with further flags, and
    /// returns its client.
    pub(crate) async fn another(&self, flags: &[&str]) -> Client {
        self.another_at(&self.redis.url("post"), &self.database.url(), flags).await
    }

    /// Starts another service on the same stores, with background jobs, that delivers to other timelines.
    pub(crate) async fn replica(&self, timelines: &Timelines) -> Client {
        let (redis_url, database_url) = (self.redis.url("post"), self.database.url());
        connect(&start(&redis_url, &database_url, timelines, Worker::ONLY, &[]).await).await
    }

    /// Starts another service likewise, at other addresses of the same stores.
    pub(crate) async fn another_at(
        &self,
        redis_url: &str,
        database_url: &str,
        flags: &[&str],
    ) -> Client {
        let address = start(redis_url, database_url, &self.timelines, WITHOUT_JOBS, flags).await;
        connect(&address).await
    }

    /// Returns the client of the service, and those of three others on the same stores.
    pub(crate) async fn four_clients(&self) -> [Client; 4] {
        let others = [self.another(&[]).await, self.another(&[]).await, self.another(&[]).await];
        let [second, third, fourth] = others;
        [self.client.clone(), second, third, fourth]
    }

    /// Waits until reads are answered from the cache.
    pub(crate) async fn caches(&self) {
        const PROBE: u64 = 4_000_000_000;
        testkit::eventually("the cache is trusted", PATIENCE, async || {
            let _ = self.get(PROBE, 0).await;
            !self.keys(&format!("pst:*:post:*:{PROBE}")).await.is_empty()
        })
        .await;
    }

    /// Returns the keys in Redis that match a pattern.
    pub(crate) async fn keys(&self, pattern: &str) -> Vec<String> {
        let mut all = Vec::new();
        for node in self.redis.nodes() {
            let keys = cmd("KEYS").arg(pattern).take();
            let keys: Vec<String> = keys.query_async(&mut node.admin().await).await.unwrap();
            all.extend(keys);
        }
        all
    }

    /// Empties Redis. Then reads see what a test has changed in the tables.
    pub(crate) async fn flush(&self) {
        for node in self.redis.nodes() {
            cmd("FLUSHALL").exec_async(&mut node.admin().await).await.unwrap();
        }
    }

    /// Runs a statement, and returns the numbers of its rows.
    pub(crate) async fn numbers(&self, sql: &str) -> Vec<i64> {
        numbers(&self.database, sql).await
    }

    /// Returns a connection to the database.
    pub(crate) async fn connection(&self) -> AnyConnection {
        connect_sql(&self.database).await
    }

    /// Returns how many rows a table has.
    pub(crate) async fn rows(&self, table: &str) -> i64 {
        self.numbers(&format!("SELECT COUNT(*) FROM {table}")).await[0]
    }

    /// Runs statements.
    pub(crate) async fn execute(&self, sql: &str) {
        let mut connection = connect_sql(&self.database).await;
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
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

    /// Waits until nothing is under way and all invariants hold.
    pub(crate) async fn settles(&self) {
        settles(&self.client).await;
    }
}

/// Runs a statement, and returns the numbers of its rows.
pub(crate) async fn numbers(database: &Database, sql: &str) -> Vec<i64> {
    let mut connection = connect_sql(database).await;
    let query = sqlx::query(AssertSqlSafe(sql.to_owned()));
    let rows = query.fetch_all(&mut connection).await.unwrap();
    let numbers = rows.iter().map(|row| row.try_get(0).unwrap()).collect();
    connection.close().await.unwrap();
    numbers
}

async fn connect_sql(database: &Database) -> AnyConnection {
    sqlx::any::install_default_drivers();
    AnyConnection::connect(&database.url()).await.unwrap()
}

/// Starts a service on stores, and returns its address. Only a first worker has all background jobs.
async fn start(
    redis_url: &str,
    database_url: &str,
    timelines: &Timelines,
    worker: Worker,
    flags: &[&str],
) -> String {
    let config = config(redis_url, database_url, flags);
    let peer = Peer::local(&timelines.service(), &config.chassis);
    let service = microblog_post::service(&config, Some(peer), worker).await.unwrap();
    run(service, &config)
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

/// Starts a process of the service that delivers to a timeline service, and waits until it serves.
pub(crate) async fn start_process(
    redis_url: &str,
    database_url: &str,
    timeline_url: &str,
    flags: &[&str],
) -> Process {
    let flags: Vec<&str> =
        ["--timeline-url", timeline_url].into_iter().chain(flags.iter().copied()).collect();
    let args = args(redis_url, database_url, &flags);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Process::start(env!("CARGO_BIN_EXE_microblog-post"), &args).await
}

/// Returns a client of the service at an address, once it answers.
pub(crate) async fn connect(address: &str) -> Client {
    let client = client(address);
    testkit::eventually("the service answers", PATIENCE, async || {
        let get = pb::GetPostRequest { post_id: 1, viewer_id: 0 };
        let answer = client.clone().get_post(get).await;
        answer.is_err_and(|status| {
            microblog_chassis::status::reason_of(&status) == Some(ErrorReason::PostNotFound)
        })
    })
    .await;
    client
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
    let mut reports =
        client.clone().verify(pb::VerifyRequest::default()).await.unwrap().into_inner();
    let mut violations = Vec::new();
    while let Some(report) = reports.message().await.unwrap() {
        violations.extend(report.violations);
        violations.extend(report.pending);
    }
    violations
}

/// Waits until nothing is under way and all invariants hold; panics with the violations.
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
