//! A repair fixes each violation that `Verify` reports, and does nothing the second time.

use std::collections::BTreeSet;

use microblog_proto::relation as pb;
use microblog_relation::Edge;
use microblog_testkit::{
    Topology::{Cluster, Single},
    redis::{Cmd, cmd},
};

use crate::support::{self, FOLLOWING, MUTUAL, NONE, System, id, user};

fn key(kind: &str, owner: u64) -> String {
    format!("rel:{{{}}}:{kind}:{}", user(owner).partition(), id(owner))
}

async fn run(system: &System, command: &str, key: String, arguments: &[u64]) {
    let mut admin = support::admin_of(&system.redis, &key).await;
    let mut command: Cmd = cmd(command);
    command.arg(key).arg(arguments).exec_async(&mut admin).await.unwrap();
}

/// Repairs everything, twice; returns the first repairs.
async fn repairs(system: &System) -> BTreeSet<String> {
    assert!(!support::violations(&system.client).await.is_empty());
    let (left, repaired) = support::repair(&system.client).await;
    assert_eq!(left, Vec::<String>::new(), "{repaired:#?}");
    assert!(!repaired.is_empty());
    assert_eq!(support::repair(&system.client).await, Default::default());
    repaired.into_iter().collect()
}

#[tokio::test]
async fn repair_restores_follows_from_the_source_edge() {
    for topology in [Single, Cluster] {
        let system = System::start_without_jobs(topology).await;
        for n in 2..9 {
            system.follow(id(1), id(n)).await.unwrap();
            system.follow(id(n), id(1)).await.unwrap();
        }
        // The inverse side is lost, in part or whole, or has another version; or half of the source
        // edge is lost.
        run(&system, "ZREM", key("followers", 2), &[id(1)]).await;
        run(&system, "SREM", key("follower_ids", 2), &[id(1)]).await;
        run(&system, "SREM", key("follower_ids", 3), &[id(1)]).await;
        run(&system, "ZADD", key("followers", 4), &[1 << 52, id(1)]).await;
        run(&system, "ZREM", key("following", 1), &[id(5)]).await;
        run(&system, "SREM", key("following_ids", 1), &[id(6)]).await;
        run(&system, "ZREM", key("mutual", 1), &[id(7)]).await;
        // The source edge is lost, which leaves an orphaned inverse edge. And one that never had a
        // source edge.
        run(&system, "ZREM", key("following", 8), &[id(1)]).await;
        run(&system, "SREM", key("following_ids", 8), &[id(1)]).await;
        run(&system, "ZADD", key("followers", 7), &[4096, id(6)]).await;
        run(&system, "SADD", key("follower_ids", 6), &[id(7)]).await;
        run(&system, "ZADD", key("mutual", 2), &[4096, id(3)]).await;
        let repairs = repairs(&system).await;
        assert!(repairs.iter().any(|line| line.contains("follows")), "{repairs:?}");

        for n in 2..8 {
            assert_eq!(system.relation(id(1), id(n)).await.state, MUTUAL, "{n}");
            assert_eq!(system.counts(id(n)).await, (1, 1, 1), "{n}");
        }
        assert_eq!(system.relation(id(1), id(8)).await.state, FOLLOWING);
        assert_eq!(system.counts(id(1)).await, (7, 6, 6));
        // The inverse side does not reject the next changes after a repair.
        for n in 2..9 {
            assert_ne!(system.unfollow(id(1), id(n)).await.unwrap(), MUTUAL);
        }
        assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn repair_restores_blocks_and_ends_follows_between_blocked_accounts() {
    let system = System::start_without_jobs(Single).await;
    for n in 2..6 {
        system.block(id(1), id(n)).await.unwrap();
    }
    run(&system, "ZREM", key("blocked_by", 2), &[id(1)]).await;
    run(&system, "ZREM", key("blocks", 1), &[id(3)]).await;
    run(&system, "ZADD", key("blocked_by", 4), &[1 << 52, id(1)]).await;
    for (from, to) in [(1, 5), (5, 1)] {
        run(&system, "ZADD", key("following", from), &[4096, id(to)]).await;
        run(&system, "SADD", key("following_ids", from), &[id(to)]).await;
    }
    run(&system, "ZADD", key("followers", 1), &[4096, id(5)]).await;
    repairs(&system).await;
    for (n, is_blocked) in [(2, true), (3, false), (4, true), (5, true)] {
        assert_eq!(system.relation(id(n), id(1)).await.blocked_by, is_blocked, "{n}");
        assert_eq!(system.relation(id(1), id(n)).await.blocking, is_blocked, "{n}");
        assert_eq!(system.relation(id(1), id(n)).await.state, NONE, "{n}");
    }
}

#[tokio::test]
async fn what_is_under_way_is_no_violation() {
    let system = System::start_without_jobs(Single).await;
    let partition = user(1).partition();
    let mut admin = system.redis.nodes()[0].admin().await;
    for (list, member) in [("pending", "an entry"), ("forgetting", "4096")] {
        let key = format!("rel:{{{partition}}}:{list}");
        cmd("ZADD").arg(key).arg(7).arg(member).exec_async(&mut admin).await.unwrap();
    }
    let request = pb::VerifyRequest::default();
    let mut reports = system.client.clone().verify(request).await.unwrap().into_inner();
    let (mut violations, mut pending) = (Vec::new(), Vec::new());
    while let Some(report) = reports.message().await.unwrap() {
        violations.extend(report.violations);
        pending.extend(report.pending);
    }
    assert_eq!(violations, Vec::<String>::new());
    let expected = ["1 outbox entries are pending", "1 account deletions are in progress"];
    assert_eq!(pending, expected.map(|text| format!("partition {partition}: {text}")));
}

#[tokio::test]
async fn repair_relays_the_outbox_and_removes_malformed_entries() {
    let system = System::start_without_jobs(Single).await;
    system.store.follow_one(Edge { from: user(1), to: user(2) }).await.unwrap();
    system.store.block(Edge { from: user(1), to: user(3) }).await.unwrap();
    system.follow(id(4), id(5)).await.unwrap();
    system.store.forget(user(4)).await.unwrap();
    let pending = format!("rel:{{{}}}:pending", user(1).partition());
    let mut admin = system.redis.nodes()[0].admin().await;
    cmd("ZADD").arg(pending).arg(7).arg("damaged").exec_async(&mut admin).await.unwrap();
    let repairs = repairs(&system).await;
    assert_eq!(repairs.len(), 4, "{repairs:?}");
    assert_eq!(system.counts(id(2)).await, (0, 1, 0));
    assert!(system.relation(id(3), id(1)).await.blocked_by);
    assert_eq!(system.counts(id(5)).await, (0, 0, 0));
}
