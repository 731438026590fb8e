//! The service from outside: real gRPC, real Redis, a real relation service.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod support;

use clap::Parser as _;
use microblog_domain::UserId;
use microblog_proto::{
    relation::{self, RelationState},
    timeline as pb,
};
use microblog_relation::{Edge, Include, State, Targets};
use microblog_testkit::{Topology, eventually};
use support::{System, id, posts};

#[tokio::test]
async fn a_post_comes_to_its_author_at_once_and_to_followers() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let (alice, bob) = (id(1), id(2));
        system.follow(bob, alice).await;
        assert_eq!(system.home(bob).await, [0; 0]);
        let post = system.post(alice).await;
        assert_eq!(system.home(alice).await, [post]);
        system.home_becomes(bob, &[post]).await;
        let second = system.repost(alice, post).await;
        let third = system.quote(alice, post).await;
        system.home_becomes(bob, &[third, post]).await;
        let (entries, ..) = system.home_page(bob, 0, "", "").await.unwrap();
        assert_eq!(entries[1].stand_in_ids, [second]);
    }
}

#[tokio::test]
async fn what_was_posted_before_a_follow_comes_with_it_and_goes_with_its_end() {
    let system = System::start(Topology::Single).await;
    let (alice, bob, carol) = (id(1), id(2), id(3));
    let early = system.post(alice).await;
    assert_eq!(system.home(bob).await, [0; 0]);
    system.follow(bob, alice).await;
    assert_eq!(system.home(bob).await, [early]);
    let other = system.post(carol).await;
    system.follow(bob, carol).await;
    assert_eq!(system.home(bob).await, [other, early]);
    system.unfollow(bob, alice).await;
    assert_eq!(system.home(bob).await, [other]);
    system.follow(bob, alice).await;
    assert_eq!(system.home(bob).await, [other, early]);
}

#[tokio::test]
async fn a_page_tells_how_those_who_wrote_it_stand_to_its_reader() {
    let system = System::start(Topology::Single).await;
    let [alice, bob, carol, dave, eve] = [1, 2, 3, 4, 5].map(id);
    for (follower, target) in [(bob, alice), (alice, bob), (bob, carol), (bob, dave), (bob, eve)] {
        system.follow(follower, target).await;
    }
    let root = system.post(alice).await;
    for author in [carol, carol, dave, bob, eve] {
        system.repost(author, root).await;
    }
    let own = system.post(bob).await;
    let request = relation::MuteRequest { user_id: bob, target_id: eve };
    system.relation.clone().mute(request).await.unwrap();
    let told = |relations: &[relation::Relation]| {
        relations.iter().map(|told| (told.user_id, told.state())).collect::<Vec<_>>()
    };
    let home = async |page_size, page_token: &str| {
        let page_token = page_token.to_owned();
        let request = pb::GetHomeTimelineRequest {
            user_id: bob,
            page_size,
            page_token,
            ..Default::default()
        };
        system.client.clone().get_home_timeline(request).await.unwrap().into_inner()
    };
    let page = home(0, "").await;
    assert_eq!(posts(&page.entries), [own, root]);
    assert_eq!(page.entries[1].stand_in_ids.len(), 4);
    let [of_bob, of_alice] = [(bob, RelationState::Self_), (alice, RelationState::Mutual)];
    let of_stand_ins = [(carol, RelationState::Following), (dave, RelationState::Following)];
    assert_eq!(told(&page.relations), [&[of_bob, of_alice], &of_stand_ins[..]].concat());
    // As the relation service has it, for everybody.
    let question = relation::BatchGetRelationsRequest {
        viewer_id: bob,
        target_ids: vec![bob, alice, carol, dave],
        include_blocks: true,
        include_mutes: true,
        include_newest_following_version: false,
    };
    let answer = system.relation.clone().batch_get_relations(question).await.unwrap();
    assert_eq!(page.relations, answer.into_inner().relations);
    // Of those on the page, at each look.
    let first = home(1, "").await;
    assert_eq!(told(&first.relations), [of_bob]);
    system.unfollow(alice, bob).await;
    let second = home(1, &first.next_page_token).await;
    assert_eq!(second.relations[0].state(), RelationState::Following);
    let request = pb::GetFriendsTimelineRequest { user_id: bob, ..Default::default() };
    let friends = async || {
        let page = system.client.clone().get_friends_timeline(request.clone()).await.unwrap();
        told(&page.into_inner().relations)
    };
    assert_eq!(friends().await, []);
    system.follow(alice, bob).await;
    assert_eq!(friends().await, [of_alice]);
}

#[tokio::test]
async fn a_reader_pages_down_and_asks_what_is_new() {
    let system = System::start(Topology::Single).await;
    let (alice, bob) = (id(1), id(2));
    system.follow(bob, alice).await;
    let mut all = Vec::new();
    for _ in 0..5 {
        all.insert(0, system.post(alice).await);
    }
    let (first, next, since) = system.home_page(bob, 2, "", "").await.unwrap();
    assert_eq!(posts(&first), all[..2]);
    let new = system.post(alice).await;
    system.home_becomes(bob, &[&[new], &all[..]].concat()).await;
    let (second, next, _) = system.home_page(bob, 2, &next, "").await.unwrap();
    assert_eq!(posts(&second), all[2..4]);
    let (third, next, _) = system.home_page(bob, 2, &next, "").await.unwrap();
    assert_eq!((posts(&third), next.as_str()), (all[4..].to_vec(), ""));
    let (news, next, since) = system.home_page(bob, 2, "", &since).await.unwrap();
    assert_eq!((posts(&news), next.as_str()), (vec![new], ""));
    let (none, _, _) = system.home_page(bob, 2, "", &since).await.unwrap();
    assert_eq!(posts(&none), [0; 0]);
}

#[tokio::test]
async fn what_was_not_pushed_while_all_was_pulled_is_there_in_another_mode() {
    let system = System::start(Topology::Single).await;
    let (alice, bob) = (id(1), id(2));
    system.follow(bob, alice).await;
    let first = system.post(alice).await;
    system.home_becomes(bob, &[first]).await;
    let pulling = system.another(&["--mode", "pull"]).await;
    let second = pulling.post(alice).await;
    assert_eq!(pulling.home(bob).await, [second, first]);
    assert_eq!(system.home(bob).await, [second, first]);
}

#[tokio::test]
async fn a_follow_of_which_the_other_side_hears_late_loses_no_post() {
    let system = System::start(Topology::Single).await;
    let (alice, bob) = (id(1), id(2));
    let url = system.redis.url("relation");
    let relation = microblog_relation::Config::parse_from(["relation", "--redis-url", &url]);
    let relation = microblog_relation::Store::open(&relation).unwrap();
    assert_eq!(system.home(bob).await, [0; 0]);
    // As a relation service that dies after the truth leaves it.
    let [from, to] = [bob, alice].map(|user| UserId::new(user).unwrap());
    let edge = Edge { from, to };
    relation.follow(&[Targets::one(edge)]).await.unwrap();
    assert_eq!(system.home(bob).await, [0; 0]);
    let post = system.post(alice).await;
    // It goes by the one whom nobody knows as a follower, until the sweeper takes the follow up.
    eventually("the other side knows", support::PATIENCE, async || {
        let relations = relation.relations(to, &[from], Include::default()).await.unwrap().0;
        relations[0].state == State::Follower
    })
    .await;
    system.home_becomes(bob, &[post]).await;
    let second = system.post(alice).await;
    system.home_becomes(bob, &[second, post]).await;
}
