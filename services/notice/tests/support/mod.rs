//! Test support: notice services on stores of their own, and the services that they follow.
#![allow(dead_code, reason = "no test file uses all of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

pub(crate) mod processes;

use std::{
    future,
    net::TcpListener,
    sync::atomic::{AtomicU64, Ordering},
};

use clap::Parser as _;
use futures::future::join_all;
use microblog_chassis::{Peer, Service, Worker, serve};
use microblog_notice::{Config, Peers};
use microblog_proto::{
    notice::{self as pb, NoticeKind, notice_service_client::NoticeServiceClient},
    post::{self, post_service_client::PostServiceClient},
    relation::{self, relation_service_client::RelationServiceClient},
    user::{self, user_service_client::UserServiceClient},
};
use microblog_testkit::{
    Database, Files, Store as Redis, Topology, at_daytime, eventually, redis::cmd,
};
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Row as _};
use tokio::{
    task::JoinHandle,
    time::{Duration, Instant, sleep},
};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};
use uuid::Uuid;

pub(crate) use microblog_testkit::PATIENCE;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) type Client = NoticeServiceClient<Channel>;

/// The services that a notice service follows, with databases.
pub(crate) struct Followed {
    redis: Redis,
    pub(crate) files: Files,
    pub(crate) urls: [String; 3],
    pub(crate) user: UserServiceClient<Channel>,
    pub(crate) relation: RelationServiceClient<Channel>,
    pub(crate) post: PostServiceClient<Channel>,
}

impl Followed {
    async fn start() -> Self {
        let (redis, files) = (Redis::start(Topology::Single).await, Files::new());
        let databases = ["user", "relation", "post"]
            .map(|service| format!("sqlite://{}", files.path(service).display()));
        let [user, relation, post] = &databases;
        let urls = [
            start_user(&redis, &["--database-url", user]).await,
            start_relation(&redis, &["--database-url", relation]).await,
            start_post(
                &redis,
                &["--database-url", post, "--posts-per-minute=0", "--comments-per-minute=0"],
            )
            .await,
        ];
        let [user, relation, post] = [0, 1, 2].map(|i| channel(&urls[i]));
        Self {
            redis,
            files,
            urls,
            user: UserServiceClient::new(user),
            relation: RelationServiceClient::new(relation),
            post: PostServiceClient::new(post),
        }
    }
}

macro_rules! start {
    ($($function:ident $service:ident $krate:ident ($($more:expr)?);)*) => {
        $(async fn $function(redis: &Redis, flags: &[&str]) -> String {
            let url = redis.url(stringify!($service));
            let own = [stringify!($service), "--redis-url", &url, "--threads", "1"];
            let config = $krate::Config::parse_from(own.iter().chain(flags));
            let service = $krate::service(&config, $($more,)? Worker::ONLY).await.unwrap();
            run(service, &config.chassis).await.0
        })*
    };
}

start! {
    start_user user microblog_user ();
    start_relation relation microblog_relation ();
    start_post post microblog_post (None);
}

/// Notice services on the same stores, and what they follow.
pub(crate) struct System {
    pub(crate) redis: Redis,
    pub(crate) database: Database,
    pub(crate) followed: Followed,
    pub(crate) client: Client,
    replica: Option<JoinHandle<()>>,
}

impl System {
    /// Starts a system, and waits until the change feeds are followed. A single Redis goes with SQLite, and a
    /// cluster with PostgreSQL.
    pub(crate) async fn start(topology: Topology) -> Self {
        at_daytime().await;
        let database = match topology {
            Topology::Single => Database::sqlite(),
            Topology::Cluster => Database::postgres().await,
        };
        let (followed, redis) = (Followed::start().await, Redis::start(topology).await);
        let (address, replica) = start_notice(&redis, &database, &followed).await;
        let client = NoticeServiceClient::new(channel(&address));
        let system = Self { redis, database, followed, client, replica: Some(replica) };
        system.is_followed().await;
        system
    }

    /// Ends the service at whatever it does, and starts another one.
    pub(crate) async fn restart(&mut self) {
        self.stop().await;
        let (address, replica) = start_notice(&self.redis, &self.database, &self.followed).await;
        self.client = NoticeServiceClient::new(channel(&address));
        self.replica = Some(replica);
    }

    /// Ends the service at whatever it does. Its leases end, too.
    pub(crate) async fn stop(&mut self) {
        self.abort().await;
        self.release_leases().await;
    }

    /// Ends the service at whatever it does.
    pub(crate) async fn abort(&mut self) {
        if let Some(replica) = self.replica.take() {
            replica.abort();
            let _ = replica.await;
        }
    }

    /// Starts another notice service on the same stores, and returns its client, too.
    pub(crate) async fn replica(&self) -> (Client, JoinHandle<()>) {
        let (address, task) = start_notice(&self.redis, &self.database, &self.followed).await;
        (NoticeServiceClient::new(channel(&address)), task)
    }

    /// Ends the leases at once, as if the time of their holders were over.
    pub(crate) async fn release_leases(&self) {
        self.execute("DELETE FROM leases").await;
    }

    /// Waits until each feed has a position.
    pub(crate) async fn is_followed(&self) {
        eventually("the feeds are followed", PATIENCE * 3, async || {
            self.numbers("SELECT read_until FROM positions").await.iter().all(|until| *until > 0)
        })
        .await;
    }

    /// Waits until reads are answered from the cache.
    pub(crate) async fn caches(&self) {
        const PROBE: u64 = 4_000_000_000;
        eventually("the cache is trusted", PATIENCE, async || {
            let _ = self.notices(PROBE).await;
            !self.keys(&format!("note:*:notices:*:{PROBE}")).await.is_empty()
        })
        .await;
    }

    /// Returns the positions in the feeds of post, relation and user.
    pub(crate) async fn positions(&self) -> Vec<i64> {
        self.numbers("SELECT sequence FROM positions ORDER BY feed").await
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

    /// Empties Redis.
    pub(crate) async fn flush(&self) {
        for node in self.redis.nodes() {
            cmd("FLUSHALL").exec_async(&mut node.admin().await).await.unwrap();
        }
    }

    /// Runs a statement, and returns the numbers of its rows.
    pub(crate) async fn numbers(&self, sql: &str) -> Vec<i64> {
        numbers(&self.database, sql).await
    }

    /// Runs statements.
    pub(crate) async fn execute(&self, sql: &str) {
        let mut connection = connect_sql(&self.database).await;
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    /// Returns the notices of an account, newest first.
    pub(crate) async fn notices(&self, user_id: u64) -> Vec<pb::Notice> {
        self.page(user_id, &[], false).await.notices
    }

    /// Returns the first page of 200.
    pub(crate) async fn page(
        &self,
        user_id: u64,
        kinds: &[NoticeKind],
        unseen: bool,
    ) -> pb::ListNoticesResponse {
        let kinds = kinds.iter().map(|&kind| kind.into()).collect();
        let request =
            pb::ListNoticesRequest { user_id, kinds, page_size: 200, unseen, ..Default::default() };
        self.client.clone().list_notices(request).await.unwrap().into_inner()
    }

    /// Waits until an account's notices are these: kind, accounts, post and comment, newest first.
    pub(crate) async fn has(&self, user_id: u64, expected: &[Shown]) {
        let deadline = Instant::now() + PATIENCE;
        while self.shown(user_id).await != expected && Instant::now() < deadline {
            sleep(POLL_INTERVAL).await;
        }
        let positions = self.positions().await;
        assert_eq!(self.shown(user_id).await, expected, "{positions:?}");
    }

    /// Returns an account's notices.
    pub(crate) async fn shown(&self, user_id: u64) -> Vec<Shown> {
        self.notices(user_id).await.iter().map(shown).collect()
    }

    /// Waits until everything is applied that has changed before in the partitions of accounts: follows
    /// by them, and likes, reposts and comments of their posts.
    pub(crate) async fn settle(&self, users: &[u64]) {
        // Twice: changes that are read together are applied in no order among accounts.
        for _ in 0..2 {
            join_all(users.iter().map(|&user| self.settle_one(user))).await;
        }
    }

    async fn settle_one(&self, user: u64) {
        static TIMES: AtomicU64 = AtomicU64::new(2_000_000);
        let [other, target] = [id(900), id(901)];
        // Another account of the partition, whose changes come later.
        let own = user + (TIMES.fetch_add(1, Ordering::Relaxed) << 12);
        let post = self.publish(own, "settled").await;
        self.like(other, post).await;
        self.follow(own, target).await;
        eventually("the changes are applied", PATIENCE, async || {
            let follows = self.notices(target).await;
            !self.notices(own).await.is_empty()
                && follows.iter().any(|follows| actors(follows).contains(&own))
        })
        .await;
    }

    /// Returns the violations that `Verify` finds.
    pub(crate) async fn violations(&self) -> Vec<String> {
        let request = pb::VerifyRequest::default();
        let mut reports = self.client.clone().verify(request).await.unwrap().into_inner();
        let mut violations = Vec::new();
        while let Some(report) = reports.message().await.unwrap() {
            violations.extend(report.violations);
        }
        violations
    }

    /// Waits until all invariants hold.
    pub(crate) async fn verifies(&self) {
        eventually("all invariants hold", PATIENCE, async || self.violations().await.is_empty())
            .await;
    }

    pub(crate) async fn publish(&self, author_id: u64, text: &str) -> u64 {
        let (request_id, text) = (Uuid::new_v4().to_string(), text.to_owned());
        let request = post::CreatePostRequest { author_id, request_id, text };
        let mut client = self.followed.post.clone();
        client.create_post(request).await.unwrap().into_inner().post.unwrap().id
    }

    pub(crate) async fn repost(&self, author_id: u64, post_id: u64) -> u64 {
        let (request_id, text) = (Uuid::new_v4().to_string(), String::new());
        let request = post::RepostRequest { author_id, request_id, post_id, text };
        let mut client = self.followed.post.clone();
        client.repost(request).await.unwrap().into_inner().post.unwrap().id
    }

    pub(crate) async fn delete_post(&self, author_id: u64, post_id: u64) {
        let request = post::DeletePostRequest { author_id, post_id };
        self.followed.post.clone().delete_post(request).await.unwrap();
    }

    pub(crate) async fn comment(
        &self,
        author_id: u64,
        post_id: u64,
        in_reply_to_id: u64,
        text: &str,
    ) -> u64 {
        let (request_id, text) = (Uuid::new_v4().to_string(), text.to_owned());
        let request =
            post::AddCommentRequest { author_id, request_id, post_id, text, in_reply_to_id };
        let mut client = self.followed.post.clone();
        client.add_comment(request).await.unwrap().into_inner().comment.unwrap().id
    }

    pub(crate) async fn like(&self, user_id: u64, post_id: u64) {
        let request = post::LikeRequest { user_id, post_id };
        self.followed.post.clone().like(request).await.unwrap();
    }

    pub(crate) async fn unlike(&self, user_id: u64, post_id: u64) {
        let request = post::UnlikeRequest { user_id, post_id };
        self.followed.post.clone().unlike(request).await.unwrap();
    }

    pub(crate) async fn follow(&self, follower_id: u64, target_id: u64) {
        let request = relation::FollowRequest { follower_id, target_id };
        self.followed.relation.clone().follow(request).await.unwrap();
    }

    pub(crate) async fn unfollow(&self, follower_id: u64, target_id: u64) {
        let request = relation::UnfollowRequest { follower_id, target_id };
        self.followed.relation.clone().unfollow(request).await.unwrap();
    }

    /// Registers an account, and returns its id.
    pub(crate) async fn register(&self, name: &str) -> u64 {
        let request = user::RegisterRequest {
            request_id: Uuid::new_v4().to_string(),
            email: format!("{name}@example.com"),
            name: name.to_owned(),
            password: "correct horse".to_owned(),
            ..Default::default()
        };
        let mut client = self.followed.user.clone();
        client.register(request).await.unwrap().into_inner().user.unwrap().id
    }
}

/// A notice: its kind, accounts, earlier acts, post and comment.
pub(crate) type Shown = (NoticeKind, Vec<u64>, u64, u64, u64);

pub(crate) fn shown(notice: &pb::Notice) -> Shown {
    (notice.kind(), actors(notice), notice.earlier, notice.post_id, notice.comment_id)
}

/// Returns the accounts of a notice's newest acts.
pub(crate) fn actors(notice: &pb::Notice) -> Vec<u64> {
    notice.acts.iter().map(|act| act.actor_id).collect()
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

/// Returns the flags of a service on stores.
fn args(redis_url: &str, database_url: &str) -> Vec<String> {
    let flags = [
        ("--redis-url", redis_url),
        ("--database-url", database_url),
        ("--threads", "1"),
        ("--log", "off"),
        // On a busy machine, statements exceed the default timeouts.
        ("--default-timeout-ms", "60000"),
        ("--database-timeout-ms", "20000"),
    ];
    flags.into_iter().flat_map(|(flag, value)| [flag, value]).map(str::to_owned).collect()
}

/// Starts a notice service as a task, which ends with all that it does when it is aborted.
async fn start_notice(
    redis: &Redis,
    database: &Database,
    followed: &Followed,
) -> (String, JoinHandle<()>) {
    let args = args(&redis.url("notice"), &database.url());
    let config = Config::parse_from(["notice".to_owned()].into_iter().chain(args));
    let [user, relation, post] =
        [0, 1, 2].map(|i| Peer::remote(&followed.urls[i], &config.chassis).unwrap());
    let peers = Peers { user, relation, post };
    let service = microblog_notice::service(&config, peers, Worker::ONLY).await.unwrap();
    run(service, &config.chassis).await
}

/// Serves a service on a free port. Returns its address and task when it is ready.
async fn run(service: Service, config: &microblog_chassis::Config) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (config, ready) = (config.clone(), service.ready.clone());
    let task = tokio::spawn(async move {
        serve(listener, service, &config, future::pending()).await.unwrap();
    });
    eventually("the service is ready", PATIENCE, async || ready().await).await;
    (address, task)
}

pub(crate) fn channel(address: &str) -> Channel {
    Endpoint::from_shared(address.to_owned()).unwrap().connect_lazy()
}

/// Returns the id of the nth account, each in a partition of its own.
pub(crate) fn id(n: u64) -> u64 {
    ((1_000_000 + n) << 12) | ((n % 1024) << 2)
}

/// Asserts that a call was rejected because of this field.
#[track_caller]
pub(crate) fn assert_invalid_field<T: std::fmt::Debug>(answer: Result<T, Status>, field: &str) {
    use tonic_types::StatusExt as _;
    let status = answer.expect_err("a rejection");
    let violations = status.get_details_bad_request().expect("a BadRequest").field_violations;
    let named: Vec<_> = violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(named, [field], "{status:?}");
}
