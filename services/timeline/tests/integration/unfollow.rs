//! Unfollow: late pushes of unfollowed authors never show, and the posts that their posts displaced
//! return.

use microblog_domain::UserId;
use microblog_proto::relation as pb;
use microblog_testkit::{self as testkit, Topology::Single};

use crate::support::{
    PATIENCE, System, delivery, entry, id,
    pages::{Timeline, deliver_all},
    post_id,
    queue::{drained, stored},
};

/// Returns whether exactly these posts are stored.
async fn has_only(system: &System, user: u64, posts: &[u64]) -> bool {
    stored(&system.store, user).await.iter().rev().eq(posts)
}

fn user(id: u64) -> UserId {
    UserId::new(id).unwrap()
}

#[tokio::test]
async fn late_pushes_after_an_unfollow_never_show_and_are_removed() {
    let system = System::start(Single).await;
    let [alice, bob, carol] = [1, 2, 3].map(id);
    system.follow(bob, alice).await;
    system.follow(bob, carol).await;
    let mut kept = vec![system.post(carol).await];
    let removed = system.post(alice).await;
    system.home_becomes(bob, &[removed, kept[0]]).await;
    drained(&system).await;
    system.unfollow(bob, alice).await;
    for _ in 0..5 {
        // Like a step that read the followers before.
        let late = entry(post_id(alice), alice);
        assert_eq!(system.store.push(&late, &[user(bob)]).await.unwrap(), 1);
        assert_eq!(system.home(bob).await, kept);
        kept.insert(0, system.post(carol).await);
        system.home_becomes(bob, &kept).await;
        assert_eq!(Timeline::Home.whole(&system.client, bob, 1, "").await, kept);
    }
    // Each read finds posts of alice and starts a rebuild.
    testkit::eventually("nothing of alice is stored", PATIENCE, async || {
        assert_eq!(system.home(bob).await, kept);
        has_only(&system, bob, &kept).await
    })
    .await;
    // The same again, much later.
    let late = entry(post_id(alice), alice);
    system.store.push(&late, &[user(bob)]).await.unwrap();
    assert_eq!(system.home(bob).await, kept);
    testkit::eventually("nothing of alice is stored", PATIENCE, async || {
        has_only(&system, bob, &kept).await
    })
    .await;
}

#[tokio::test]
async fn posts_displaced_by_an_unfollowed_author_return() {
    for mode in ["hybrid", "push", "pull"] {
        let system = System::start_with(Single, &["--mode", mode]).await;
        let [prolific, bob, friend, other] = [1, 2, 3, 4].map(id);
        for author in [prolific, friend, other] {
            system.follow(bob, author).await;
        }
        assert_eq!(system.home(bob).await, [0; 0]);
        let mut old = Vec::new();
        for n in 0..30 {
            old.insert(0, system.post(if n % 3 == 0 { other } else { friend }).await);
        }
        system.home_becomes(bob, &old).await;
        for _ in 0..2 {
            let many: Vec<_> = (0..450).map(|_| delivery(post_id(prolific), prolific, 0)).collect();
            deliver_all(&system.client, &many).await;
        }
        drained(&system).await;
        let all = Timeline::Home.whole(&system.client, bob, 200, "").await;
        assert!(all.len() == 800 && old.iter().all(|post| !all.contains(post)));
        system.unfollow(bob, prolific).await;
        let new = system.post(friend).await;
        drained(&system).await;
        let expected = [&[new], &old[..]].concat();
        // On the first read: only the last page is short.
        let first = Timeline::Home.whole(&system.client, bob, 20, "").await;
        assert_eq!(first, expected, "{mode}");
    }
}

#[tokio::test]
async fn blocks_and_mutes_take_effect_at_once() {
    let system = System::start(Single).await;
    let [alice, bob, carol] = [1, 2, 3].map(id);
    for (a, b) in [(bob, alice), (alice, bob), (bob, carol), (carol, bob)] {
        system.follow(a, b).await;
    }
    let (first, second) = (system.post(alice).await, system.post(carol).await);
    let see = async |expected: &[u64]| {
        for timeline in [Timeline::Home, Timeline::Friends] {
            assert_eq!(timeline.whole(&system.client, bob, 1, "").await, expected, "{timeline:?}");
        }
    };
    system.home_becomes(bob, &[second, first]).await;
    see(&[second, first]).await;
    let mut relation = system.relation.clone();
    relation.mute(pb::MuteRequest { user_id: bob, target_id: alice }).await.unwrap();
    see(&[second]).await;
    relation.unmute(pb::UnmuteRequest { user_id: bob, target_id: alice }).await.unwrap();
    see(&[second, first]).await;
    relation.block(pb::BlockRequest { user_id: carol, target_id: bob }).await.unwrap();
    see(&[first]).await;
    relation.unblock(pb::UnblockRequest { user_id: carol, target_id: bob }).await.unwrap();
    see(&[first]).await;
    system.follow(bob, carol).await;
    assert_eq!(system.home(bob).await, [second, first]);
}
