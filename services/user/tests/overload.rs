//! Overload: more passwords to hash than the process can.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use futures::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use microblog_chassis::status::reason_of;
use microblog_proto::{common::ErrorReason as Reason, user as pb};
use microblog_testkit::{Topology, eventually, redis};
use microblog_user::{Hasher, Permit};
use support::{Client, PASSWORD, PATIENCE, System, authenticate, login, register};
use tokio::sync::Mutex;
use tonic::Request;

// More than the streams of the connection that a test's calls share.
const FLOOD: usize = 150;
const HASHING_THREADS: usize = 2;
const WAITING: usize = 16 * HASHING_THREADS;

// The tests share the process's hasher.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Takes all permits of the process's hasher.
async fn occupy() -> Vec<Permit> {
    let hasher = Hasher::of_process(HASHING_THREADS);
    vec![hasher.permit().await.unwrap(), hasher.permit().await.unwrap()]
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
    let system = System::start(Topology::Single).await;
    let client = system.client.clone();
    let ann = register(&client, "ann").await;
    let token = login(&client, "ann", PASSWORD).await.unwrap();
    let occupied = occupy().await;
    // Some of the flood are queued, the others rejected at once.
    let flood = (0..FLOOD).map(|i| try_login(&client, format!("nobody{i}"), PATIENCE));
    let mut flood = flood.collect::<FuturesUnordered<_>>();
    for _ in 0..FLOOD - WAITING {
        assert_eq!(flood.next().await, Some(Some(Reason::Overloaded)));
    }
    let late = try_login(&client, "late".to_owned(), PATIENCE).await;
    assert_eq!(late, Some(Reason::Overloaded));
    assert_eq!(authenticate(&client, &token).await.unwrap(), ann.id);

    drop(occupied);
    while let Some(answer) = flood.next().await {
        assert_eq!(answer, Some(Reason::BadCredentials));
    }
    assert!(login(&client, "ann", PASSWORD).await.is_ok());
}

#[tokio::test]
async fn a_canceled_queued_attempt_does_not_count_as_failed() {
    let _alone = ALONE.lock().await;
    let system = System::start(Topology::Single).await;
    let _occupied = occupy().await;
    let mut timeout = Duration::from_millis(250);
    // The longer the timeout, the more surely the log-ins reach the queue before it ends.
    eventually("the queue is full of log-ins until they are canceled", PATIENCE, async || {
        timeout *= 2;
        let waits = (0..FLOOD).map(|_| try_login(&system.client, "ann".to_owned(), timeout));
        join_all(waits).await.contains(&Some(Reason::Overloaded))
    })
    .await;
    let counted = support::attempts("ann@example.org");
    let counted = redis::cmd("EXISTS").arg(counted).to_owned();
    let mut admin = system.redis.nodes()[0].admin().await;
    assert_eq!(counted.query_async::<u64>(&mut admin).await.unwrap(), 0);
}
