//! API tests over gRPC, with Redis and a relation service.

use microblog_proto::relation::{self, EdgeList, RelationState};
use microblog_testkit::Topology;

use crate::support::{System, id, pages::Timeline, posts};

#[tokio::test]
async fn a_post_reaches_its_author_and_followers() {
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
async fn a_follow_backfills_posts_and_an_unfollow_removes_them() {
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
async fn a_page_has_the_viewers_relations_to_its_authors() {
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
    let states = |relations: &[relation::Relation]| {
        relations.iter().map(|one| (one.user_id, one.state())).collect::<Vec<_>>()
    };
    let home = async |page_size, page_token: &str| {
        let request = Timeline::Home.request(bob, page_size, page_token, "");
        system.client.clone().get_timeline(request).await.unwrap().into_inner()
    };
    let page = home(0, "").await;
    assert_eq!(posts(&page.entries), [own, root]);
    assert_eq!(page.entries[1].stand_in_ids.len(), 4);
    let [of_bob, of_alice] = [(bob, RelationState::Self_), (alice, RelationState::Mutual)];
    let of_stand_ins = [(carol, RelationState::Following), (dave, RelationState::Following)];
    assert_eq!(states(&page.relations), [&[of_bob, of_alice], &of_stand_ins[..]].concat());
    // The relations equal those of the relation service.
    let question = relation::BatchGetRelationsRequest {
        viewer_id: bob,
        target_ids: vec![bob, alice, carol, dave],
        include: vec![EdgeList::Blocks.into(), EdgeList::Mutes.into()],
        ..Default::default()
    };
    let answer = system.relation.clone().batch_get_relations(question).await.unwrap();
    assert_eq!(page.relations, answer.into_inner().relations);
    // Each page has the relations of its authors only.
    let first = home(1, "").await;
    assert_eq!(states(&first.relations), [of_bob]);
    system.unfollow(alice, bob).await;
    let second = home(1, &first.next_page_token).await;
    assert_eq!(second.relations[0].state(), RelationState::Following);
    let request = Timeline::Friends.request(bob, 0, "", "");
    let friends = async || {
        let page = system.client.clone().get_timeline(request.clone()).await.unwrap();
        states(&page.into_inner().relations)
    };
    assert_eq!(friends().await, []);
    system.follow(alice, bob).await;
    assert_eq!(friends().await, [of_alice]);
}

#[tokio::test]
async fn the_authors_of_a_timeline_are_those_whose_posts_it_shows() {
    let system = System::start(Topology::Single).await;
    let [alice, bob, carol, dave, eve, frank] = [1, 2, 3, 4, 5, 6].map(id);
    let authors = async |timeline: Timeline| timeline.authors(&system.client, bob).await.unwrap();
    assert_eq!(authors(Timeline::Home).await, [bob], "the reader's own posts");
    assert_eq!(authors(Timeline::Friends).await, [0; 0]);
    for author in [alice, carol, dave, eve] {
        system.follow(bob, author).await;
        system.follow(author, bob).await;
    }
    system.follow(bob, frank).await;
    assert_eq!(authors(Timeline::Home).await, [alice, bob, carol, dave, eve, frank]);
    assert_eq!(authors(Timeline::Friends).await, [alice, carol, dave, eve]);
    system.unfollow(carol, bob).await;
    let request = relation::MuteRequest { user_id: bob, target_id: dave };
    system.relation.clone().mute(request).await.unwrap();
    let request = relation::BlockRequest { user_id: eve, target_id: bob };
    system.relation.clone().block(request).await.unwrap();
    assert_eq!(authors(Timeline::Home).await, [alice, bob, carol, frank]);
    assert_eq!(authors(Timeline::Friends).await, [alice]);
}

#[tokio::test]
async fn a_reader_scrolls_and_polls() {
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
async fn posts_delivered_in_pull_mode_show_in_other_modes() {
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
