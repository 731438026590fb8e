//! Redis may vanish at any moment: nothing is lost, nothing is wrong, and no call fails.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use futures::future::{join, join_all};
use microblog_proto::relation::{self as pb, EdgeList};
use microblog_testkit::{Database, PATIENCE, Store, Topology, eventually};

use crate::support::{FOLLOWING, MUTUAL, NONE, System, id, ids, list_of};

#[tokio::test]
async fn nothing_is_lost_and_no_call_fails_while_redis_is_emptied() {
    const RUN: Duration = Duration::from_secs(6);
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let until = Instant::now() + RUN;
        let emptied = async {
            let mut times = 0;
            while Instant::now() < until {
                system.flush().await;
                times += 1;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            times
        };
        // Each with accounts of its own, whose state it knows.
        let lanes = (0..16_u64).map(|lane| {
            let system = &system;
            async move {
                let [own, other, star] = [id(10 + lane), id(100 + lane), id(1)];
                let mut rounds = 0;
                while Instant::now() < until {
                    assert_eq!(system.follow(own, other).await.unwrap(), FOLLOWING);
                    system.follow(own, star).await.unwrap();
                    assert_eq!(system.follow(other, own).await.unwrap(), MUTUAL);
                    assert_eq!(system.counts(own).await, (2, 1, 1));
                    assert_eq!(system.relation(other, own).await.state, MUTUAL);
                    let list = list_of(EdgeList::Following, own, 0);
                    assert_eq!(ids(&system.list(&list).await.unwrap().edges), [star, other]);
                    system.block(other, own).await.unwrap();
                    let relation = system.relation(own, other).await;
                    assert_eq!((relation.state, relation.blocked_by), (NONE, true));
                    let request = pb::UnblockRequest { user_id: other, target_id: own };
                    system.client.clone().unblock(request).await.unwrap();
                    assert!(!system.relation(own, other).await.blocked_by);
                    system.unfollow(own, star).await.unwrap();
                    assert_eq!(system.counts(own).await, (0, 0, 0));
                    rounds += 1;
                }
                system.follow(own, star).await.unwrap();
                rounds
            }
        });
        let (times, rounds) = join(emptied, join_all(lanes)).await;
        assert!(times > 5 && rounds.iter().all(|&rounds| rounds > 0), "{times} {rounds:?}");
        let followers = system.list_all(list_of(EdgeList::Followers, id(1), 0)).await;
        let followers: BTreeSet<_> = ids(&followers).into_iter().collect();
        assert_eq!(followers, (10..26).map(id).collect());
        system.converges().await;
    }
}

#[tokio::test]
async fn the_database_answers_without_redis() {
    for database in Database::both().await {
        let system = System::start_on(Store::start(Topology::Single).await, database, &[]).await;
        system.import(&(10..60).map(|n| (id(n), id(1))).collect::<Vec<_>>()).await;
        system.redis.nodes()[0].kill();
        assert_eq!(system.follow(id(1), id(10)).await.unwrap(), MUTUAL);
        assert_eq!(system.counts(id(1)).await, (1, 50, 1));
        let followers = system.list_all(list_of(EdgeList::Followers, id(1), 20)).await;
        assert_eq!(ids(&followers), (10..60).rev().map(id).collect::<Vec<_>>());
        assert_eq!(system.relation(id(10), id(1)).await.state, MUTUAL);
        system.block(id(10), id(1)).await.unwrap();
        assert_eq!(system.counts(id(1)).await, (0, 49, 0));
        assert!(system.relation(id(1), id(10)).await.blocked_by);
    }
}

#[tokio::test]
async fn a_redis_that_comes_back_from_an_old_disk_answers_nothing_old() {
    let redis = Store::start(Topology::Single).await;
    let system = System::start_on(redis, Database::postgres().await, &[]).await;
    system.follow(id(1), id(2)).await.unwrap();
    assert_eq!(system.counts(id(2)).await, (0, 1, 0));
    let server = &system.redis.nodes()[0];
    let mut admin = server.admin().await;
    microblog_testkit::redis::cmd("SAVE").exec_async(&mut admin).await.unwrap();
    // What follows is on no disk.
    system.unfollow(id(1), id(2)).await.unwrap();
    system.follow(id(3), id(2)).await.unwrap();
    assert_eq!(system.counts(id(2)).await, (0, 1, 0));
    server.kill();
    server.restart().await;
    for _ in 0..50 {
        assert_eq!(system.relation(id(1), id(2)).await.state, NONE);
        assert_eq!(system.relation(id(3), id(2)).await.state, FOLLOWING);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    system.caches().await;
    assert_eq!(system.relation(id(1), id(2)).await.state, NONE);
    system.converges().await;
}

#[tokio::test]
async fn an_entry_that_differs_from_the_database_is_a_violation() {
    let system = System::start(Topology::Single).await;
    // Of a list without a set, and of one with a set.
    for (user, followers) in [(id(1), 3), (id(2), 60)] {
        system.import(&(10..10 + followers).map(|n| (id(n), user)).collect::<Vec<_>>()).await;
        // The verifier, which applies the imports, may end a load.
        let mut entry = None;
        eventually("the list is cached", PATIENCE, async || {
            system.list(&list_of(EdgeList::Followers, user, 0)).await.unwrap();
            let keys = system.keys(&format!("rel:*:followers:*:{user}")).await;
            entry = keys.into_iter().find(|key| !key.contains(":set:") && !key.contains(":lease:"));
            entry.is_some()
        })
        .await;
        system.converges().await;
        let key = &entry.unwrap();
        let mut admin = system.redis.nodes()[0].admin().await;
        // One that has ended.
        let mut append = microblog_testkit::redis::cmd("APPEND");
        append
            .arg(key)
            .arg(&[0_u8; microblog_storage::entry::RECORD][..])
            .exec_async(&mut admin)
            .await
            .unwrap();
        let violations = crate::support::violations(&system.client).await;
        assert!(
            violations.len() == 1 && violations[0].contains("the cache differs"),
            "{violations:?}"
        );
        microblog_testkit::redis::cmd("DEL").arg(key).exec_async(&mut admin).await.unwrap();
        system.converges().await;
    }
}

#[tokio::test]
async fn a_redis_without_memory_is_no_error() {
    let redis = Store::start(Topology::Single).await;
    let system = System::start_on(redis, Database::sqlite(), &[]).await;
    let mut admin = system.redis.nodes()[0].admin().await;
    let mut limit = microblog_testkit::redis::cmd("CONFIG");
    limit.arg("SET").arg("maxmemory").arg("1").exec_async(&mut admin).await.unwrap();
    for n in 2..40 {
        assert_eq!(system.follow(id(1), id(n)).await.unwrap(), FOLLOWING);
        assert_eq!(system.counts(id(1)).await, (n - 1, 0, 0));
        assert_eq!(system.counts(id(n)).await, (0, 1, 0));
    }
    let mut limit = microblog_testkit::redis::cmd("CONFIG");
    limit.arg("SET").arg("maxmemory").arg("0").exec_async(&mut admin).await.unwrap();
    eventually("the cache fills again", PATIENCE, async || {
        assert_eq!(system.counts(id(1)).await, (38, 0, 0));
        !system.keys(&format!("rel:*:following:*:{}", id(1))).await.is_empty()
    })
    .await;
}
