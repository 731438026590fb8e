//! Follows, blocks and mutes, and accounts and lists as each viewer sees them.

use microblog_chassis::status;
use microblog_proto::{
    common::ErrorReason,
    gateway,
    relation::{Counts, RelationState},
};
use microblog_testkit::Topology;
use tonic::{Code, Request};

use crate::system::{Flags, Jobs, Member, System, by_id, by_name, ids, names};

async fn follow(system: &System, viewer: &Member, target: &Member) -> RelationState {
    let request = gateway::FollowRequest { user: by_id(target.id) };
    let response = system.gateway().follow(viewer.request(request)).await.unwrap().into_inner();
    assert!(response.since.is_some());
    response.relation()
}

async fn view_user(system: &System, viewer: &Member, target: u64) -> gateway::ViewUserResponse {
    let request = gateway::ViewUserRequest { user: by_id(target) };
    system.gateway().view_user(viewer.request(request)).await.unwrap().into_inner()
}

/// Four accounts follow the star; the viewer follows two of them, and two follow the viewer.
async fn every_relation_shows(topology: Topology) {
    let system = System::start_on(topology, Jobs::Run, Flags::default()).await;
    let star = system.join("Star").await;
    let viewer = system.join("viewer").await;
    let mut fans = Vec::new();
    for name in ["stranger", "followed", "follower", "friend"] {
        let fan = system.join(name).await;
        assert_eq!(follow(&system, &fan, &star).await, RelationState::Following);
        fans.push(fan);
    }
    assert_eq!(follow(&system, &viewer, &fans[1]).await, RelationState::Following);
    assert_eq!(follow(&system, &fans[2], &viewer).await, RelationState::Following);
    assert_eq!(follow(&system, &viewer, &fans[3]).await, RelationState::Following);
    assert_eq!(follow(&system, &fans[3], &viewer).await, RelationState::Mutual);

    let expected = ["friend", "follower", "followed", "stranger"];
    let states = |page: &gateway::ViewFollowersResponse| {
        page.users.iter().map(gateway::ListedUser::relation).collect::<Vec<_>>()
    };
    let page = system.followers(Some(&viewer), star.id, 0, "").await;
    assert_eq!(names(&page.users), expected);
    assert_eq!(
        states(&page),
        [
            RelationState::Mutual,
            RelationState::Follower,
            RelationState::Following,
            RelationState::None
        ]
    );
    assert_eq!(page.next_page_token, "");
    let times: Vec<_> = page.users.iter().map(|user| user.since.unwrap()).collect();
    assert!(times.is_sorted_by_key(|time| std::cmp::Reverse((time.seconds, time.nanos))));

    // By case-insensitive name, the result is the same; for the owner, all are followers.
    let request = gateway::ViewFollowersRequest { user: by_name("sTaR"), ..Default::default() };
    let by_name = system.gateway().view_followers(viewer.request(request)).await.unwrap();
    assert_eq!(by_name.into_inner(), page);
    let own = system.followers(Some(&star), star.id, 0, "").await;
    assert_eq!(states(&own), [RelationState::Follower; 4]);
    let anonymous = system.followers(None, star.id, 0, "").await;
    assert_eq!(names(&anonymous.users), expected);
    assert_eq!(states(&anonymous), [RelationState::None; 4]);
}

#[tokio::test]
async fn lists_have_every_relation_to_the_viewer() {
    every_relation_shows(Topology::Single).await;
}

#[tokio::test]
async fn lists_have_every_relation_to_the_viewer_on_a_cluster() {
    every_relation_shows(Topology::Cluster).await;
}

#[tokio::test]
async fn each_list_has_the_right_accounts() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let cleo = system.join("cleo").await;
    let dora = system.join("dora").await;
    // ann and bob both follow cleo, bob and cleo follow each other, dora follows bob, ann dora.
    for (follower, target) in [(&ann, &cleo), (&bob, &cleo), (&cleo, &bob), (&dora, &bob)] {
        follow(&system, follower, target).await;
    }
    follow(&system, &ann, &dora).await;

    let request = gateway::ViewFollowingRequest { user: by_id(ann.id), ..Default::default() };
    let page = system.gateway().view_following(Request::new(request)).await.unwrap().into_inner();
    assert_eq!(names(&page.users), ["dora", "cleo"]);

    let request = gateway::ViewMutualsRequest { user: by_id(bob.id), ..Default::default() };
    let page = system.gateway().view_mutuals(ann.request(request)).await.unwrap().into_inner();
    assert_eq!(names(&page.users), ["cleo"]);
    assert_eq!(page.users[0].relation(), RelationState::Following);

    let user = by_name("bob");
    let request = gateway::ViewCommonFollowingRequest { user, ..Default::default() };
    let page = system.gateway().view_common_following(ann.request(request)).await.unwrap();
    assert_eq!(names(&page.into_inner().users), ["cleo"]);

    let request =
        gateway::ViewFollowersIFollowRequest { user: by_id(bob.id), ..Default::default() };
    let page = system.gateway().view_followers_i_follow(ann.request(request)).await.unwrap();
    // Two follows within a millisecond are ordered by partition.
    let page = page.into_inner();
    let mut followers = names(&page.users);
    followers.sort_unstable();
    assert_eq!(followers, ["cleo", "dora"]);
}

#[tokio::test]
async fn followers_i_follow_are_newest_first() {
    let system = System::start().await;
    let viewer = system.join("viewer").await;
    let target = system.join("target").await;
    let x = system.join("first").await;
    let y = system.join("second").await;
    for (follower, followed) in [(&viewer, &x), (&viewer, &y), (&y, &target), (&x, &target)] {
        follow(&system, follower, followed).await;
    }
    for strangers in [0, 3] {
        for n in 0..strangers {
            let stranger = system.join(&format!("stranger{n}")).await;
            follow(&system, &stranger, &target).await;
        }
        let mut expected = ids(&system.followers(None, target.id, 20, "").await.users);
        expected.retain(|id| [x.id, y.id].contains(id));
        assert_eq!(expected.len(), 2);
        for page_size in [1, 2] {
            let mut found = Vec::new();
            let mut page_token = String::new();
            loop {
                let request = gateway::ViewFollowersIFollowRequest {
                    user: by_id(target.id),
                    page_size,
                    page_token,
                };
                let page = system.gateway().view_followers_i_follow(viewer.request(request)).await;
                let page = page.unwrap().into_inner();
                found.extend(ids(&page.users));
                page_token = page.next_page_token;
                if page_token.is_empty() {
                    break;
                }
            }
            assert_eq!(found, expected, "{strangers} strangers, by {page_size}");
        }
    }
}

#[tokio::test]
async fn a_profile_has_its_relation_to_the_viewer() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let cleo = system.join("cleo").await;
    for (follower, target) in [(&ann, &bob), (&ann, &cleo), (&bob, &cleo), (&bob, &ann)] {
        follow(&system, follower, target).await;
    }
    let view = view_user(&system, &ann, bob.id).await;
    assert_eq!(view.user.as_ref().unwrap().name, "bob");
    assert_eq!(
        view.counts,
        Some(Counts { user_id: bob.id, following: 2, followers: 1, mutuals: 1 })
    );
    let relation = view.relation.unwrap();
    assert_eq!((relation.user_id, relation.state()), (bob.id, RelationState::Mutual));
    assert_eq!(view.common_following, 1);

    let request = gateway::ViewUserRequest { user: by_name("BOB") };
    let anonymous = system.gateway().view_user(Request::new(request.clone())).await.unwrap();
    let anonymous = anonymous.into_inner();
    assert_eq!((&anonymous.user, anonymous.counts), (&view.user, view.counts));
    assert_eq!(anonymous.relation.unwrap().state(), RelationState::None);
    assert_eq!(anonymous.common_following, 0);
    let named = system.gateway().view_user(ann.request(request)).await.unwrap().into_inner();
    assert_eq!(named, view);

    let own = view_user(&system, &ann, ann.id).await;
    assert_eq!(own.relation.unwrap().state(), RelationState::Self_);
    let me = system.gateway().me(ann.request(gateway::MeRequest {})).await.unwrap().into_inner();
    assert_eq!(me.account.as_ref().unwrap().user, own.user);
    assert_eq!(me.account.unwrap().email, "ann@example.com");
    assert_eq!(me.counts, own.counts);
}

#[tokio::test]
async fn a_follow_is_idempotent_and_both_sides_can_end_it() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let request = || ann.request(gateway::FollowRequest { user: by_name("bob") });
    let first = system.gateway().follow(request()).await.unwrap().into_inner();
    let second = system.gateway().follow(request()).await.unwrap().into_inner();
    assert_eq!(first, second);
    follow(&system, &bob, &ann).await;

    for _ in 0..2 {
        let request = ann.request(gateway::UnfollowRequest { user: by_name("bob") });
        let response = system.gateway().unfollow(request).await.unwrap().into_inner();
        assert_eq!(response.relation(), RelationState::Follower);
        let request = ann.request(gateway::RemoveFollowerRequest { user: by_id(bob.id) });
        let response = system.gateway().remove_follower(request).await.unwrap().into_inner();
        assert_eq!(response.relation(), RelationState::None);
        follow(&system, &bob, &ann).await;
    }
}

#[tokio::test]
async fn a_block_ends_follows_and_prevents_new_ones() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    follow(&system, &ann, &bob).await;
    follow(&system, &bob, &ann).await;

    let request = ann.request(gateway::BlockRequest { user: by_id(bob.id) });
    system.gateway().block(request).await.unwrap();
    let relation = view_user(&system, &ann, bob.id).await.relation.unwrap();
    assert_eq!(relation.state(), RelationState::None);
    assert!(relation.blocking && !relation.blocked_by);
    let blocks = ann.request(gateway::ViewBlocksRequest::default());
    let blocks = system.gateway().view_blocks(blocks).await.unwrap().into_inner();
    assert_eq!(names(&blocks.users), ["bob"]);

    for (follower, target, code, reason) in [
        (&bob, &ann, Code::PermissionDenied, ErrorReason::BlockedByTarget),
        (&ann, &bob, Code::FailedPrecondition, ErrorReason::TargetBlocked),
    ] {
        let request = follower.request(gateway::FollowRequest { user: by_id(target.id) });
        let error = system.gateway().follow(request).await.unwrap_err();
        assert_eq!((error.code(), status::reason_of(&error)), (code, Some(reason)));
    }
    let request = ann.request(gateway::UnblockRequest { user: by_name("bob") });
    system.gateway().unblock(request).await.unwrap();
    assert_eq!(follow(&system, &bob, &ann).await, RelationState::Following);
}

#[tokio::test]
async fn a_mute_is_visible_to_the_muter_only() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    follow(&system, &ann, &bob).await;
    let request = ann.request(gateway::MuteRequest { user: by_name("bob") });
    system.gateway().mute(request).await.unwrap();

    assert!(view_user(&system, &ann, bob.id).await.relation.unwrap().muting);
    assert!(!view_user(&system, &bob, ann.id).await.relation.unwrap().muting);
    let mutes = ann.request(gateway::ViewMutesRequest::default());
    let mutes = system.gateway().view_mutes(mutes).await.unwrap().into_inner();
    assert_eq!(names(&mutes.users), ["bob"]);
    assert_eq!(mutes.users[0].relation(), RelationState::Following);

    let request = ann.request(gateway::UnmuteRequest { user: by_id(bob.id) });
    system.gateway().unmute(request).await.unwrap();
    assert!(!view_user(&system, &ann, bob.id).await.relation.unwrap().muting);
}

#[tokio::test]
async fn the_limit_of_follows_has_its_own_reason() {
    let flags = Flags { relation: &["--following-limit", "1"], ..Flags::default() };
    let system = System::start_on(Topology::Single, Jobs::Run, flags).await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let cleo = system.join("cleo").await;
    follow(&system, &ann, &bob).await;
    let request = ann.request(gateway::FollowRequest { user: by_id(cleo.id) });
    let error = system.gateway().follow(request).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert_eq!(status::reason_of(&error), Some(ErrorReason::FollowingLimit));
}
