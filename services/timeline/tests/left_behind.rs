//! Steps of fan-out jobs that nobody does any more are claimed by another worker within two seconds;
//! those that somebody still does are not.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod support;

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
use support::{PATIENCE, System, entry, id, post_id, queue::stored, relations::Relation};
use tokio::time::sleep;

/// Within which a step that was left behind is done.
const PROMISED: Duration = Duration::from_secs(2);

/// On a busy machine one round may take longer than promised, but not each of so many.
const ROUNDS: usize = 5;

/// For how long a step is held up: many times as long as one may be idle.
const HELD_UP: Duration = Duration::from_millis(2_500);

fn stream_of(author: u64) -> String {
    format!("tl:{{{}}}:fanout", UserId::new(author).unwrap().partition().number() % 16)
}

/// Adds the job to push a post, and reads it in the same moment as a worker does that then dies.
async fn leave_behind(admin: &mut MultiplexedConnection, author: u64, post: u64) {
    let (stream, job) = (stream_of(author), Job::of_post(Kind::Push, &entry(post, author), false));
    let mut transaction = pipe();
    transaction.atomic();
    transaction.cmd("XADD").arg(&stream).arg("*").arg("job").arg(job.encode_to_vec()).ignore();
    transaction.cmd("XREADGROUP").arg("GROUP").arg("fanout").arg("worker").arg("COUNT").arg(1);
    transaction.arg("STREAMS").arg(&stream).arg(">").ignore();
    let () = transaction.query_async(admin).await.unwrap();
}

/// Returns how often each step of a stream that is not done was given to a worker.
async fn times_given(admin: &mut MultiplexedConnection, stream: &str) -> Vec<u64> {
    let mut pending = cmd("XPENDING");
    pending.arg(stream).arg("fanout").arg("-").arg("+").arg(10);
    let pending: Vec<(String, String, u64, u64)> = pending.query_async(admin).await.unwrap();
    pending.into_iter().map(|(.., times)| times).collect()
}

#[tokio::test]
async fn a_step_of_a_dead_worker_is_done_within_two_seconds() {
    let system = System::start(Single).await;
    let (alice, bob) = (id(1), id(2));
    system.follow(bob, alice).await;
    let mut all = vec![system.post(alice).await];
    system.home_becomes(bob, &all).await;
    let mut admin = system.redis.nodes()[0].admin().await;
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let (post, begun) = (post_id(alice), Instant::now());
        leave_behind(&mut admin, alice, post).await;
        let left = system.client.clone().verify(pb::VerifyRequest {}).await.unwrap().into_inner();
        assert_eq!(left.jobs_in_flight, 1, "{left:?}");
        all.insert(0, post);
        system.home_becomes(bob, &all).await;
        took.push(begun.elapsed());
        support::queue::settles(&system).await;
        let done = system.client.clone().verify(pb::VerifyRequest {}).await.unwrap().into_inner();
        assert_eq!((done.jobs_in_flight, done.oldest_job_age_ms), (0, 0));
        if took.last().unwrap() <= &PROMISED {
            return;
        }
    }
    panic!("left for {took:?}");
}

#[tokio::test]
async fn more_steps_than_a_worker_does_at_once_are_all_done() {
    let system = System::start(Single).await;
    let (alice, bob) = (id(1), id(2));
    system.follow(bob, alice).await;
    let mut all = vec![system.post(alice).await];
    system.home_becomes(bob, &all).await;
    let mut admin = system.redis.nodes()[0].admin().await;
    for _ in 0..150 {
        let post = post_id(alice);
        leave_behind(&mut admin, alice, post).await;
        all.insert(0, post);
    }
    system.home_becomes(bob, &all).await;
    support::queue::settles(&system).await;
}

/// Holds up a step that a worker does, and whatever `meanwhile` waits for; another replica looks on.
async fn hold_up(meanwhile: impl AsyncFnOnce(&RedisServer)) {
    let of_relation = RedisServer::start().await;
    let relation = Relation::start(of_relation.url("relation")).await;
    let redis = Arc::new(testkit::Store::start(Single).await);
    let system = System::on(Worker::ONLY, redis, relation.url(), &[]).await;
    let _other = system.another(&[]).await;
    let (alice, bob) = (id(1), id(2));
    system.follow(bob, alice).await;
    let first = system.post(alice).await;
    system.home_becomes(bob, &[first]).await;
    support::queue::settles(&system).await;
    let stored_before = stored(&system.store, bob).await.len();

    let server = &system.redis.nodes()[0];
    let (mut admin, stream) = (server.admin().await, stream_of(alice));
    // The worker waits for the followers.
    of_relation.pause();
    let second = system.post(alice).await;
    testkit::eventually("a worker has the step", PATIENCE, async || {
        !times_given(&mut admin, &stream).await.is_empty()
    })
    .await;
    meanwhile(server).await;
    let given = times_given(&mut admin, &stream).await;
    of_relation.resume();
    assert_eq!(given, [1], "nobody else claimed it");
    system.home_becomes(bob, &[second, first]).await;
    support::queue::settles(&system).await;
    assert_eq!(stored(&system.store, bob).await.len(), stored_before + 1);
}

#[tokio::test]
async fn a_step_that_takes_long_stays_with_its_worker() {
    hold_up(async |_| sleep(HELD_UP).await).await;
}

#[tokio::test]
async fn a_step_stays_with_its_worker_though_redis_stood_still() {
    hold_up(async |server| {
        sleep(HELD_UP / 5).await;
        server.pause();
        sleep(HELD_UP * 3 / 5).await;
        server.resume();
        sleep(HELD_UP / 5).await;
    })
    .await;
}
