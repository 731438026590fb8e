//! Overload: more passwords to hash than the process can.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use futures::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use microblog_chassis::status::reason_of;
use microblog_proto::{common::ErrorReason as Reason, user as pb};
use microblog_testkit::{Store, TableLocks, eventually};
use support::{
    Client, Database, Guesses, PASSWORD, PATIENCE, System, Topology, authenticate, login, register,
};
use tokio::{sync::Mutex, task::JoinHandle};
use tonic::Request;

/// More than the streams of the connection that a test's calls share.
const FLOOD: usize = 150;
const HASHING_THREADS: usize = 2;
const WAITING: usize = 16 * HASHING_THREADS;

/// The tests share the process's hasher.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Starts a service whose statements wait for locks.
async fn start() -> System {
    let flags = ["--hashing-threads", "2", "--database-timeout-ms", "120000"];
    let redis = Store::start(Topology::Single).await;
    System::start_on(redis, Database::postgres().await, &flags).await
}

/// The threads of the process's hasher are occupied: a log-in has a permit for its time, in which it looks
/// for the account.
struct Occupied {
    lock: TableLocks,
    log_ins: Vec<JoinHandle<Option<Reason>>>,
}

impl Occupied {
    async fn start(system: &System) -> Self {
        let Database::Postgres(server) = &system.database else { unreachable!() };
        let lock = server.lock_tables(&["identifiers".to_owned()]).await;
        let log_in = |n: usize| {
            let client = system.client.clone();
            tokio::spawn(async move { try_login(&client, format!("first{n}"), PATIENCE).await })
        };
        let log_ins = (0..HASHING_THREADS).map(log_in).collect();
        let waiting = "SELECT count(*) FROM pg_stat_activity \
                       WHERE wait_event_type = 'Lock' AND query LIKE '%FROM identifiers%'";
        eventually("the log-ins wait", PATIENCE, async || {
            server.sql(waiting) == HASHING_THREADS.to_string()
        })
        .await;
        Self { lock, log_ins }
    }

    async fn end(self) {
        drop(self.lock);
        for log_in in self.log_ins {
            assert_eq!(log_in.await.unwrap(), Some(Reason::BadCredentials));
        }
    }
}

/// Logs in without a retry, and returns the error.
async fn try_login(client: &Client, name: String, timeout: Duration) -> Option<Reason> {
    let email = format!("{name}@example.org");
    let mut request =
        Request::new(pb::LoginRequest { login: email, password: PASSWORD.to_owned() });
    request.set_timeout(timeout);
    let answer = client.clone().login(request).await;
    answer.err().and_then(|status| reason_of(&status))
}

#[tokio::test]
async fn queued_log_ins_do_not_block_other_calls() {
    let _alone = ALONE.lock().await;
    let system = start().await;
    let client = system.client.clone();
    let ann = register(&client, "ann").await;
    let token = login(&client, "ann", PASSWORD).await.unwrap();
    let occupied = Occupied::start(&system).await;
    // Some of the flood are queued, the others rejected at once.
    let flood = (0..FLOOD).map(|i| try_login(&client, format!("nobody{i}"), PATIENCE));
    let mut flood = flood.collect::<FuturesUnordered<_>>();
    for _ in 0..FLOOD - WAITING {
        assert_eq!(flood.next().await, Some(Some(Reason::Overloaded)));
    }
    let late = try_login(&client, "late".to_owned(), PATIENCE).await;
    assert_eq!(late, Some(Reason::Overloaded));
    assert_eq!(authenticate(&client, &token).await.unwrap(), ann.id);

    occupied.end().await;
    while let Some(answer) = flood.next().await {
        assert_eq!(answer, Some(Reason::BadCredentials));
    }
    assert!(login(&client, "ann", PASSWORD).await.is_ok());
}

#[tokio::test]
async fn a_canceled_queued_attempt_does_not_count_as_failed() {
    let _alone = ALONE.lock().await;
    let system = start().await;
    let ann = register(&system.client, "ann").await.id;
    let occupied = Occupied::start(&system).await;
    let mut timeout = Duration::from_millis(250);
    // The longer the timeout, the more surely the log-ins reach the queue before it ends.
    eventually("the queue is full of log-ins until they are canceled", PATIENCE, async || {
        timeout *= 2;
        let waits = (0..FLOOD).map(|_| try_login(&system.client, "ann".to_owned(), timeout));
        join_all(waits).await.contains(&Some(Reason::Overloaded))
    })
    .await;
    occupied.end().await;
    assert_eq!(system.failures(Guesses::Account(ann)).await, None);
    let guesses = "SELECT count(*) FROM guesses";
    assert_eq!(system.number(guesses).await, HASHING_THREADS as i64, "those that were admitted");
    assert!(login(&system.client, "ann", PASSWORD).await.is_ok());
}
