//! The service from outside: real gRPC, real Redis, a real relation service.

mod support;

use microblog_testkit::Topology;
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
