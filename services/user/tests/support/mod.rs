//! Test support: a user service with stores of its own, and its clients.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "only tests use it")]

use std::{
    net::TcpListener,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use clap::Parser as _;
use microblog_chassis::{Worker, status::reason_of};
use microblog_proto::{
    common::ErrorReason,
    user::{self as pb, user_service_client::UserServiceClient},
};
use microblog_testkit::{self as testkit, Process, Store, eventually, redis::cmd};
use microblog_user::Config;
use sha2::{Digest as _, Sha256};
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Row as _};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};
use uuid::Uuid;

pub use microblog_testkit::{Database, PATIENCE, Topology};

pub type Client = UserServiceClient<Channel>;

pub const PASSWORD: &str = "correct horse";

/// A worker without background jobs.
pub const WITHOUT_JOBS: Worker = Worker { index: 1, count: 2 };

/// A service in this process, with its stores.
pub struct System {
    pub redis: Store,
    pub database: Database,
    pub client: Client,
}

impl System {
    pub async fn start(topology: Topology) -> Self {
        Self::start_with(topology, &[]).await
    }

    /// Starts a service with further flags, and waits until it answers from the cache. A single Redis goes
    /// with SQLite, and a cluster with PostgreSQL.
    pub async fn start_with(topology: Topology, flags: &[&str]) -> Self {
        let database = match topology {
            Topology::Single => Database::sqlite(),
            Topology::Cluster => Database::postgres().await,
        };
        Self::start_on(Store::start(topology).await, database, flags).await
    }

    /// Starts a service on stores.
    pub async fn start_on(redis: Store, database: Database, flags: &[&str]) -> Self {
        let client = serve_on(&redis, &database, Worker::ONLY, flags).await;
        let system = Self { redis, database, client };
        system.caches().await;
        system
    }

    /// Starts another service on the same stores, without background jobs and with further flags, and
    /// returns its client.
    pub async fn another(&self, flags: &[&str]) -> Client {
        serve_on(&self.redis, &self.database, WITHOUT_JOBS, flags).await
    }

    /// Starts another service with its background jobs.
    pub async fn another_with_jobs(&self) -> Client {
        serve_on(&self.redis, &self.database, Worker::ONLY, &[]).await
    }

    /// Returns the client of the service, and those of three others on the same stores.
    pub async fn four_clients(&self) -> [Client; 4] {
        let others = [self.another(&[]).await, self.another(&[]).await, self.another(&[]).await];
        let [second, third, fourth] = others;
        [self.client.clone(), second, third, fourth]
    }

    /// Waits until reads are answered from the cache.
    pub async fn caches(&self) {
        const PROBE: u64 = 4_000_000_000;
        testkit::eventually("the cache is trusted", PATIENCE, async || {
            let _ = self.client.clone().get_user(pb::GetUserRequest { user_id: PROBE }).await;
            !self.keys(&format!("usr:*:profile:*:{PROBE}")).await.is_empty()
        })
        .await;
    }

    /// Returns the keys in Redis that match a pattern.
    pub async fn keys(&self, pattern: &str) -> Vec<String> {
        let mut all = Vec::new();
        for node in self.redis.nodes() {
            let keys = cmd("KEYS").arg(pattern).take();
            let keys: Vec<String> = keys.query_async(&mut node.admin().await).await.unwrap();
            all.extend(keys);
        }
        all
    }

    /// Empties Redis. Then reads see what a test has changed in the tables.
    pub async fn flush(&self) {
        for node in self.redis.nodes() {
            cmd("FLUSHALL").exec_async(&mut node.admin().await).await.unwrap();
        }
    }

    /// Returns how many entries were read from Redis, and not from a client-side cache.
    pub async fn entries_read(&self) -> u64 {
        let mut calls = 0;
        for node in self.redis.nodes() {
            calls += node.commandstats().await.get("get").copied().unwrap_or_default();
        }
        calls
    }

    /// Returns the most keys that a server tracks for client-side caches.
    pub async fn tracked_keys(&self) -> u64 {
        let mut most = 0;
        for node in self.redis.nodes() {
            let info = cmd("INFO").arg("stats").take();
            let info: String = info.query_async(&mut node.admin().await).await.unwrap();
            let keys = info.lines().find_map(|line| line.strip_prefix("tracking_total_keys:"));
            most = keys.unwrap().trim().parse::<u64>().unwrap().max(most);
        }
        most
    }

    /// Runs a statement, and returns the numbers of its rows.
    pub async fn numbers(&self, sql: &str) -> Vec<i64> {
        let mut connection = connect_sql(&self.database).await;
        let query = sqlx::query(AssertSqlSafe(sql.to_owned()));
        let rows = query.fetch_all(&mut connection).await.unwrap();
        let numbers = rows.iter().map(|row| row.try_get(0).unwrap()).collect();
        connection.close().await.unwrap();
        numbers
    }

    /// Runs a statement, and returns its only number.
    pub async fn number(&self, sql: &str) -> i64 {
        self.numbers(sql).await[0]
    }

    /// Runs statements.
    pub async fn execute(&self, sql: &str) {
        let mut connection = connect_sql(&self.database).await;
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    /// Returns how many guesses of the password of an account, or of an account that does not exist, have
    /// failed.
    pub async fn failures(&self, of: Guesses<'_>) -> Option<i64> {
        let digest = of.digest();
        let sql = format!("SELECT failures FROM guesses WHERE digest = {digest}");
        self.numbers(&sql).await.first().copied()
    }

    /// Sets how many guesses have failed. From 11 on, the next failure costs a delay of minutes, longer
    /// than any test.
    pub async fn set_failures(&self, of: Guesses<'_>, failures: u64) {
        let (digest, expires) = (of.digest(), now_ms() + 3_600_000);
        self.execute(&format!(
            "INSERT INTO guesses (digest, failures, delayed_until, expires) \
             VALUES ({digest}, {failures}, 0, {expires}) ON CONFLICT (digest) DO UPDATE \
             SET failures = {failures}, delayed_until = 0, expires = {expires}"
        ))
        .await;
    }

    /// Waits until all invariants hold for so many accounts.
    pub async fn assert_valid(&self, accounts: u64) {
        assert_valid(&self.client, accounts).await;
    }
}

async fn connect_sql(database: &Database) -> AnyConnection {
    sqlx::any::install_default_drivers();
    AnyConnection::connect(&database.url()).await.unwrap()
}

/// Whose password is guessed.
#[derive(Clone, Copy)]
pub enum Guesses<'a> {
    /// An account's, by its id.
    Account(u64),
    /// Nobody's: a name that no account has.
    Name(&'a str),
}

impl Guesses<'_> {
    fn digest(self) -> u64 {
        match self {
            Self::Account(id) => digest(&format!("account {id}")),
            Self::Name(name) => digest(&format!("name {name}")),
        }
    }
}

/// Returns the key of a row: of an identifier (`name ann`, `email ann@example.org`), or of guesses.
pub fn digest(text: &str) -> u64 {
    let hash = Sha256::digest(text);
    u64::from_be_bytes(hash[..8].try_into().unwrap()) >> 1
}

/// Returns what the row of a session has of its token.
pub fn fingerprint(token: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(URL_SAFE_NO_PAD.decode(token).unwrap()))
}

/// Returns a token of an account that no log-in has made.
pub fn unknown_token(id: u64) -> String {
    let secret = Uuid::new_v4();
    let bytes = [&id.to_be_bytes()[..], secret.as_bytes(), secret.as_bytes()].concat();
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns the time in Unix ms.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

async fn serve_on(redis: &Store, database: &Database, worker: Worker, flags: &[&str]) -> Client {
    serve(&redis.url("user"), &database.url(), worker, flags).await
}

/// Starts a service on stores, and waits until it answers. Only a first worker has background jobs.
pub async fn serve(redis_url: &str, database_url: &str, worker: Worker, flags: &[&str]) -> Client {
    let config = config(redis_url, database_url, flags);
    let service = microblog_user::service(&config, worker).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let never = std::future::pending();
        microblog_chassis::serve(listener, service, &config.chassis, never).await.unwrap();
    });
    connect(&address).await
}

/// Returns a configuration with further flags.
fn config(redis_url: &str, database_url: &str, flags: &[&str]) -> Config {
    let args = args(redis_url, database_url, flags);
    Config::parse_from(["user"].into_iter().chain(args.iter().map(String::as_str)))
}

fn args(redis_url: &str, database_url: &str, flags: &[&str]) -> Vec<String> {
    let own = [
        ("--redis-url", redis_url),
        ("--database-url", database_url),
        ("--threads", "1"),
        ("--log", "off"),
        // Calls that hash a password meet in the database.
        ("--hashing-threads", "4"),
        // On a busy machine, many hashes exceed the default timeout of a call, and statements theirs.
        ("--default-timeout-ms", "60000"),
        ("--database-timeout-ms", "20000"),
    ];
    let own = own.into_iter().filter(|(flag, _)| !flags.contains(flag));
    let own = own.flat_map(|(flag, value)| [flag, value]);
    own.chain(flags.iter().copied()).map(str::to_owned).collect()
}

/// Starts a process of the service, and waits until it serves.
pub async fn start_process(redis_url: &str, database_url: &str, flags: &[&str]) -> Process {
    let args = args(redis_url, database_url, flags);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Process::start(env!("CARGO_BIN_EXE_microblog-user"), &args).await
}

/// Returns a client of a server that listens, or will.
pub fn client(address: &str) -> Client {
    let channel = Endpoint::from_shared(address.to_owned()).unwrap().tcp_nodelay(true);
    UserServiceClient::new(channel.connect_lazy()).max_decoding_message_size(64 << 20)
}

/// Returns a client of the service at an address, once it answers.
pub async fn connect(address: &str) -> Client {
    let client = client(address);
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

tokio::task_local! {
    /// In its scope, a call that the database does not answer in time has failed.
    pub static STRICT: ();
}

/// Makes a call, with retries while the hashing queue is full. Outside the scope of [`STRICT`], also if the
/// database was too busy to do it: nothing was written then.
pub async fn with_retries<T, F: Future<Output = Result<T, Status>>>(
    mut call: impl FnMut() -> F,
) -> Result<T, Status> {
    let deadline = Instant::now() + PATIENCE;
    let is_strict = STRICT.try_with(|()| ()).is_ok();
    loop {
        let answer = call().await;
        let is_retried = match answer.as_ref().err().and_then(reason_of) {
            Some(ErrorReason::Overloaded) => true,
            Some(ErrorReason::StoreUnavailable) => !is_strict && Instant::now() < deadline,
            _ => false,
        };
        if !is_retried {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Makes a call of a client, with retries.
macro_rules! retried {
    ($client:expr, $method:ident, $request:expr) => {{
        let (client, request) = ($client, $request);
        let call = || {
            let (mut client, request) = (Clone::clone(client), request.clone());
            async move { client.$method(request).await }
        };
        $crate::support::with_retries(call).await.map(tonic::Response::into_inner)
    }};
}
#[allow(unused_imports, reason = "not all test binaries make other calls")]
pub(crate) use retried;

pub async fn try_register(
    client: &Client,
    request: pb::RegisterRequest,
) -> Result<pb::User, Status> {
    retried!(client, register, request).map(|answer| answer.user.unwrap())
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
    retried!(client, login, request).map(|answer| answer.token)
}

pub async fn logout(client: &Client, token: &str) {
    let request = pb::LogoutRequest { token: token.to_owned() };
    retried!(client, logout, request).unwrap();
}

pub async fn authenticate(client: &Client, token: &str) -> Result<u64, Status> {
    let request = pb::AuthenticateRequest { token: token.to_owned() };
    client.clone().authenticate(request).await.map(|answer| answer.into_inner().user_id)
}

pub async fn change_password(client: &Client, user_id: u64, from: &str, to: &str) {
    let request = pb::ChangePasswordRequest {
        user_id,
        current_password: from.to_owned(),
        new_password: to.to_owned(),
    };
    retried!(client, change_password, request).unwrap();
}

/// Changes the biography of an account.
pub async fn set_bio(client: &Client, user_id: u64, bio: &str) -> Result<pb::User, Status> {
    let changes = pb::ProfileChanges { bio: Some(bio.to_owned()), ..Default::default() };
    let request = pb::UpdateProfileRequest { user_id, changes: Some(changes) };
    retried!(client, update_profile, request).map(|answer| answer.user.unwrap())
}

pub async fn delete(client: &Client, user_id: u64, password: &str) -> Result<(), Status> {
    let request = pb::DeleteUserRequest { user_id, password: password.to_owned() };
    retried!(client, delete_user, request).map(drop)
}

pub async fn confirm_deletion(client: &Client, user_id: u64) {
    retried!(client, confirm_deletion, pb::ConfirmDeletionRequest { user_id }).unwrap();
}

/// Returns whether a name is available.
pub async fn is_free(client: &Client, name: &str) -> bool {
    let request = pb::CheckAvailabilityRequest { name: name.to_owned() };
    let answer = client.clone().check_availability(request).await.unwrap();
    answer.into_inner().name_available.unwrap()
}

/// Resolves names to accounts.
pub async fn resolve(client: &Client, names: &[&str]) -> Vec<(String, u64)> {
    let names = names.iter().map(|&name| name.to_owned()).collect();
    let request = pb::BatchResolveNamesRequest { names };
    let users = client.clone().batch_resolve_names(request).await.unwrap().into_inner().users;
    users.into_iter().map(|named| (named.name, named.user_id)).collect()
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

/// What `Verify` reports.
#[derive(Debug, Default)]
pub struct Verified {
    pub checked: u64,
    pub violations: Vec<String>,
    pub pending: Vec<String>,
}

/// Checks all accounts.
pub async fn verify(client: &Client) -> Verified {
    let request = pb::VerifyRequest::default();
    let mut stream = client.clone().verify(request).await.unwrap().into_inner();
    let mut all = Verified::default();
    while let Some(message) = stream.message().await.unwrap() {
        all.checked += message.users_checked;
        all.violations.extend(message.violations);
        all.pending.extend(message.pending);
    }
    all
}

/// Waits until `Verify` finds no violation, and so many accounts: an entry that a writer could neither
/// change nor remove stays for a moment.
pub async fn assert_valid(client: &Client, accounts: u64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let Verified { checked, violations, .. } = verify(client).await;
        if violations.is_empty() {
            assert_eq!(checked, accounts);
            return;
        }
        assert!(Instant::now() < deadline, "{violations:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Runs each test on a single server with SQLite, and on a cluster with PostgreSQL.
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
