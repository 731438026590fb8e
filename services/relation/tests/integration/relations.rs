//! Batches of relations of a viewer.

use futures::future::join_all;
use microblog_proto::relation::{self as pb, EdgeList};
use microblog_testkit::Topology::{Cluster, Single};

use crate::support::{
    FOLLOWER, FOLLOWING, MUTUAL, NONE, OWN, System, assert_invalid_field, id, list_of,
};

#[tokio::test]
async fn a_batch_keeps_its_order_and_has_only_requested_parts() {
    let system = System::start(Single).await;
    system.import(&[(id(1), id(2)), (id(3), id(1)), (id(1), id(4)), (id(4), id(1))]).await;
    system.block(id(1), id(5)).await.unwrap();
    let mut request = pb::BatchGetRelationsRequest {
        viewer_id: id(1),
        target_ids: [5, 4, 3, 2, 1, 4].map(id).to_vec(),
        ..Default::default()
    };
    let response = system.client.clone().batch_get_relations(request.clone()).await.unwrap();
    let response = response.into_inner();
    let states: Vec<_> = response.relations.iter().map(|relation| relation.state).collect();
    assert_eq!(states, [NONE, MUTUAL, FOLLOWER, FOLLOWING, OWN, MUTUAL]);
    assert!(!response.relations[0].blocking);
    let own = system.relation(id(1), id(1)).await;
    assert_eq!((own.state, own.blocking, own.blocked_by, own.muting), (OWN, false, false, false));
    assert_eq!(response.newest_following_version, 0);

    request.include = vec![EdgeList::Blocks.into()];
    request.include_newest_following_version = true;
    let response = system.client.clone().batch_get_relations(request.clone()).await.unwrap();
    let response = response.into_inner();
    assert!(response.relations[0].blocking);
    let newest = response.newest_following_version;
    assert!(newest > 0);
    system.follow(id(1), id(6)).await.unwrap();
    for list in [EdgeList::Unspecified, EdgeList::Following, EdgeList::FollowersNotFollowedBack] {
        let include = vec![EdgeList::Mutes.into(), list.into()];
        let invalid = pb::BatchGetRelationsRequest { include, ..request.clone() };
        let rejection = system.client.clone().batch_get_relations(invalid).await;
        assert_invalid_field(rejection, "include");
    }
    // A target that cannot exist has the relation of one that does not, in its place.
    request.target_ids = vec![0, id(5), 1 << 53, id(4), u64::MAX, id(5)];
    let response = system.client.clone().batch_get_relations(request.clone()).await.unwrap();
    let relations = response.into_inner().relations;
    let targets: Vec<_> = relations.iter().map(|relation| relation.user_id).collect();
    assert_eq!(targets, request.target_ids);
    let states: Vec<_> = relations.iter().map(|relation| relation.state).collect();
    assert_eq!(states, [NONE, NONE, NONE, MUTUAL, NONE, NONE]);
    let blocking: Vec<_> = relations.iter().map(|relation| relation.blocking).collect();
    assert_eq!(blocking, [false, true, false, false, false, true]);
    request.target_ids.clear();
    let response = system.client.clone().batch_get_relations(request).await.unwrap().into_inner();
    assert!(response.newest_following_version > newest);
    assert!(response.relations.is_empty());
}

#[tokio::test]
async fn follows_have_times_if_requested() {
    for (topology, followings) in [(Single, 3), (Cluster, 40), (Single, 600)] {
        let system = System::start(topology).await;
        system.import(&[(id(3), id(1)), (id(4), id(1))]).await;
        let followings: Vec<_> = (4..4 + followings).map(|n| (id(1), id(n))).collect();
        system.import(&followings).await;
        let all = async |list, user| {
            let mut request = list_of(list, user, 200);
            let mut edges = Vec::new();
            loop {
                let page = system.list(&request).await.unwrap();
                edges.extend(page.edges);
                if page.next_page_token.is_empty() {
                    return edges;
                }
                request.page_token = page.next_page_token;
            }
        };
        let followings = all(EdgeList::Following, id(1)).await;
        // Few targets are looked up, and for many the list is read if it is short.
        for targets in [[3, 4, 1, 2, 4].map(id).to_vec(), (1..60).chain([4]).map(id).collect()] {
            let mut request = pb::BatchGetRelationsRequest {
                viewer_id: id(1),
                target_ids: targets.clone(),
                ..Default::default()
            };
            let relations = async |request: &pb::BatchGetRelationsRequest| {
                let response = system.client.clone().batch_get_relations(request.clone()).await;
                response.unwrap().into_inner()
            };
            assert_eq!(relations(&request).await.following_since, []);
            request.include_following_since = true;
            let following = |target: &u64| {
                let edge = followings.iter().find(|edge| edge.user_id == *target)?;
                Some(pb::FollowingSince { user_id: *target, since: edge.since })
            };
            let expected: Vec<_> = targets.iter().filter_map(following).collect();
            assert!(expected.len() > 1 && expected.iter().all(|one| one.since.is_some()));
            assert_eq!(relations(&request).await.following_since, expected);
        }
    }
}

/// Makes a viewer block, mute and be blocked by `count` distinct accounts each.
async fn block_and_mute(system: &System, viewer: u64, count: u64) {
    let one = async |n| {
        let [blocked, muted, blocker] = accounts_of(n);
        system.block(viewer, blocked).await.unwrap();
        system.block(blocker, viewer).await.unwrap();
        let mute = pb::MuteRequest { user_id: viewer, target_id: muted };
        system.client.clone().mute(mute).await.unwrap();
    };
    for some in (0..count).collect::<Vec<_>>().chunks(50) {
        join_all(some.iter().map(|&n| one(n))).await;
    }
}

/// Returns the nth account that a viewer blocks, mutes, and is blocked by.
fn accounts_of(n: u64) -> [u64; 3] {
    [id(10_000 + n), id(20_000 + n), id(30_000 + n)]
}

// Few targets are looked up one by one; for many, a short list is read whole.
#[tokio::test]
async fn blocks_and_mutes_are_found_in_lists_of_any_length() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        for (place, listed) in [0, 1, 500, 501].into_iter().enumerate() {
            let viewer = id(1 + place as u64);
            block_and_mute(&system, viewer, listed).await;
            for asked in [1, 7, 8, 60] {
                // At the end of the lists and beyond, which the start of a list would lack.
                let last = listed + 2;
                let (mut target_ids, mut expected) = (Vec::new(), Vec::new());
                for n in 0..asked {
                    let n = last.saturating_sub(n);
                    let target_id = accounts_of(n)[target_ids.len() % 3];
                    let is = |which| n < listed && accounts_of(n)[which] == target_id;
                    target_ids.push(target_id);
                    expected.push((is(0), is(1), is(2)));
                }
                for include in [
                    &[EdgeList::Blocks, EdgeList::Mutes][..],
                    &[EdgeList::Blocks],
                    &[EdgeList::Mutes],
                    &[],
                ] {
                    let include_blocks = include.contains(&EdgeList::Blocks);
                    let include_mutes = include.contains(&EdgeList::Mutes);
                    let request = pb::BatchGetRelationsRequest {
                        viewer_id: viewer,
                        target_ids: target_ids.clone(),
                        include: include.iter().map(|&list| list.into()).collect(),
                        include_newest_following_version: true,
                        ..Default::default()
                    };
                    let answer = system.client.clone().batch_get_relations(request).await;
                    let actual = answer.unwrap().into_inner().relations.into_iter();
                    let actual = actual.map(|one| (one.blocking, one.muting, one.blocked_by));
                    let expected = expected.iter().map(|&(blocking, muting, blocked_by)| {
                        let (blocking, blocked_by) =
                            (include_blocks && blocking, include_blocks && blocked_by);
                        (blocking, include_mutes && muting, blocked_by)
                    });
                    assert!(actual.eq(expected), "{listed} listed, {asked} requested");
                }
            }
        }
    }
}
