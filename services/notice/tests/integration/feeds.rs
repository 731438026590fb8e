//! How change feeds are followed.

use futures::{StreamExt as _, stream};
use microblog_proto::notice::NoticeKind;
use microblog_testkit::{Topology, eventually};

use crate::support::{PATIENCE, System, id};

const HOLDERS: &str = "SELECT holder FROM leases WHERE name LIKE 'feed of %' ORDER BY name";

#[tokio::test]
async fn one_process_follows_a_feed_and_another_takes_over() {
    let mut system = System::start(Topology::Cluster).await;
    let [ann, bob] = [1, 2].map(id);
    let first = system.numbers(HOLDERS).await;
    assert_eq!(first.len(), 3);
    system.restart().await;
    let post = system.publish(ann, "post").await;
    system.like(bob, post).await;
    system.has(ann, &[(NoticeKind::Like, vec![bob], 0, post, 0)]).await;
    eventually("the other one follows all feeds", PATIENCE, async || {
        let now = system.numbers(HOLDERS).await;
        now.len() == 3 && now.iter().zip(&first).all(|(now, before)| now != before)
    })
    .await;
}

#[tokio::test]
async fn a_feed_has_one_follower_until_its_lease_ends() {
    let mut system = System::start(Topology::Cluster).await;
    let [ann, bob] = [1, 2].map(id);
    let first = system.numbers(HOLDERS).await;
    let (client, other) = system.replica().await;
    let post = system.publish(ann, "post").await;
    system.like(bob, post).await;
    system.has(ann, &[(NoticeKind::Like, vec![bob], 0, post, 0)]).await;
    assert_eq!(system.numbers(HOLDERS).await, first);
    // The first one ends without a word.
    let comment = system.comment(bob, post, 0, "hi").await;
    system.abort().await;
    system.client = client;
    let both = [
        (NoticeKind::Comment, vec![bob], 0, post, comment),
        (NoticeKind::Like, vec![bob], 0, post, 0),
    ];
    system.has(ann, &both).await;
    eventually("the other one follows all feeds", PATIENCE, async || {
        let now = system.numbers(HOLDERS).await;
        now.len() == 3 && now.iter().zip(&first).all(|(now, before)| now != before)
    })
    .await;
    other.abort();
}

/// A file has one process, so nothing keeps services in one process apart but the position.
#[tokio::test]
async fn followers_side_by_side_apply_each_change_once() {
    const LIKES: u64 = 300;
    let system = System::start(Topology::Single).await;
    let ann = id(1);
    let post = system.publish(ann, "post").await;
    let others = [system.replica().await, system.replica().await];
    let likes = stream::iter(0..LIKES);
    likes.for_each_concurrent(8, |n| system.like(id(10 + n), post)).await;
    system.settle(&[ann]).await;
    let [notice] = &system.notices(ann).await[..] else { panic!("one notice") };
    // Those that were removed for newer ones would be counted again.
    assert_eq!((notice.acts.len() as u64, notice.earlier), (20, LIKES - 20));
    others.iter().for_each(|(_, other)| other.abort());
}

#[tokio::test]
async fn a_damaged_notice_is_replaced() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let [ann, bob] = [1, 2].map(id);
        let post = system.publish(ann, "post").await;
        system.like(bob, post).await;
        system.has(ann, &[(NoticeKind::Like, vec![bob], 0, post, 0)]).await;
        let damage = format!("UPDATE notices SET acts = 'damaged' WHERE account = {ann}");
        system.execute(&damage).await;
        system.flush().await;
        assert!(system.notices(ann).await.is_empty());
        system.like(id(3), post).await;
        system.has(ann, &[(NoticeKind::Like, vec![id(3)], 0, post, 0)]).await;
    }
}

#[tokio::test]
async fn a_position_that_has_ended_continues_at_the_start() {
    for topology in [Topology::Single, Topology::Cluster] {
        let mut system = System::start(topology).await;
        let [ann, bob] = [1, 2].map(id);
        let post = system.publish(ann, "post").await;
        system.like(id(3), post).await;
        system.settle(&[ann]).await;
        system.stop().await;
        // As after a restore of an older database.
        system.execute("UPDATE positions SET token = 7 WHERE feed = 'post'").await;
        system.like(bob, post).await;
        system.restart().await;
        // What was applied before is not applied again.
        let likes = (NoticeKind::Like, vec![bob, id(3)], 0, post, 0);
        system.has(ann, std::slice::from_ref(&likes)).await;
        let comment = system.comment(bob, post, 0, "later").await;
        system.has(ann, &[(NoticeKind::Comment, vec![bob], 0, post, comment), likes]).await;
    }
}

/// Of many likes, a notice knows the newest only: the others would count again.
#[tokio::test]
async fn what_was_applied_before_a_position_ended_makes_no_notice_again() {
    let mut system = System::start(Topology::Cluster).await;
    let [ann, bob] = [1, 2].map(id);
    let post = system.publish(ann, "post").await;
    for n in 10..70 {
        system.like(id(n), post).await;
    }
    system.settle(&[ann]).await;
    let before = system.notices(ann).await;
    system.stop().await;
    system
        .execute(
            "UPDATE positions SET token = 7, read_until = read_until + 60000 WHERE feed = 'post'",
        )
        .await;
    system.restart().await;
    let comment = system.comment(bob, post, 0, "later").await;
    system.settle(&[ann]).await;
    let after = system.notices(ann).await;
    assert_eq!(after.len(), 2);
    assert_eq!((after[0].comment_id, &after[1..]), (comment, &before[..]));
}
