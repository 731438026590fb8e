//! The state after a crash between two steps, and its completion by the sweeper or a repeated call.

use std::time::Duration;

use microblog_keyspace::OUTBOX_PAGE_MAX;
use microblog_proto::{
    common::ErrorReason,
    relation::{self as pb, EdgeList},
};
use microblog_relation::{Edge, Sweeper, Targets};
use microblog_testkit::{Store as Redis, Topology, redis};

use crate::support::{self, System, id, list_of, user};

const ONE: Edge = Edge { from: user(1), to: user(2) };

async fn sweep(system: &System) {
    Sweeper::new(system.store.clone()).sweep(Duration::ZERO).await.unwrap();
}

async fn assert_valid(system: &System) {
    assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
}

#[tokio::test]
async fn the_sweeper_completes_a_block_after_its_source_step() {
    let system = System::start_without_jobs(Topology::Single).await;
    system.follow(id(2), id(1)).await.unwrap();
    system.store.block(ONE).await.unwrap();
    sweep(&system).await;
    assert!(system.relation(id(2), id(1)).await.blocked_by);
    assert_eq!(system.counts(id(1)).await, (0, 0, 0));
    assert_valid(&system).await;
}

#[tokio::test]
async fn the_sweeper_completes_an_unblock_after_its_source_step() {
    let system = System::start_without_jobs(Topology::Single).await;
    system.block(id(1), id(2)).await.unwrap();
    system.store.unblock(ONE, false).await.unwrap();
    sweep(&system).await;
    assert!(!system.relation(id(2), id(1)).await.blocked_by);
    system.follow(id(2), id(1)).await.unwrap();
    assert_valid(&system).await;
}

#[tokio::test]
async fn a_repeated_call_completes_a_crashed_one() {
    let system = System::start_without_jobs(Topology::Single).await;
    system.store.follow_one(ONE).await.unwrap();
    system.follow(id(1), id(2)).await.unwrap();
    assert_eq!(system.counts(id(2)).await, (0, 1, 0));
    system.store.unfollow(&[Targets::one(ONE)], false).await.unwrap();
    system.unfollow(id(1), id(2)).await.unwrap();
    assert_eq!(system.counts(id(2)).await, (0, 0, 0));
    assert_valid(&system).await;
}

#[tokio::test]
async fn the_sweeper_completes_more_than_a_page_per_partition() {
    // Exactly one page, and more than two.
    for left in [OUTBOX_PAGE_MAX as u64, 2 * OUTBOX_PAGE_MAX as u64 + 50] {
        let system = System::start(Topology::Single).await;
        for targets in (2..2 + left).map(user).collect::<Vec<_>>().chunks(100) {
            let group = Targets { user: user(1), targets: targets.to_vec() };
            system.store.follow(&[group]).await.unwrap();
        }
        system.converges().await;
        assert_eq!(system.counts(id(1 + left)).await, (0, 1, 0));
    }
}

#[tokio::test]
async fn malformed_outbox_entries_do_not_block_the_sweeper() {
    let system = System::start_without_jobs(Topology::Single).await;
    let Redis::Single(server) = &system.redis else { panic!("it is a single server") };
    let mut admin = server.admin().await;
    // A full page of malformed entries, older than any change.
    let mut damage = redis::cmd("ZADD");
    damage.arg(format!("rel:{{{}}}:pending", ONE.from.partition()));
    for n in 0..OUTBOX_PAGE_MAX {
        damage.arg(0).arg(format!("damaged:{n}"));
    }
    let () = damage.query_async(&mut admin).await.unwrap();

    system.store.follow_one(ONE).await.unwrap();
    let mut sweeper = Sweeper::new(system.store.clone());
    for _ in 0..2 {
        sweeper.sweep(Duration::ZERO).await.unwrap();
    }
    assert_eq!(system.counts(id(2)).await, (0, 1, 0));
}

#[tokio::test]
async fn an_import_rejects_a_pending_follow_of_a_forgotten_account() {
    let system = System::start_without_jobs(Topology::Single).await;
    system.store.follow_one(ONE).await.unwrap();
    system.store.forget(ONE.to).await.unwrap();
    let imported = system.import(&[(id(1), id(2))]).await;
    assert_eq!((imported.created, imported.unchanged, imported.rejected_forgotten), (0, 0, 1));
}

#[tokio::test]
async fn a_repeated_follow_removes_its_tombstone() {
    let system = System::start_without_jobs(Topology::Single).await;
    for _ in 0..2 {
        system.follow(id(1), id(2)).await.unwrap();
        system.unfollow(id(1), id(2)).await.unwrap();
    }
    system.follow(id(1), id(2)).await.unwrap();
    let Redis::Single(server) = &system.redis else { panic!("it is a single server") };
    let key = format!("rel:{{{}}}:lost:{}", ONE.to.partition(), ONE.to);
    let mut admin = server.admin().await;
    let left: u64 = redis::cmd("ZCARD").arg(key).query_async(&mut admin).await.unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn versions_grow_after_the_clock_went_back() {
    let system = System::start_without_jobs(Topology::Single).await;
    system.follow(id(1), id(2)).await.unwrap();
    let Redis::Single(server) = &system.redis else { panic!("it is a single server") };
    let mut admin = server.admin().await;
    // As if the last stamp had been issued by a clock a minute ahead.
    let key = format!("rel:{{{}}}:clock", ONE.from.partition());
    let last: u64 = redis::cmd("GET").arg(&key).query_async(&mut admin).await.unwrap();
    let ahead = last + 60_000 * 4;
    let () = redis::cmd("SET").arg(&key).arg(ahead).query_async(&mut admin).await.unwrap();

    system.unfollow(id(1), id(2)).await.unwrap();
    system.store.follow_one(ONE).await.unwrap();
    sweep(&system).await;
    assert_eq!(system.counts(id(2)).await, (0, 1, 0));
    let last: u64 = redis::cmd("GET").arg(&key).query_async(&mut admin).await.unwrap();
    assert_eq!(last, ahead + 2);
    assert_valid(&system).await;
}

#[tokio::test]
async fn a_follow_is_settled_after_its_projection() {
    let system = System::start_without_jobs(Topology::Single).await;
    let list = async |newer_than_version| {
        let list = system.list(&list_of(EdgeList::Following, id(1), 1)).await.unwrap();
        let newest = list.edges.first().map_or(0, |edge| edge.version);
        let ids = pb::ListEdgeIdsRequest {
            user_id: id(1),
            list: EdgeList::Following.into(),
            newer_than_version,
            ..Default::default()
        };
        let ids = system.client.clone().list_edge_ids(ids).await.unwrap().into_inner();
        (if newest > newer_than_version { newest } else { 0 }, ids.settled_version)
    };
    assert_eq!(list(0).await, (0, 0));
    system.follow(id(1), id(3)).await.unwrap();
    let (first, settled) = list(0).await;
    assert_eq!(settled, first);
    let source = system.store.follow_one(ONE).await.unwrap();
    let (second, settled) = list(0).await;
    assert_eq!(second, source.version);
    assert!(first <= settled && settled < second);
    assert_eq!(list(first).await, (second, settled));
    sweep(&system).await;
    assert_eq!(list(0).await, (second, second));
}

#[tokio::test]
async fn sagas_complete_at_maxmemory() {
    let system = System::start_without_jobs(Topology::Single).await;
    system.store.follow_one(ONE).await.unwrap();
    let mut admin = system.redis.nodes()[0].admin().await;
    let mut limit = redis::cmd("CONFIG");
    limit.arg("SET").arg("maxmemory").arg(1).exec_async(&mut admin).await.unwrap();
    let rejection = system.follow(id(3), id(2)).await;
    support::assert_rejected(rejection, tonic::Code::ResourceExhausted, ErrorReason::StoreFull);
    sweep(&system).await;
    assert_eq!(system.counts(id(2)).await, (0, 1, 0));
    assert_eq!(system.counts(id(3)).await, (0, 0, 0));
    assert_valid(&system).await;
}
