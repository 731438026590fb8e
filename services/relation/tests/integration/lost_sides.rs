//! Redis loses one side of edges, as a failover of one of a cluster's primaries may: both sides agree
//! again, also about what was not recorded yet.

use microblog_chassis::status::reason_of;
use microblog_domain::Partition;
use microblog_proto::{common::ErrorReason::BlockedByTarget, relation::EdgeList};
use microblog_testkit::{Topology, eventually, redis};

use crate::support::{
    self, PATIENCE, System,
    database::{Database, Record as _},
    id, user,
};

/// The keys of a partition with their values.
type Copy = Vec<(String, Vec<u8>)>;

async fn copy(system: &System, partition: Partition) -> Copy {
    let mut admin = system.redis.nodes()[0].admin().await;
    let mut keys = redis::cmd("KEYS");
    let keys: Vec<String> =
        keys.arg(format!("rel:{{{partition}}}:*")).query_async(&mut admin).await.unwrap();
    let mut copy = Vec::new();
    for key in keys {
        let value = redis::cmd("DUMP").arg(&key).query_async(&mut admin).await.unwrap();
        copy.push((key, value));
    }
    copy
}

async fn put_back(system: &System, partition: Partition, copy: &Copy) {
    let mut admin = system.redis.nodes()[0].admin().await;
    let pattern = format!("rel:{{{partition}}}:*");
    let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut admin).await.unwrap();
    let mut replace = redis::pipe();
    replace.atomic().del(keys).ignore();
    for (key, value) in copy {
        replace.cmd("RESTORE").arg(key).arg(0).arg(value).ignore();
    }
    let () = replace.query_async(&mut admin).await.unwrap();
}

async fn both_sides_have(system: &System, followed: &[u64]) {
    let following = support::list_of(EdgeList::Following, id(1), 100);
    let followed: Vec<u64> = followed.iter().map(|&n| id(n)).collect();
    eventually("both sides agree", PATIENCE, async || {
        let Ok(page) = system.list(&following).await else { return false };
        let mut is_as_expected = support::ids(&page.edges) == followed;
        for n in [2, 3, 4] {
            let followers = support::list_of(EdgeList::Followers, id(n), 100);
            let Ok(page) = system.list(&followers).await else { return false };
            is_as_expected &=
                support::ids(&page.edges).contains(&id(1)) == followed.contains(&id(n));
        }
        is_as_expected
    })
    .await;
}

/// Loses the changes of one partition, which the database has not recorded. It has those of others.
async fn loses(partition: Partition) {
    let database = Database::postgres().await;
    let system = System::start_with(Topology::Single, &[&database.flag()]).await;
    for n in [2, 3] {
        system.follow(id(1), id(n)).await.unwrap();
    }
    eventually("all partitions are recorded", PATIENCE, async || {
        let count = "SELECT COUNT(*) FROM journal_positions";
        database.number(count).await == Some(i64::from(Partition::COUNT))
    })
    .await;
    let older = copy(&system, partition).await;
    let Database::Postgres(server) = &database else { unreachable!() };
    server.pause();
    system.follow(id(1), id(4)).await.unwrap();
    system.unfollow(id(1), id(2)).await.unwrap();
    system.block(id(1), id(5)).await.unwrap();
    system.converges().await;
    put_back(&system, partition, &older).await;
    server.resume();
    both_sides_have(&system, &[4, 3]).await;
    let blocks = support::list_for(id(1), EdgeList::Blocks, id(1), 100);
    eventually("the block holds", PATIENCE, async || {
        let is_listed = system.list(&blocks).await.is_ok_and(|page| page.edges.len() == 1);
        let rejected = system.follow(id(5), id(1)).await;
        is_listed && rejected.is_err_and(|status| reason_of(&status) == Some(BlockedByTarget))
    })
    .await;
    system.converges().await;
}

#[tokio::test]
async fn the_side_of_the_follower_is_restored() {
    loses(user(1).partition()).await;
}

#[tokio::test]
async fn the_side_of_who_was_followed_is_restored() {
    loses(user(4).partition()).await;
}

#[tokio::test]
async fn the_side_of_who_was_blocked_is_restored() {
    loses(user(5).partition()).await;
}

#[tokio::test]
async fn the_side_of_who_was_unfollowed_is_restored() {
    loses(user(2).partition()).await;
}
