//! How change feeds are followed.

use microblog_proto::notice::NoticeKind;
use microblog_testkit::{Topology, eventually};

use crate::support::{FEEDS, PATIENCE, System, id};

#[tokio::test]
async fn one_process_follows_a_feed_and_another_takes_over() {
    let mut system = System::start(Topology::Single).await;
    let [ann, bob] = [1, 2].map(id);
    let holder = async |system: &System| -> Vec<String> {
        system.command(&["HMGET", FEEDS[2], "holder"]).await
    };
    let first = holder(&system).await;
    system.restart().await;
    let post = system.publish(ann, "post").await;
    system.like(bob, post).await;
    system.has(ann, &[(NoticeKind::Like, vec![bob], 0, post, 0)]).await;
    assert_ne!(holder(&system).await, first);
    let read_until: Vec<u64> = system.command(&["HMGET", FEEDS[2], "read_until"]).await;
    assert!(read_until[0] > 0, "it tells how late a feed is that cannot be read any more");
}

#[tokio::test]
async fn a_feed_has_one_follower_until_its_claim_ends() {
    let mut system = System::start(Topology::Single).await;
    let [ann, bob] = [1, 2].map(id);
    let holders = async |system: &System| {
        let mut holders = Vec::new();
        for key in FEEDS {
            let fields: Vec<Option<String>> = system.command(&["HMGET", key, "holder"]).await;
            holders.extend(fields);
        }
        holders
    };
    let first = holders(&system).await;
    let other = system.replica().await;
    let post = system.publish(ann, "post").await;
    system.like(bob, post).await;
    system.has(ann, &[(NoticeKind::Like, vec![bob], 0, post, 0)]).await;
    assert_eq!(holders(&system).await, first);
    // The first one ends without a word.
    let comment = system.comment(bob, post, 0, "hi").await;
    system.abort().await;
    eventually("the other one follows all feeds", PATIENCE, async || {
        holders(&system).await.iter().zip(&first).all(|(now, before)| now != before)
    })
    .await;
    other.abort();
    system.release_claims().await;
    system.restart().await;
    let both = [
        (NoticeKind::Comment, vec![bob], 0, post, comment),
        (NoticeKind::Like, vec![bob], 0, post, 0),
    ];
    system.has(ann, &both).await;
}

#[tokio::test]
async fn a_damaged_notice_is_replaced() {
    let system = System::start(Topology::Single).await;
    let [ann, bob] = [1, 2].map(id);
    let post = system.publish(ann, "post").await;
    system.like(bob, post).await;
    system.has(ann, &[(NoticeKind::Like, vec![bob], 0, post, 0)]).await;
    let key = format!("note:{{{}}}:notices:{ann}", (ann >> 2) % 1024);
    let name = format!("l{post}");
    let _: u64 = system.command(&["HSET", &key, &name, "damaged"]).await;
    assert!(system.notices(ann).await.is_empty());
    system.like(id(3), post).await;
    system.has(ann, &[(NoticeKind::Like, vec![id(3)], 0, post, 0)]).await;
}

#[tokio::test]
async fn a_position_that_has_ended_continues_at_the_start() {
    let mut system = System::start(Topology::Single).await;
    let [ann, bob] = [1, 2].map(id);
    let post = system.publish(ann, "post").await;
    system.settle(&[ann]).await;
    system.stop().await;
    // As after a restore of an older database.
    let _: u64 = system.command(&["HSET", FEEDS[2], "token", "7"]).await;
    system.like(bob, post).await;
    system.restart().await;
    system.has(ann, &[(NoticeKind::Like, vec![bob], 0, post, 0)]).await;
    let comment = system.comment(bob, post, 0, "later").await;
    let both = [
        (NoticeKind::Comment, vec![bob], 0, post, comment),
        (NoticeKind::Like, vec![bob], 0, post, 0),
    ];
    system.has(ann, &both).await;
}

#[tokio::test]
async fn notices_are_made_again_after_redis_has_lost_them() {
    let mut system = System::start(Topology::Single).await;
    let [ann, bob, cleo] = [1, 2, 3].map(id);
    let post = system.publish(ann, "post").await;
    system.like(bob, post).await;
    system.follow(cleo, ann).await;
    system.settle(&[ann, cleo]).await;
    let mut before = system.shown(ann).await;
    assert_eq!(before.len(), 2);
    system.stop().await;
    let mut admin = system.redis.nodes()[0].admin().await;
    let _: () = microblog_keyspace::redis::cmd("FLUSHALL").query_async(&mut admin).await.unwrap();
    system.restart().await;
    before.sort_unstable_by_key(|notice| notice.0 as i32);
    eventually("the notices are there again", PATIENCE, async || {
        let mut after = system.shown(ann).await;
        after.sort_unstable_by_key(|notice| notice.0 as i32);
        after == before
    })
    .await;
}
