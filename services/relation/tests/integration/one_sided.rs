//! Edges with one side lost: each call on them reconciles both sides.

use microblog_proto::relation as pb;
use microblog_relation::List;
use microblog_testkit::{
    Topology::{Cluster, Single},
    redis::cmd,
};

use crate::support::{self, FOLLOWING, NONE, System, id, user};

fn key(kind: &str, owner: u64) -> String {
    format!("rel:{{{}}}:{kind}:{}", user(owner).partition(), id(owner))
}

/// Removes an account from a user's list and id set.
async fn lose(system: &System, [list, set]: [&str; 2], owner: u64, peer: u64) {
    for (command, key) in [("ZREM", key(list, owner)), ("SREM", key(set, owner))] {
        let mut admin = support::admin_of(&system.redis, &key).await;
        cmd(command).arg(key).arg(id(peer)).exec_async(&mut admin).await.unwrap();
    }
}

const TRUTH: [&str; 2] = ["following", "following_ids"];
const PROJECTION: [&str; 2] = ["followers", "follower_ids"];

/// Two accounts; the first follows the second.
async fn one_follow(topology: microblog_testkit::Topology) -> System {
    let system = System::start_without_jobs(topology).await;
    system.follow(id(1), id(2)).await.unwrap();
    system
}

async fn assert_no_follow(system: &System, call: &str) {
    assert_eq!(system.counts(id(1)).await, (0, 0, 0), "after {call}");
    assert_eq!(system.counts(id(2)).await, (0, 0, 0), "after {call}");
    assert_eq!(support::violations(&system.client).await, Vec::<String>::new(), "after {call}");
}

async fn remove_follower(system: &System) -> i32 {
    let request = pb::RemoveFollowerRequest { user_id: id(2), follower_id: id(1) };
    system.client.clone().remove_follower(request).await.unwrap().into_inner().state
}

#[tokio::test]
async fn a_follow_without_its_source_edge_ends_on_both_sides() {
    for topology in [Single, Cluster] {
        let system = one_follow(topology).await;
        lose(&system, TRUTH, 1, 2).await;
        assert_eq!(remove_follower(&system).await, NONE);
        assert_no_follow(&system, "RemoveFollower").await;

        system.follow(id(1), id(2)).await.unwrap();
        lose(&system, TRUTH, 1, 2).await;
        assert_eq!(system.unfollow(id(1), id(2)).await.unwrap(), NONE);
        assert_no_follow(&system, "Unfollow").await;

        for blocker in [1, 2] {
            system.follow(id(1), id(2)).await.unwrap();
            lose(&system, TRUTH, 1, 2).await;
            system.block(id(blocker), id(3 - blocker)).await.unwrap();
            assert_no_follow(&system, "Block").await;
            let unblock = pb::UnblockRequest { user_id: id(blocker), target_id: id(3 - blocker) };
            system.client.clone().unblock(unblock).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_follow_without_its_inverse_edge_is_projected_again() {
    for topology in [Single, Cluster] {
        let system = one_follow(topology).await;
        let before = system.store.counts(&[user(2)]).await.unwrap();
        lose(&system, PROJECTION, 2, 1).await;
        assert_eq!(system.follow(id(1), id(2)).await.unwrap(), FOLLOWING);
        assert_eq!(system.store.counts(&[user(2)]).await.unwrap(), before);
        assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_tombstone_does_not_reject_a_reconciliation() {
    let system = one_follow(Single).await;
    // The inverse edge is an hour ahead of the follower's clock, which went back.
    let page = system.store.page(List::Followers, user(2), None, None, 1).await.unwrap();
    let ahead = page.entries[0].score + (3_600_000 << 12);
    lose(&system, PROJECTION, 2, 1).await;
    let mut admin = system.redis.nodes()[0].admin().await;
    cmd("ZADD").arg(key("lost", 2)).arg(ahead).arg(id(1)).exec_async(&mut admin).await.unwrap();
    let clock = format!("rel:{{{}}}:clock", user(1).partition());
    let before: u64 = cmd("GET").arg(&clock).query_async(&mut admin).await.unwrap();
    system.follow(id(1), id(2)).await.unwrap();
    assert_eq!(system.counts(id(2)).await, (0, 1, 0));
    assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
    // It does not reject the next change, whose version comes from the same clock.
    system.unfollow(id(1), id(2)).await.unwrap();
    assert_no_follow(&system, "Unfollow").await;
    let after: u64 = cmd("GET").arg(&clock).query_async(&mut admin).await.unwrap();
    assert!(after < before + 60_000 * 4, "the clock follows the time, not the repair");
}

#[tokio::test]
async fn any_call_reconciles_a_one_sided_block() {
    let system = System::start_without_jobs(Single).await;
    let mut admin = system.redis.nodes()[0].admin().await;
    for (kind, owner, peer) in [("blocks", 1, 2), ("blocked_by", 2, 1)] {
        let lose = cmd("ZREM").arg(key(kind, owner)).arg(id(peer)).take();
        for repeats in [true, false] {
            system.block(id(1), id(2)).await.unwrap();
            lose.exec_async(&mut admin).await.unwrap();
            if repeats {
                system.block(id(1), id(2)).await.unwrap();
                assert!(system.relation(id(2), id(1)).await.blocked_by, "{kind} lost");
                assert!(system.relation(id(1), id(2)).await.blocking, "{kind} lost");
            } else {
                let unblock = pb::UnblockRequest { user_id: id(1), target_id: id(2) };
                system.client.clone().unblock(unblock).await.unwrap();
                assert!(!system.relation(id(2), id(1)).await.blocked_by, "{kind} lost");
                assert!(!system.relation(id(1), id(2)).await.blocking, "{kind} lost");
            }
            assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
        }
    }
}

#[tokio::test]
async fn repeated_calls_write_nothing_if_both_sides_agree() {
    let system = one_follow(Single).await;
    let [one, two] = [1, 2];
    system.block(id(3), id(4)).await.unwrap();
    let mut admin = system.redis.nodes()[0].admin().await;
    let state = async |admin: &mut _| -> Vec<Option<String>> {
        let mut state = Vec::new();
        for owner in [one, two, 3, 4] {
            // The end of a follow that is not there issues a version for the record.
            if owner != two {
                let clock = format!("rel:{{{}}}:clock", user(owner).partition());
                state.push(cmd("GET").arg(clock).query_async(admin).await.unwrap());
            }
            for (kind, peer) in [("following", id(two)), ("followers", id(one))] {
                let mut read = cmd("ZSCORE");
                read.arg(key(kind, owner)).arg(peer);
                state.push(read.query_async(admin).await.unwrap());
            }
        }
        state
    };
    let before = state(&mut admin).await;
    for _ in 0..2 {
        system.follow(id(1), id(2)).await.unwrap();
        system.unfollow(id(2), id(1)).await.unwrap();
        system.unfollow(id(5), id(6)).await.unwrap();
        system.block(id(3), id(4)).await.unwrap();
        let unblock = pb::UnblockRequest { user_id: id(5), target_id: id(6) };
        system.client.clone().unblock(unblock).await.unwrap();
    }
    assert_eq!(state(&mut admin).await, before);
    assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
}
