//! Another worker claims abandoned steps within two seconds. It does not claim steps of a live
//! worker.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use microblog_chassis::Worker;
use microblog_domain::UserId;
use microblog_proto::timeline as pb;
use microblog_testkit::{
    self as testkit, RedisServer,
    Topology::Single,
    redis::{aio::MultiplexedConnection, cmd, pipe},
};
use microblog_timeline::{Job, Kind};
use prost::Message as _;
use tokio::time::sleep;

use crate::support::{
    self, PATIENCE, System, entry, id, post_id,
    queue::stored,
    relations::{Link, Relation},
};

/// The time in which an abandoned step is done.
const RECOVERY_MAX: Duration = Duration::from_secs(2);

/// On a busy machine a round may take longer, but not all of them in this time.
const ROUNDS_WITHIN: Duration = PATIENCE.saturating_mul(3);

/// How long a step is delayed: many times the idle time of an abandoned step.
const DELAY: Duration = Duration::from_millis(2_500);

fn stream_of(author: u64) -> String {
    format!("tl:{{{}}}:fanout", UserId::new(author).unwrap().partition().number() % 16)
}

/// Enqueues a push job and reads it at once, like a worker that then dies.
async fn abandon_step(admin: &mut MultiplexedConnection, author: u64, post: u64) {
    let (stream, job) = (stream_of(author), Job::of_post(Kind::Push, &entry(post, author)));
    let mut transaction = pipe();
    transaction.atomic();
    transaction.cmd("XADD").arg(&stream).arg("*").arg("job").arg(job.encode_to_vec()).ignore();
    transaction.cmd("XREADGROUP").arg("GROUP").arg("fanout").arg("worker").arg("COUNT").arg(1);
    transaction.arg("STREAMS").arg(&stream).arg(">").ignore();
    let () = transaction.query_async(admin).await.unwrap();
}

/// Enqueues jobs that this version does not support, and reads them like a worker that then dies.
async fn abandon_unsupported(admin: &mut MultiplexedConnection, author: u64, count: usize) {
    let stream = stream_of(author);
    let mut transaction = pipe();
    transaction.atomic();
    for _ in 0..count {
        transaction.cmd("XADD").arg(&stream).arg("*").arg("job").arg("?").ignore();
    }
    transaction.cmd("XREADGROUP").arg("GROUP").arg("fanout").arg("worker").arg("COUNT").arg(count);
    transaction.arg("STREAMS").arg(&stream).arg(">").ignore();
    let () = transaction.query_async(admin).await.unwrap();
}

/// Returns the delivery count of each pending entry of a stream.
async fn delivery_counts(admin: &mut MultiplexedConnection, stream: &str) -> Vec<u64> {
    let mut pending = cmd("XPENDING");
    pending.arg(stream).arg("fanout").arg("-").arg("+").arg(10);
    let pending: Vec<(String, String, u64, u64)> = pending.query_async(admin).await.unwrap();
    pending.into_iter().map(|(.., times)| times).collect()
}

/// A system in which bob follows alice and has her first post at home.
struct Fixture {
    system: System,
    admin: MultiplexedConnection,
    alice: u64,
    bob: u64,
    first: u64,
}

impl Fixture {
    async fn start() -> Self {
        let system = System::start(Single).await;
        let (alice, bob) = (id(1), id(2));
        system.follow(bob, alice).await;
        let first = system.post(alice).await;
        system.home_becomes(bob, &[first]).await;
        let admin = system.redis.nodes()[0].admin().await;
        Self { system, admin, alice, bob, first }
    }
}

#[tokio::test]
async fn a_dead_workers_step_is_done_within_two_seconds() {
    let Fixture { system, mut admin, alice, bob, first } = Fixture::start().await;
    let mut all = vec![first];
    let mut took = Vec::new();
    let give_up = Instant::now() + ROUNDS_WITHIN;
    while Instant::now() < give_up {
        let (post, begun) = (post_id(alice), Instant::now());
        abandon_step(&mut admin, alice, post).await;
        let left = system.client.clone().verify(pb::VerifyRequest {}).await.unwrap().into_inner();
        assert_eq!(left.jobs_in_flight, 1, "{left:?}");
        all.insert(0, post);
        system.home_becomes(bob, &all).await;
        took.push(begun.elapsed());
        support::queue::drained(&system).await;
        let done = system.client.clone().verify(pb::VerifyRequest {}).await.unwrap().into_inner();
        assert_eq!((done.jobs_in_flight, done.oldest_job_age_ms), (0, 0));
        if took.last().unwrap() <= &RECOVERY_MAX {
            return;
        }
    }
    panic!("not done after {took:?}");
}

#[tokio::test]
async fn more_abandoned_steps_than_one_claim_are_done() {
    let Fixture { system, mut admin, alice, bob, first } = Fixture::start().await;
    let mut all = vec![first];
    for _ in 0..150 {
        let post = post_id(alice);
        abandon_step(&mut admin, alice, post).await;
        all.insert(0, post);
    }
    system.home_becomes(bob, &all).await;
    support::queue::drained(&system).await;
}

#[tokio::test]
async fn unsupported_jobs_do_not_hide_the_steps_behind_them() {
    let Fixture { system, mut admin, alice, bob, first } = Fixture::start().await;
    abandon_unsupported(&mut admin, alice, 1_000).await;
    let second = post_id(alice);
    abandon_step(&mut admin, alice, second).await;
    system.home_becomes(bob, &[second, first]).await;
}

/// Delays a step of a live worker, and what `meanwhile` does, while another replica runs.
async fn delay_step(meanwhile: impl AsyncFnOnce(&RedisServer)) {
    let of_relation = RedisServer::start().await;
    let relation = Relation::start(of_relation.url("relation")).await;
    let proxy = relation.proxy().await;
    let redis = Arc::new(testkit::Store::start(Single).await);
    let system = System::on(Worker::ONLY, redis, proxy.url(), &[]).await;
    let _other = system.another(&[]).await;
    let (alice, bob) = (id(1), id(2));
    system.follow(bob, alice).await;
    let first = system.post(alice).await;
    system.home_becomes(bob, &[first]).await;
    support::queue::drained(&system).await;
    let stored_before = stored(&system.store, bob).await.len();

    let server = &system.redis.nodes()[0];
    let (mut admin, stream) = (server.admin().await, stream_of(alice));
    // The worker waits for the list of followers.
    proxy.set(Link::Frozen);
    let second = system.post(alice).await;
    testkit::eventually("a worker has the step", PATIENCE, async || {
        !delivery_counts(&mut admin, &stream).await.is_empty()
    })
    .await;
    meanwhile(server).await;
    let given = delivery_counts(&mut admin, &stream).await;
    proxy.set(Link::Open);
    assert_eq!(given, [1], "no other worker claimed it");
    system.home_becomes(bob, &[second, first]).await;
    support::queue::drained(&system).await;
    assert_eq!(stored(&system.store, bob).await.len(), stored_before + 1);
}

#[tokio::test]
async fn a_slow_step_is_not_claimed() {
    delay_step(async |_| sleep(DELAY).await).await;
}

#[tokio::test]
async fn a_step_is_not_claimed_after_a_redis_stall() {
    delay_step(async |server| {
        sleep(DELAY / 5).await;
        server.pause();
        sleep(DELAY * 3 / 5).await;
        server.resume();
        sleep(DELAY / 5).await;
    })
    .await;
}
