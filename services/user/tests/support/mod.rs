//! Test support: the service with Redis, and a client.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "only tests use it")]

pub mod database;

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use clap::Parser as _;
use microblog_chassis::{Worker, status::reason_of};
use microblog_domain::Partition;
use microblog_keyspace::Keyspace;
use microblog_proto::{
    common::ErrorReason,
    user::{self as pb, user_service_client::UserServiceClient},
};
use microblog_testkit::{Store as Redis, Topology, eventually, redis};
use microblog_user::{Accounts, Config, Draft, Email, Hash, Hasher, Name, Store, store};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};
use uuid::Uuid;

pub type Client = UserServiceClient<Channel>;

pub const PASSWORD: &str = "correct horse";
pub use microblog_testkit::PATIENCE;

/// The time in which the sweeper aborts a stale registration: one and a half write budgets, with a
/// margin.
pub const SWEPT: Duration = Duration::from_secs(75);

/// The service in this process, with its own Redis.
pub struct System {
    pub redis: Redis,
    pub client: Client,
}

impl System {
    pub async fn start(topology: Topology) -> Self {
        Self::start_with(topology, &[]).await
    }

    pub async fn start_with(topology: Topology, flags: &[&str]) -> Self {
        Self::start_as(Worker::ONLY, topology, flags).await
    }

    /// Starts the service without background jobs, whose commands would be counted.
    pub async fn start_without_jobs(topology: Topology, flags: &[&str]) -> Self {
        Self::start_as(Worker { index: 1, count: 2 }, topology, flags).await
    }

    async fn start_as(worker: Worker, topology: Topology, flags: &[&str]) -> Self {
        let redis = Redis::start(topology).await;
        let client = Self::serve(&redis, worker, flags).await;
        Self { redis, client }
    }

    /// Starts another service on the same Redis, with further flags, and returns its client.
    pub async fn another(&self, flags: &[&str]) -> Client {
        Self::serve(&self.redis, Worker::ONLY, flags).await
    }

    async fn serve(redis: &Redis, worker: Worker, flags: &[&str]) -> Client {
        let config = config(redis, flags);
        let service = microblog_user::service(&config, worker).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let never = std::future::pending();
            microblog_chassis::serve(listener, service, &config.chassis, never).await.unwrap();
        });
        connect(&address).await
    }
}

/// Returns a configuration with further flags.
pub fn config(redis: &Redis, flags: &[&str]) -> Config {
    let url = redis.url("user");
    // On a busy machine, many hashes exceed the default timeout of a call.
    let own = ["user", "--redis-url", url.as_str(), "--log", "off"];
    let own = own.into_iter().chain(["--default-timeout-ms", "60000"]);
    Config::try_parse_from(own.chain(flags.iter().copied())).unwrap()
}

/// Returns a client of the service at an address, once the service is ready.
pub async fn connect(address: &str) -> Client {
    let channel = Endpoint::from_shared(address.to_owned()).unwrap().connect_lazy();
    let client = UserServiceClient::new(channel).max_decoding_message_size(64 << 20);
    eventually("the service answers", PATIENCE, async || {
        client
            .clone()
            .get_user(pb::GetUserRequest { user_id: 1 })
            .await
            .is_err_and(|status| reason_of(&status) == Some(ErrorReason::UserNotFound))
    })
    .await;
    client
}

/// Returns the rules on a Redis. Names of deleted accounts are free at once.
pub async fn accounts(redis: &Redis) -> (Store, Accounts) {
    accounts_with_hold(redis, Duration::ZERO).await
}

/// Returns the rules on a Redis. Names of deleted accounts are held for `hold`.
pub async fn accounts_with_hold(redis: &Redis, hold: Duration) -> (Store, Accounts) {
    let config = microblog_keyspace::Config::at(redis.url("user"));
    let store = Store::new(Keyspace::open(&config, store::LIBRARY).unwrap());
    store.ready().await.unwrap();
    let day = Duration::from_secs(24 * 3600);
    (store.clone(), Accounts::new(store, Hasher::of_process(2), day, hold))
}

/// Returns the e-mail address derived from a name.
pub fn email(name: &str) -> Email {
    Email::parse("email", &format!("{name}@example.org")).unwrap()
}

/// Returns the draft of a registration, with an address derived from the name.
pub fn draft(name: &str) -> Draft {
    Draft {
        name: Name::parse("name", name).unwrap(),
        address: email(name).into(),
        password: Hash::none(),
        display_name: String::new(),
        request: Uuid::new_v4().to_string(),
    }
}

/// Returns a request to register a name, with an address derived from it.
pub fn registration(name: &str) -> pb::RegisterRequest {
    pb::RegisterRequest {
        request_id: Uuid::new_v4().to_string(),
        email: format!("{name}@example.org"),
        name: name.to_owned(),
        password: PASSWORD.to_owned(),
        display_name: String::new(),
    }
}

/// Makes a call, with retries while the hashing queue is full.
pub async fn with_retries<T>(
    mut call: impl AsyncFnMut() -> Result<T, Status>,
) -> Result<T, Status> {
    loop {
        match call().await {
            Err(status) if reason_of(&status) == Some(ErrorReason::Overloaded) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            answer => return answer,
        }
    }
}

pub async fn try_register(
    client: &Client,
    request: pb::RegisterRequest,
) -> Result<pb::User, Status> {
    let answer = with_retries(async || client.clone().register(request.clone()).await).await;
    answer.map(|answer| answer.into_inner().user.unwrap())
}

pub async fn register(client: &Client, name: &str) -> pb::User {
    try_register(client, registration(name)).await.unwrap()
}

/// Logs in by the address derived from a name.
pub async fn login(client: &Client, name: &str, password: &str) -> Result<String, Status> {
    login_as(client, &format!("{name}@example.org"), password).await
}

/// Logs in by a name or an address.
pub async fn login_as(client: &Client, login: &str, password: &str) -> Result<String, Status> {
    let request = pb::LoginRequest { login: login.to_owned(), password: password.to_owned() };
    let answer = with_retries(async || client.clone().login(request.clone()).await).await;
    answer.map(|answer| answer.into_inner().token)
}

pub async fn authenticate(client: &Client, token: &str) -> Result<u64, Status> {
    let request = pb::AuthenticateRequest { token: token.to_owned() };
    client.clone().authenticate(request).await.map(|answer| answer.into_inner().user_id)
}

/// Returns the key of the counter of failed log-ins of an address.
pub fn attempts(email: &str) -> String {
    format!("user:{{{}}}:attempts:{email}", Partition::of_text(email))
}

/// Sets the counter of failed log-ins of an address, on a single server. From 11 on, the next
/// failure costs a delay of minutes, longer than any test.
pub async fn set_failures(redis: &Redis, email: &str, failures: u64) {
    let set = redis::cmd("HSET").arg(attempts(email)).arg("failures").arg(failures).to_owned();
    set.query_async::<()>(&mut redis.nodes()[0].admin().await).await.unwrap();
}

/// Asserts that a call was rejected for a reason.
#[track_caller]
pub fn assert_rejected<T: std::fmt::Debug>(
    answer: Result<T, Status>,
    reason: ErrorReason,
) -> Status {
    let status = answer.unwrap_err();
    assert_eq!(reason_of(&status), Some(reason), "{status:?}");
    status
}

/// Asserts that a call was rejected because of exactly these fields.
#[track_caller]
pub fn assert_invalid_fields<T: std::fmt::Debug>(answer: Result<T, Status>, fields: &[&str]) {
    use tonic_types::StatusExt as _;
    let status = assert_rejected(answer, ErrorReason::InvalidField);
    let named = status.get_details_bad_request().unwrap().field_violations;
    let named: Vec<_> = named.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(named, fields);
}

/// Asserts that `Verify` finds so many accounts and no violations, once no registration is pending:
/// a cluster client may repeat a step, and only the sweeper aborts what that starts.
pub async fn assert_valid(client: &Client, accounts: u64) {
    let deadline = Instant::now() + SWEPT;
    loop {
        let (partitions, checked, violations) = match verified(client).await {
            // The last partitions are being recovered.
            Err(status) if reason_of(&status) == Some(ErrorReason::Recovering) => {
                (0, 0, vec![status.to_string()])
            }
            verified => verified.unwrap(),
        };
        if violations.is_empty() {
            assert_eq!((partitions, checked), (1024, accounts));
            return;
        }
        assert!(Instant::now() < deadline, "{violations:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn verified(client: &Client) -> Result<(u64, u64, Vec<String>), Status> {
    let mut stream = client.clone().verify(pb::VerifyRequest::default()).await?.into_inner();
    let (mut partitions, mut checked, mut violations) = (0, 0, Vec::new());
    while let Some(message) = stream.message().await? {
        partitions += 1;
        checked += message.users_checked;
        violations.extend(message.violations);
        violations.extend(message.pending);
    }
    Ok((partitions, checked, violations))
}

/// Runs each test on a single server and on a cluster.
#[allow(unused_macros, reason = "not all test binaries have such tests")]
macro_rules! on_each_store {
    ($($test:ident)*) => {
        mod on_a_single_server {
            $(#[tokio::test] async fn $test() { super::$test(super::Topology::Single).await })*
        }
        mod on_a_cluster {
            $(#[tokio::test] async fn $test() { super::$test(super::Topology::Cluster).await })*
        }
    };
}
#[allow(unused_imports, reason = "not all test binaries have such tests")]
pub(crate) use on_each_store;
