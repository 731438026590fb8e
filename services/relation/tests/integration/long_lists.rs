//! Accounts with more entries than the cache has of a list: the database answers for the older ones.

use microblog_proto::relation::{self as pb, EdgeList};
use microblog_testkit::{
    PATIENCE,
    Topology::{Cluster, Single},
    eventually,
    redis::cmd,
};

use crate::support::{FOLLOWER, FOLLOWING, MUTUAL, NONE, System, id, ids, list_for, list_of};

/// The most entries of a list in the cache, before it is cut.
const CACHED_MAX: u64 = 10_000;

/// Returns the bytes of the largest key.
async fn largest_key(system: &System) -> u64 {
    let mut largest = 0;
    for node in system.redis.nodes() {
        let mut admin = node.admin().await;
        let keys: Vec<String> = cmd("KEYS").arg("rel:*").query_async(&mut admin).await.unwrap();
        for key in keys {
            let usage = cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0).take();
            let bytes: Option<u64> = usage.query_async(&mut admin).await.unwrap();
            largest = largest.max(bytes.unwrap_or_default());
        }
    }
    largest
}

#[tokio::test]
async fn a_star_has_all_followers_in_order() {
    for topology in [Single, Cluster] {
        let system = System::start_with(topology, &["--following-limit", "20000"]).await;
        let star = id(1);
        let fans = 10..10 + CACHED_MAX + 3_000;
        let follows: Vec<_> = fans.clone().map(|n| (id(n), star)).collect();
        // The list is in the cache when it becomes too long. A large import would remove it.
        let (first, rest) = follows.split_at(CACHED_MAX as usize - 100);
        system.import(first).await;
        assert_eq!(system.counts(star).await.1, first.len() as u64);
        for some in rest.chunks(100) {
            system.import(some).await;
        }
        let expected: Vec<_> = fans.clone().rev().map(id).collect();
        for state in ["put in place", "loaded"] {
            assert_eq!(system.counts(star).await, (0, expected.len() as u64, 0), "{state}");
            let all = ids(&system.list_all(list_of(EdgeList::Followers, star, 200)).await);
            assert!(all == expected, "{state}: {} of {}", all.len(), expected.len());
            let targets = [10, 11, fans.end - 1, fans.end].map(id);
            let request = pb::BatchGetRelationsRequest {
                viewer_id: star,
                target_ids: targets.to_vec(),
                ..Default::default()
            };
            let response = system.client.clone().batch_get_relations(request).await.unwrap();
            let states: Vec<_> =
                response.into_inner().relations.iter().map(|relation| relation.state).collect();
            assert_eq!(states, [FOLLOWER, FOLLOWER, FOLLOWER, NONE], "{state}");
            // A read beside the verifier may go past the cache.
            let mut largest = 0;
            eventually("the list is in the cache", PATIENCE, async || {
                system.list(&list_of(EdgeList::Followers, star, 200)).await.unwrap();
                largest = largest_key(&system).await;
                largest >= 100_000
            })
            .await;
            assert!(largest < 1 << 20, "{state}: {largest} bytes");
            system.flush().await;
            system.caches().await;
        }

        // Removal of an old follower, and of a new one.
        for fan in [11, fans.end - 1] {
            system.unfollow(id(fan), star).await.unwrap();
            assert_eq!(system.relation(star, id(fan)).await.state, NONE);
        }
        system.follow(star, id(12)).await.unwrap();
        assert_eq!(system.relation(star, id(12)).await.state, MUTUAL);
        let request = pb::BatchGetRelationsRequest {
            viewer_id: star,
            target_ids: vec![id(12)],
            include_following_since: true,
            ..Default::default()
        };
        let response = system.client.clone().batch_get_relations(request).await.unwrap();
        let following = system.list_all(list_of(EdgeList::Following, star, 0)).await;
        let since = response.into_inner().following_since[0].since;
        assert_eq!(
            since, following[0].since,
            "since the star follows it, not since it follows the star"
        );
        assert_eq!(system.counts(star).await, (1, expected.len() as u64 - 2, 1));
        system.converges().await;
    }
}

#[tokio::test]
async fn an_account_that_follows_more_than_the_cache_has_sees_all() {
    let system = System::start_with(Single, &["--following-limit", "20000"]).await;
    let (alice, bob) = (id(1), id(2));
    let followed = 10..10 + CACHED_MAX + 2_500;
    let mut follows: Vec<_> = followed.clone().map(|n| (alice, id(n))).collect();
    follows.extend([10, 11, followed.end - 1].map(|n| (bob, id(n))));
    follows.push((id(11), alice));
    system.import(&follows).await;
    system.flush().await;
    system.caches().await;

    let newest = list_of(EdgeList::Following, alice, 200);
    let oldest =
        pb::ListEdgesRequest { order: pb::FollowOrder::OldestFirst.into(), ..newest.clone() };
    let expected: Vec<_> = followed.clone().map(id).collect();
    assert!(ids(&system.list_all(oldest).await) == expected);
    let all = system.list_all(newest).await;
    assert!(ids(&all).iter().rev().eq(&expected));
    let common = list_for(alice, EdgeList::CommonFollowing, bob, 2);
    assert_eq!(ids(&system.list_all(common).await), [followed.end - 1, 11, 10].map(id));

    let request = pb::BatchGetRelationsRequest {
        viewer_id: alice,
        target_ids: [10, 11, followed.end].map(id).to_vec(),
        include_following_since: true,
        ..Default::default()
    };
    let response = system.client.clone().batch_get_relations(request).await.unwrap().into_inner();
    let states: Vec<_> = response.relations.iter().map(|relation| relation.state).collect();
    assert_eq!(states, [FOLLOWING, MUTUAL, NONE]);
    let since = |n| all.iter().find(|edge| edge.user_id == id(n)).unwrap().since;
    let times: Vec<_> = response.following_since.iter().map(|one| one.since).collect();
    assert_eq!(times, [since(10), since(11)]);
}
