//! API tests over gRPC.

use std::collections::BTreeSet;

use microblog_proto::{
    common::ErrorReason,
    relation::{self as pb, EdgeList},
};
use microblog_testkit::{
    Topology::{Cluster, Single},
    next_millisecond,
};
use tonic::Code;

use crate::support::{
    self, FOLLOWER, FOLLOWING, MUTUAL, NONE, System, assert_invalid_field, assert_rejected, id,
    ids, list_for, list_of,
};

#[tokio::test]
async fn a_follow_shows_in_all_reads() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let (alice, bob) = (id(1), id(2));
        assert_eq!(system.relation(alice, bob).await.state, NONE);

        assert_eq!(system.follow(alice, bob).await.unwrap(), FOLLOWING);
        assert_eq!(system.relation(alice, bob).await.state, FOLLOWING);
        assert_eq!(system.relation(bob, alice).await.state, FOLLOWER);
        assert_eq!(system.counts(alice).await, (1, 0, 0));
        assert_eq!(system.counts(bob).await, (0, 1, 0));

        assert_eq!(system.follow(bob, alice).await.unwrap(), MUTUAL);
        assert_eq!(system.relation(alice, bob).await.state, MUTUAL);
        assert_eq!(system.counts(alice).await, (1, 1, 1));
        assert_eq!(system.counts(bob).await, (1, 1, 1));

        assert_eq!(system.unfollow(alice, bob).await.unwrap(), FOLLOWER);
        assert_eq!(system.relation(bob, alice).await.state, FOLLOWING);
        assert_eq!(system.counts(bob).await, (1, 0, 0));
        assert_eq!(system.unfollow(alice, bob).await.unwrap(), FOLLOWER);

        let request = pb::RemoveFollowerRequest { user_id: alice, follower_id: bob };
        let response = system.client.clone().remove_follower(request).await.unwrap();
        assert_eq!(response.into_inner().state, NONE);
        assert_eq!(system.counts(alice).await, (0, 0, 0));
        assert_eq!(system.counts(bob).await, (0, 0, 0));
        assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_repeated_follow_keeps_its_version() {
    let system = System::start(Single).await;
    let request = pb::FollowRequest { follower_id: id(1), target_id: id(2) };
    let first = system.client.clone().follow(request).await.unwrap().into_inner();
    let second = system.client.clone().follow(request).await.unwrap().into_inner();
    assert_eq!(first, second);
    assert_eq!(system.counts(id(1)).await, (1, 0, 0));
}

#[tokio::test]
async fn rejections_have_reasons_and_change_nothing() {
    let system = System::start_with(Single, &["--following-limit", "2"]).await;
    let rejection = system.follow(id(1), id(1)).await;
    assert_rejected(rejection.clone(), Code::InvalidArgument, ErrorReason::SelfRelation);
    assert_invalid_field(rejection, "target_id");
    assert_rejected(
        system.block(id(1), id(1)).await,
        Code::InvalidArgument,
        ErrorReason::SelfRelation,
    );

    system.follow(id(1), id(2)).await.unwrap();
    system.follow(id(1), id(3)).await.unwrap();
    let rejection = system.follow(id(1), id(4)).await;
    assert_rejected(rejection, Code::FailedPrecondition, ErrorReason::FollowingLimit);
    // Existing follows do not count against the limit.
    system.follow(id(1), id(3)).await.unwrap();

    system.block(id(5), id(6)).await.unwrap();
    let rejection = system.follow(id(6), id(5)).await;
    assert_rejected(rejection, Code::PermissionDenied, ErrorReason::BlockedByTarget);
    let rejection = system.follow(id(5), id(6)).await;
    assert_rejected(rejection, Code::FailedPrecondition, ErrorReason::TargetBlocked);

    for (user, counts) in [(1, (2, 0, 0)), (4, (0, 0, 0)), (5, (0, 0, 0)), (6, (0, 0, 0))] {
        assert_eq!(system.counts(id(user)).await, counts, "user {user}");
    }
}

#[tokio::test]
async fn a_block_ends_both_follows_and_unblocking_allows_new_ones() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let (alice, bob) = (id(1), id(2));
        system.follow(alice, bob).await.unwrap();
        system.follow(bob, alice).await.unwrap();

        system.block(alice, bob).await.unwrap();
        system.block(alice, bob).await.unwrap();
        let seen = system.relation(bob, alice).await;
        assert_eq!((seen.state, seen.blocking, seen.blocked_by), (NONE, false, true));
        let seen = system.relation(alice, bob).await;
        assert_eq!((seen.state, seen.blocking, seen.blocked_by), (NONE, true, false));
        for user in [alice, bob] {
            assert_eq!(system.counts(user).await, (0, 0, 0));
        }
        let blocks = system.list_all(list_for(alice, EdgeList::Blocks, alice, 0)).await;
        assert_eq!(ids(&blocks), [bob]);

        let request = pb::UnblockRequest { user_id: alice, target_id: bob };
        system.client.clone().unblock(request).await.unwrap();
        system.client.clone().unblock(request).await.unwrap();
        assert_eq!(system.relation(alice, bob).await.state, NONE);
        assert_eq!(system.follow(bob, alice).await.unwrap(), FOLLOWING);
        assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn blocks_have_a_limit() {
    let system = System::start_with(Single, &["--blocks-limit", "1"]).await;
    system.block(id(1), id(2)).await.unwrap();
    system.block(id(1), id(2)).await.unwrap();
    let rejection = system.block(id(1), id(3)).await;
    assert_rejected(rejection, Code::FailedPrecondition, ErrorReason::ListLimit);
}

#[tokio::test]
async fn a_page_that_ends_with_a_chunk_has_a_next_page() {
    let system = System::start(Single).await;
    // The scanned list is 1519..=1000, newest first: its first 500 entries end at 1020.
    let mut follows: Vec<_> = (1000..1520).map(|n| (id(1), id(n))).collect();
    follows.extend((1000..1040).map(|n| (id(2), id(n))));
    follows.extend((2000..2600).map(|n| (id(2), id(n))));
    system.import(&follows).await;
    let common = system.list_all(list_for(id(1), EdgeList::CommonFollowing, id(2), 20)).await;
    assert_eq!(ids(&common), (1000..1040).rev().map(id).collect::<Vec<_>>());
}

#[tokio::test]
async fn only_the_muter_sees_a_mute() {
    let system = System::start_with(Single, &["--blocks-limit", "1"]).await;
    let mute = |target_id| pb::MuteRequest { user_id: id(1), target_id };
    system.client.clone().mute(mute(id(2))).await.unwrap();
    system.client.clone().mute(mute(id(2))).await.unwrap();
    let rejection = system.client.clone().mute(mute(id(3))).await;
    assert_rejected(rejection, Code::FailedPrecondition, ErrorReason::ListLimit);
    assert!(system.relation(id(1), id(2)).await.muting);
    assert!(!system.relation(id(2), id(1)).await.muting);

    let request = list_for(id(1), EdgeList::Mutes, id(1), 0);
    let mutes = system.list_all(request.clone()).await;
    assert_eq!(mutes.len(), 1);
    assert!(mutes[0].since.is_some());
    let unmute = pb::UnmuteRequest { user_id: id(1), target_id: id(2) };
    system.client.clone().unmute(unmute).await.unwrap();
    assert!(system.list_all(request).await.is_empty());
}

async fn all_followers(system: &System, user_id: u64, page_size: i32) -> Vec<pb::Edge> {
    system.list_all(list_of(EdgeList::Followers, user_id, page_size)).await
}

#[tokio::test]
async fn pages_newest_first_have_no_gaps_while_the_list_grows() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        assert!(all_followers(&system, id(1), 10).await.is_empty());
        let follows: Vec<_> = (2..=95).map(|n| (id(n), id(1))).collect();
        system.import(&follows).await;

        let mut seen = Vec::new();
        let mut request = list_of(EdgeList::Followers, id(1), 7);
        loop {
            let page = system.list(&request).await.unwrap();
            seen.extend(page.edges);
            if page.next_page_token.is_empty() {
                break;
            }
            assert_eq!(seen.len() % 7, 0, "only the last page is short");
            request.page_token = page.next_page_token;
            // A new entry at the top, and one removed from the returned page.
            system.follow(id(1000 + seen.len() as u64), id(1)).await.unwrap();
            system.unfollow(seen.last().unwrap().user_id, id(1)).await.unwrap();
        }
        assert!(seen.is_sorted_by(|a, b| a.version > b.version), "newest first");
        let ids: BTreeSet<_> = seen.iter().map(|edge| edge.user_id).collect();
        assert_eq!(ids, (2..=95).map(id).collect());
        assert_eq!(seen.len(), 94);
    }
}

#[tokio::test]
async fn an_import_keeps_each_followers_order_and_can_be_repeated() {
    for topology in [Single, Cluster] {
        let system = System::start_with(topology, &["--following-limit", "600"]).await;
        system.block(id(7), id(1)).await.unwrap();
        let mut follows: Vec<_> = (2..=650).map(|n| (id(1), id(n))).collect();
        follows.push((id(1), id(1)));
        follows.push((id(1), id(2)));
        let first = system.import(&follows).await;
        assert_eq!((first.created, first.unchanged), (600, 1));
        assert_eq!((first.rejected_self, first.rejected_blocked), (1, 1));
        assert_eq!(first.rejected_limit, 648 - 600);
        let second = system.import(&follows).await;
        assert_eq!((second.created, second.unchanged), (0, 601));

        let page = system.list(&list_of(EdgeList::Following, id(1), 200)).await.unwrap();
        let expected: Vec<_> = (2..=602).rev().filter(|n| *n != 7).map(id).take(200).collect();
        assert_eq!(ids(&page.edges), expected);

        assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn intersections_are_paged_completely() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let (alice, bob) = (id(1), id(2));
        // Alice follows 100..1400, Bob every third of 1000..2500.
        let mut follows: Vec<_> = (100..1400).map(|n| (alice, id(n))).collect();
        follows.extend((1000..2500).step_by(3).map(|n| (bob, id(n))));
        // Of Bob's followers, Alice follows those below 1400.
        follows.extend((1300..1500).map(|n| (id(n), bob)));
        system.import(&follows).await;

        let common = list_for(alice, EdgeList::CommonFollowing, bob, 50);
        let common = ids(&system.list_all(common).await);
        let expected: Vec<_> = (1000..1400).filter(|n| (n - 1000) % 3 == 0).map(id).rev().collect();
        assert_eq!(common, expected);

        let request = pb::CountEdgesRequest {
            user_id: bob,
            list: EdgeList::CommonFollowing.into(),
            viewer_id: alice,
            newest: 2,
        };
        let counted = system.client.clone().count_edges(request).await.unwrap().into_inner();
        assert_eq!(counted.count, expected.len() as u64);
        assert_eq!(ids(&counted.newest), expected[..2]);

        let request = list_for(alice, EdgeList::FollowersIFollow, bob, 200);
        let page = system.list(&request).await.unwrap();
        assert_eq!(page.edges.len(), 100);
        let followers = all_followers(&system, bob, 200).await;
        for edge in page.edges {
            assert!(followers.contains(&edge), "since when they follow Bob, not Alice them");
        }
    }
}

#[tokio::test]
async fn a_page_for_a_viewer_has_the_relations_to_its_accounts_and_to_the_user() {
    let system = System::start(Single).await;
    let [alice, bob, carol, dave] = [1, 2, 3, 4].map(id);
    system.import(&[(bob, carol), (bob, dave), (bob, alice), (alice, bob), (alice, carol)]).await;
    let mute = pb::MuteRequest { user_id: alice, target_id: dave };
    system.client.clone().mute(mute).await.unwrap();
    let first = system.list(&list_for(alice, EdgeList::Following, bob, 1)).await.unwrap();
    // The token of a list that does not depend on the viewer is valid for every viewer.
    let next = pb::ListEdgesRequest {
        page_token: first.next_page_token,
        ..list_of(EdgeList::Following, bob, 0)
    };
    assert_eq!(system.list(&next).await.unwrap().relations, []);
    let all = system.list(&list_for(alice, EdgeList::Following, bob, 0)).await.unwrap();
    assert_eq!(all.edges.len(), 3);
    let request = pb::BatchGetRelationsRequest {
        viewer_id: alice,
        target_ids: vec![alice, bob, carol, dave],
        include: vec![EdgeList::Blocks.into(), EdgeList::Mutes.into()],
        ..Default::default()
    };
    let relations = system.client.clone().batch_get_relations(request).await.unwrap();
    let mut relations = relations.into_inner().relations;
    relations.sort_unstable_by_key(|relation| relation.user_id);
    assert_eq!(all.relations, relations);
    assert!(relations.iter().any(|relation| relation.muting));
}

#[tokio::test]
async fn pages_oldest_first_have_no_gaps_while_the_list_grows() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        system.import(&(2..=95).map(|n| (id(1), id(n))).collect::<Vec<_>>()).await;
        let mut request = pb::ListEdgesRequest {
            order: pb::FollowOrder::OldestFirst.into(),
            ..list_of(EdgeList::Following, id(1), 7)
        };
        let mut seen = Vec::new();
        let mut added = 0;
        loop {
            let page = system.list(&request).await.unwrap();
            seen.extend(page.edges);
            if page.next_page_token.is_empty() {
                break;
            }
            assert_eq!(seen.len() % 7, 0, "only the last page is short");
            request.page_token = page.next_page_token;
            // A new entry at the end, and one removed from the returned page.
            if added < 10 {
                added += 1;
                system.follow(id(1), id(1000 + added)).await.unwrap();
            }
            system.unfollow(id(1), seen.last().unwrap().user_id).await.unwrap();
        }
        assert!(seen.is_sorted_by(|a, b| a.version < b.version), "oldest first");
        let expected: Vec<_> = (2..=95).chain(1001..=1010).map(id).collect();
        assert_eq!(ids(&seen), expected);

        request.order = 7;
        assert_invalid_field(system.list(&request).await, "order");
    }
}

/// Imports follows in small batches: on a busy machine a large one may time out.
async fn import_in_parts(system: &System, follows: impl Iterator<Item = (u64, u64)>) {
    let follows: Vec<_> = follows.collect();
    for part in follows.chunks(250) {
        system.import(part).await;
    }
}

/// Reads all followers of an account that it does not follow back. Returns them with the number of
/// empty pages.
async fn all_not_followed_back(
    system: &System,
    user_id: u64,
    mut between: impl AsyncFnMut(),
) -> (Vec<u64>, usize) {
    let mut request = list_of(EdgeList::FollowersNotFollowedBack, user_id, 7);
    let (mut seen, mut empty) = (Vec::new(), 0);
    loop {
        let page = system.list(&request).await.unwrap();
        assert!(page.edges.len() <= 7);
        empty += usize::from(page.edges.is_empty());
        seen.extend(page.edges.iter().map(|edge| edge.user_id));
        if page.next_page_token.is_empty() {
            return (seen, empty);
        }
        request.page_token = page.next_page_token;
        between().await;
    }
}

#[tokio::test]
async fn followers_not_followed_back_are_paged_completely() {
    for topology in [Single, Cluster] {
        let system = System::start_with(topology, &["--following-limit", "20000"]).await;
        let alice = id(1);
        assert_eq!(all_not_followed_back(&system, alice, async || ()).await, (vec![], 1));
        // Of 5,540 followers, Alice follows the newest 5,500 back, and of the others every second.
        for fans in [2..42, 42..5_542] {
            import_in_parts(&system, fans.map(|n| (id(n), alice))).await;
        }
        let old = all_followers(&system, alice, 200).await.split_off(5_500);
        let (followed, expected): (Vec<_>, Vec<_>) =
            old.iter().map(|edge| edge.user_id).enumerate().partition(|(i, _)| i % 2 == 0);
        let new = (42..5_542).map(|n| (alice, id(n)));
        import_in_parts(&system, new.chain(followed.iter().map(|&(_, id)| (alice, id)))).await;

        // New followers arrive at the top of the list, some followed back.
        let mut next = 20_000;
        let (seen, empty) = all_not_followed_back(&system, alice, async || {
            next += 1;
            system.follow(id(next), alice).await.unwrap();
            if next % 2 == 0 {
                system.follow(alice, id(next)).await.unwrap();
            }
        })
        .await;
        let expected: Vec<_> = expected.into_iter().map(|(_, id)| id).collect();
        assert_eq!(seen.len(), expected.len());
        assert_eq!(seen, expected);
        assert_eq!(empty, 1, "a call examines 5,000 followers at most");
    }
}

#[tokio::test]
async fn count_followers_i_follow_returns_the_newest() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let (viewer, star) = (id(1), id(2));
        // The viewer follows them in the opposite order.
        import_in_parts(&system, (10..1210).rev().map(|n| (viewer, id(n)))).await;
        // Follows of one millisecond, from several partitions, have no set order.
        for n in 10..30 {
            next_millisecond().await;
            system.follow(id(n), star).await.unwrap();
        }
        let request = pb::CountEdgesRequest {
            user_id: star,
            list: EdgeList::FollowersIFollow.into(),
            viewer_id: viewer,
            newest: 6,
        };
        let ask = async || {
            let answer = system.client.clone().count_edges(request).await.unwrap();
            let answer = answer.into_inner();
            let newest: Vec<_> = answer.newest.iter().map(|edge| edge.user_id).collect();
            (answer.count, newest, answer.newest)
        };
        let (count, newest, edges) = ask().await;
        let expected: Vec<_> = (24..30).rev().map(id).collect();
        assert_eq!((count, &newest), (20, &expected));
        let followers = all_followers(&system, star, 200).await;
        assert_eq!(edges, followers[..6], "since when they follow the star");

        // The account has more followers than the viewer has followings, so the viewer's list is
        // scanned.
        import_in_parts(&system, (5_000..7_000).map(|n| (id(n), star))).await;
        assert_eq!(ask().await, (20, expected, edges));
        for n in 30..1030 {
            next_millisecond().await;
            system.import(&[(id(n), star)]).await;
        }
        let (count, newest, _) = ask().await;
        assert_eq!((count, newest), (1020, (1024..1030).rev().map(id).collect()));

        let request = pb::CountEdgesRequest { newest: 0, ..request };
        let answer = system.client.clone().count_edges(request).await.unwrap();
        assert_eq!(answer.into_inner(), pb::CountEdgesResponse { count: 1020, newest: vec![] });
        for newest in [-1, 201] {
            let request = pb::CountEdgesRequest { newest, ..request };
            assert_invalid_field(system.client.clone().count_edges(request).await, "newest");
        }
    }
}

#[tokio::test]
async fn a_followers_stream_resumes_from_its_token() {
    let system = System::start(Single).await;
    let follows: Vec<_> = (2..=1001).map(|n| (id(n), id(1))).collect();
    system.import(&follows).await;
    let mut request =
        pb::StreamFollowersRequest { user_id: id(1), batch_size: 300, ..Default::default() };
    let mut stream =
        system.client.clone().stream_followers(request.clone()).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    assert_eq!(first.user_ids.len(), 300);
    drop(stream);

    request.page_token = first.next_page_token;
    let mut stream = system.client.clone().stream_followers(request).await.unwrap().into_inner();
    let mut ids = first.user_ids;
    while let Some(batch) = stream.message().await.unwrap() {
        ids.extend(batch.user_ids);
    }
    let expected: Vec<_> = all_followers(&system, id(1), 200).await;
    assert_eq!(ids, expected.iter().map(|edge| edge.user_id).collect::<Vec<_>>());
}

#[tokio::test]
async fn invalid_fields_are_named() {
    let system = System::start(Single).await;
    for invalid in [0, 1 << 53, 1 << 63, u64::MAX] {
        assert_invalid_field(system.follow(invalid, id(1)).await, "follower_id");
        assert_invalid_field(system.follow(id(1), invalid).await, "target_id");
        assert_invalid_field(system.block(invalid, id(1)).await, "user_id");
        let request = list_of(EdgeList::Followers, invalid, 0);
        assert_invalid_field(system.list(&request).await, "user_id");
        let follows = vec![
            pb::Follow { follower_id: id(1), target_id: id(2) },
            pb::Follow { follower_id: id(1), target_id: invalid },
        ];
        let request = pb::ImportFollowsRequest { follows };
        assert_invalid_field(
            system.client.clone().import_follows(request).await,
            "follows[1].target_id",
        );
    }
    assert_eq!(system.counts(id(1)).await, (0, 0, 0), "nothing was written");

    let rejection = system.follow(0, 0).await.unwrap_err();
    for field in ["follower_id: ", "target_id: "] {
        assert!(rejection.message().contains(field), "both are named: {rejection:?}");
    }
    let rejection = system.list(&list_for(0, EdgeList::CommonFollowing, 0, -1)).await.unwrap_err();
    for field in ["user_id: ", "viewer_id: ", "page_size: "] {
        assert!(rejection.message().contains(field), "all are named: {rejection:?}");
    }
    let user_ids = vec![0, id(1), 1 << 53];
    let request = pb::BatchGetCountsRequest { user_ids: user_ids.clone() };
    let counts = system.client.clone().batch_get_counts(request).await.unwrap().into_inner().counts;
    assert_eq!(counts.iter().map(|counts| counts.user_id).collect::<Vec<_>>(), user_ids);
    let request = pb::BatchGetCountsRequest { user_ids: vec![id(1); 501] };
    assert_invalid_field(system.client.clone().batch_get_counts(request).await, "user_ids");
    let request = pb::BatchGetRelationsRequest {
        viewer_id: id(1),
        target_ids: vec![id(2); 501],
        ..Default::default()
    };
    assert_invalid_field(system.client.clone().batch_get_relations(request).await, "target_ids");
    let request = list_of(EdgeList::Followers, id(1), -1);
    assert_invalid_field(system.list(&request).await, "page_size");
}

#[tokio::test]
async fn lists_reject_fields_that_they_do_not_take() {
    let system = System::start(Single).await;
    let [alice, bob] = [1, 2].map(id);
    for list in [EdgeList::Unspecified as i32, 99] {
        let request = pb::ListEdgesRequest { list, ..list_for(alice, EdgeList::Blocks, alice, 0) };
        assert_invalid_field(system.list(&request).await, "list");
    }
    for list in [
        EdgeList::Following,
        EdgeList::Followers,
        EdgeList::FollowersNotFollowedBack,
        EdgeList::Mutuals,
    ] {
        assert!(system.list(&list_of(list, alice, 0)).await.is_ok());
        let request = list_for(1 << 53, list, alice, 0);
        assert_invalid_field(system.list(&request).await, "viewer_id");
    }
    for list in [EdgeList::CommonFollowing, EdgeList::FollowersIFollow] {
        assert!(system.list(&list_for(alice, list, bob, 0)).await.is_ok());
        assert_invalid_field(system.list(&list_of(list, alice, 0)).await, "viewer_id");
    }
    for (list, viewer_id) in [
        (EdgeList::Followers, 0),
        (EdgeList::FollowersNotFollowedBack, 0),
        (EdgeList::Mutuals, 0),
        (EdgeList::CommonFollowing, alice),
        (EdgeList::FollowersIFollow, alice),
        (EdgeList::Blocks, alice),
        (EdgeList::Mutes, alice),
    ] {
        let request = list_for(viewer_id, list, alice, 0);
        let order = pb::FollowOrder::NewestFirst.into();
        assert_invalid_field(
            system.list(&pb::ListEdgesRequest { order, ..request }).await,
            "order",
        );
    }
    let count = |list: EdgeList, viewer_id| pb::CountEdgesRequest {
        user_id: bob,
        list: list.into(),
        viewer_id,
        newest: 0,
    };
    for (request, field) in [
        (count(EdgeList::Followers, alice), "list"),
        (count(EdgeList::CommonFollowing, 0), "viewer_id"),
    ] {
        assert_invalid_field(system.client.clone().count_edges(request).await, field);
    }
    let ids = |list: EdgeList, newer_than_version| pb::ListEdgeIdsRequest {
        user_id: alice,
        list: list.into(),
        newer_than_version,
        ..Default::default()
    };
    for (request, field) in [
        (ids(EdgeList::Followers, 0), "list"),
        (ids(EdgeList::Blocks, 0), "list"),
        (ids(EdgeList::Mutuals, 1), "newer_than_version"),
        (ids(EdgeList::Following, 1 << 53), "newer_than_version"),
    ] {
        assert_invalid_field(system.client.clone().list_edge_ids(request).await, field);
    }
}

#[tokio::test]
async fn only_its_user_reads_a_private_list() {
    let system = System::start(Single).await;
    let [alice, bob] = [1, 2].map(id);
    for list in [EdgeList::Blocks, EdgeList::Mutes] {
        assert!(system.list(&list_for(alice, list, alice, 0)).await.is_ok());
        assert_invalid_field(system.list(&list_of(list, alice, 0)).await, "viewer_id");
        let rejection = system.list(&list_for(bob, list, alice, 0)).await;
        assert_rejected(rejection, Code::PermissionDenied, ErrorReason::IdentityMismatch);
    }
}

#[tokio::test]
async fn the_ids_of_a_list_are_all_its_accounts() {
    for topology in [Single, Cluster] {
        let system = System::start_with(topology, &["--following-limit", "20000"]).await;
        let [alice, bob] = [1, 2].map(id);
        // One account more than a response has.
        let mut follows: Vec<_> = (1_000..9_001).map(|n| (alice, id(n))).collect();
        follows.extend((1_000..1_300).map(|n| (bob, id(n))));
        follows.extend((1_100..1_200).map(|n| (id(n), bob)));
        system.import(&follows).await;
        let read = async |user_id, list: EdgeList, newer_than_version| {
            let mut request = pb::ListEdgeIdsRequest {
                user_id,
                list: list.into(),
                newer_than_version,
                ..Default::default()
            };
            let (mut all, mut calls, mut newest_versions) = (Vec::new(), 0, Vec::new());
            loop {
                let page = system.client.clone().list_edge_ids(request.clone()).await.unwrap();
                let page = page.into_inner();
                (calls, request.page_token) = (calls + 1, page.next_page_token);
                newest_versions.push(page.newest_version);
                all.extend(page.user_ids);
                if request.page_token.is_empty() {
                    return (all, calls, newest_versions);
                }
            }
        };
        let newest = system.list(&list_of(EdgeList::Following, alice, 11)).await.unwrap();
        let newest_version = newest.edges[0].version;
        let expected: Vec<_> = (1_000..9_001).rev().map(id).collect();
        let (all, calls, versions) = read(alice, EdgeList::Following, 0).await;
        assert!(all == expected, "{} of {}", all.len(), expected.len());
        assert_eq!((calls, versions), (2, vec![newest_version, 0]));
        let since = newest.edges[10].version;
        let newer = read(alice, EdgeList::Following, since).await;
        assert_eq!(newer, (expected[..10].to_vec(), 1, vec![newest_version]));
        let newer = read(alice, EdgeList::Following, newest.edges[0].version).await;
        assert_eq!(newer, (vec![], 1, vec![0]));
        let mutuals = ids(&system.list_all(list_of(EdgeList::Mutuals, bob, 200)).await);
        assert_eq!(mutuals.len(), 100);
        assert_eq!(read(bob, EdgeList::Mutuals, 0).await, (mutuals, 1, vec![0]));

        let request = |user_id, page_token: &str| pb::ListEdgeIdsRequest {
            user_id,
            list: EdgeList::Following.into(),
            page_token: page_token.to_owned(),
            ..Default::default()
        };
        let first = system.client.clone().list_edge_ids(request(alice, "")).await.unwrap();
        let of_bob = request(bob, &first.into_inner().next_page_token);
        let rejection = system.client.clone().list_edge_ids(of_bob).await;
        assert_rejected(rejection, Code::InvalidArgument, ErrorReason::PageTokenMismatch);
    }
}

#[tokio::test]
async fn foreign_and_malformed_page_tokens_are_rejected() {
    let system = System::start(Single).await;
    system.import(&[(id(2), id(1)), (id(3), id(1)), (id(2), id(4)), (id(3), id(4))]).await;
    let request = list_of(EdgeList::Followers, id(1), 1);
    let first = system.list(&request).await.unwrap().next_page_token;
    let following = list_of(EdgeList::Following, id(2), 1);
    let second = system.list(&following).await.unwrap().next_page_token;
    let order = pb::FollowOrder::OldestFirst.into();
    let list = EdgeList::FollowersNotFollowedBack.into();
    for (request, page_token) in [
        (pb::ListEdgesRequest { user_id: id(4), ..request.clone() }, &first),
        (pb::ListEdgesRequest { list, ..request.clone() }, &first),
        (list_of(EdgeList::Mutuals, id(1), 1), &first),
        (list_for(id(4), EdgeList::FollowersIFollow, id(1), 1), &first),
        (pb::ListEdgesRequest { order, ..following.clone() }, &second),
    ] {
        let request = pb::ListEdgesRequest { page_token: page_token.clone(), ..request };
        let rejection = system.list(&request).await;
        assert_rejected(rejection, Code::InvalidArgument, ErrorReason::PageTokenMismatch);
    }
    let order = pb::FollowOrder::NewestFirst.into();
    let same = pb::ListEdgesRequest { page_token: second, order, page_size: 9, ..following };
    assert_eq!(system.list(&same).await.unwrap().edges.len(), 1);

    let page_token = format!("B{}", &first[1..]);
    let rejection = system.list(&pb::ListEdgesRequest { page_token, ..request }).await;
    assert_rejected(rejection.clone(), Code::InvalidArgument, ErrorReason::PageTokenInvalid);
    assert_invalid_field(rejection, "page_token");
}
