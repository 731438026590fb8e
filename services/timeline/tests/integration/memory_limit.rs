//! Redis at `maxmemory`: home timelines stay readable, and fan-out jobs wait for memory.

use std::time::Duration;

use microblog_proto::{common::ErrorReason, timeline as pb};
use microblog_testkit::{self as testkit, Topology, redis};
use tonic::Code;

use crate::support::{self, System, assert_rejected, delivery, id, post_id, queue};

async fn limit_memory(system: &System, bytes: u64) {
    for node in system.redis.nodes() {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxmemory").arg(bytes);
        set.exec_async(&mut node.admin().await).await.unwrap();
    }
}

#[tokio::test]
async fn home_timelines_are_readable_at_maxmemory() {
    let (author, other, reader, new) = (id(1), id(2), id(3), id(4));
    let system = System::start(Topology::Single).await;
    for follower in [reader, new] {
        system.follow(follower, author).await;
    }
    let first = system.post(author).await;
    let second = system.post(other).await;
    system.home_becomes(reader, &[first]).await;
    queue::drained(&system).await;
    // Its home timeline does not reflect this follow yet.
    system.follow(reader, other).await;
    limit_memory(&system, 1).await;

    assert_eq!(system.home(reader).await, [second, first]);
    assert_eq!(system.home(new).await, [first]);
    let (page, next, _) = system.home_page(reader, 1, "", "").await.unwrap();
    assert_eq!(support::posts(&page), [second]);
    let (page, ..) = system.home_page(reader, 1, &next, "").await.unwrap();
    assert_eq!(support::posts(&page), [first]);
    // Nothing was stored for the post.
    limit_memory(&system, 0).await;
    assert_eq!(queue::stored(&system.store, new).await, [0; 0]);
    assert_eq!(system.home(new).await, [first]);
}

#[tokio::test]
async fn deliver_fails_without_effect_at_maxmemory() {
    let (author, reader) = (id(1), id(3));
    let system = System::start(Topology::Single).await;
    system.follow(reader, author).await;
    assert_eq!(system.home(reader).await, [0; 0]);
    limit_memory(&system, 1).await;
    let post = delivery(post_id(author), author, 0);
    let request = pb::DeliverRequest { deliveries: vec![post] };
    let answer = system.client.clone().deliver(request).await;
    assert_rejected(answer, Code::ResourceExhausted, ErrorReason::StoreFull);
    limit_memory(&system, 0).await;
    let post = system.deliver(post).await;
    system.home_becomes(reader, &[post]).await;
}

#[tokio::test]
async fn a_fanout_job_waits_at_maxmemory() {
    let (author, reader) = (id(1), id(3));
    let system = System::start_without_jobs(Topology::Single).await;
    system.follow(reader, author).await;
    assert_eq!(system.home(reader).await, [0; 0]);
    let post = system.post(author).await;
    limit_memory(&system, 1).await;
    let node = &system.redis.nodes()[0];
    node.reset_commandstats().await;
    // Starts workers, which create the consumer groups and try the job.
    let another = system.another(&[]).await;
    testkit::eventually("the job is tried", support::PATIENCE, async || {
        node.commandstats().await.get("xreadgroup").copied().unwrap_or(0) > 0
    })
    .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(queue::depth(&system.redis).await, 1);
    assert_eq!(queue::stored(&system.store, reader).await, [0; 0]);
    // Sixteen streams, one read each in half a second at most.
    let reads = node.commandstats().await["xreadgroup"];
    assert!(reads < 500, "workers spin: {reads} reads within seconds");

    limit_memory(&system, 0).await;
    testkit::eventually("the post arrives", support::PATIENCE, async || {
        queue::stored(&system.store, reader).await == [post]
    })
    .await;
    queue::drained(&another).await;
}
