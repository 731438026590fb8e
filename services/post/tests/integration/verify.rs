//! `Verify` reports each kind of damage, by ids alone; other tests rely on its having no false
//! positives.

use std::collections::BTreeSet;

use microblog_proto::{common::ErrorReason, post as pb};
use microblog_testkit::{
    Topology::{Cluster, Single},
    redis::cmd,
};
use tonic::Code;

use crate::support::{self, System, assert_rejected, id, violations};

/// Returns a key of a post or an account.
fn key(kind: &str, owner: u64) -> String {
    format!("post:{{{}}}:{kind}:{owner}", support::post(owner).partition())
}

#[tokio::test]
async fn each_kind_of_damage_is_reported_and_repaired() {
    let system = System::start_without_jobs(Single).await;
    let [ann, bob, carl] = [1, 2, 3].map(id);
    let root = system.create(ann, "private words").await.unwrap().id;
    let repost = system.repost(bob, root).await.unwrap().id;
    let plain = system.create(carl, "private words").await.unwrap().id;
    system.like(bob, root).await.unwrap();
    let comment = system.comment(bob, root, "private words", 0).await.unwrap().id;
    assert_eq!(violations(&system.client).await, Vec::<String>::new());

    let mut admin = system.redis.nodes()[0].admin().await;
    let of_bob = |kind: &str| format!("post:{{{}}}:{kind}", support::user(2).partition());
    let gone = plain + 4096;
    for damage in [
        cmd("HINCRBY").arg(key("post", root)).arg("l").arg(1),
        cmd("HDEL").arg(key("comment_bodies", root)).arg(comment),
        cmd("ZREM").arg(key("reposts", root)).arg(repost),
        cmd("ZADD").arg(key("reposts", plain)).arg(root).arg(root),
        cmd("HSET").arg(key("post", plain)).arg("r").arg(1),
        cmd("ZADD").arg(key("posts", carl)).arg(gone).arg(gone),
        cmd("ZADD").arg(of_bob("pending")).arg(7).arg("not a repost"),
        cmd("ZADD").arg(of_bob("outbox")).arg(repost).arg(repost),
        cmd("ZADD").arg(of_bob("forgetting")).arg(7).arg(bob),
    ] {
        damage.exec_async(&mut admin).await.unwrap();
    }
    let partition = support::user(2).partition();
    let expected = [
        format!(
            "{root} counts Counts {{ likes: 2, comments: 1, reposts: 1 }}, its lists have Counts \
             {{ likes: 1, comments: 1, reposts: 0 }}"
        ),
        format!("{root} has 0 bodies of 1 comments"),
        format!("{repost} reposts {root}: is listed false, target exists true"),
        format!("{plain} lists {root}, which is not its repost"),
        format!("{carl} lists {gone}, which is not one of its posts"),
    ];
    let under_way = [
        format!("partition {partition}: 1 pending reposts"),
        format!("partition {partition}: 1 undelivered posts"),
    ];
    let request = pb::VerifyRequest::default();
    let mut reports = system.client.clone().verify(request).await.unwrap().into_inner();
    let (mut found, mut pending) = (BTreeSet::new(), Vec::new());
    while let Some(report) = reports.message().await.unwrap() {
        found.extend(report.violations);
        pending.extend(report.pending);
    }
    assert_eq!(found, expected.into());
    assert_eq!(pending, under_way);

    let (left, repaired) = support::verify(&system.client, true).await;
    assert_eq!(left, Vec::<String>::new());
    assert!(repaired.len() >= 6, "{repaired:?}");
    for mended in [
        format!("comment {comment} on {root} is deleted"),
        format!("{root} counts what its lists have"),
        format!("{root} is removed from the reposts of {plain}"),
        format!("{gone} is removed from the list of {carl}"),
    ] {
        assert!(repaired.contains(&mended), "{mended}: {repaired:?}");
    }
    assert_eq!(support::verify(&system.client, true).await, Default::default());
}

#[tokio::test]
async fn a_missing_backlink_or_a_wrong_tombstone_is_repaired() {
    let system = System::start_without_jobs(Single).await;
    let root = system.create(id(1), "a post").await.unwrap().id;
    let repost = system.repost(id(2), root).await.unwrap().id;
    let mut admin = system.redis.nodes()[0].admin().await;
    for damage in [
        cmd("ZREM").arg(key("reposts", root)).arg(repost),
        cmd("ZADD").arg(key("repost_tombstones", root)).arg(repost + 4096).arg(repost),
        cmd("HDEL").arg(key("post", root)).arg("r"),
        // Bodies without comments.
        cmd("HSET").arg(key("comment_bodies", root)).arg(7).arg("text"),
    ] {
        damage.exec_async(&mut admin).await.unwrap();
    }
    assert_eq!(violations(&system.client).await.len(), 2);
    let (left, repaired) = support::verify(&system.client, true).await;
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(repaired.len(), 2, "{repaired:?}");
    assert_eq!(support::verify(&system.client, true).await, Default::default());
}

#[tokio::test]
async fn an_unreadable_post_in_the_outbox_is_not_reported_as_delivered() {
    let system = System::start_without_jobs(Single).await;
    let unreadable = system.create(id(1), "a post").await.unwrap().id;
    let readable = system.create(id(1), "a post").await.unwrap().id;
    let partition = support::user(1).partition();
    let outbox = format!("post:{{{partition}}}:outbox");
    let mut admin = system.redis.nodes()[0].admin().await;
    for damage in [
        cmd("HSET").arg(key("post", unreadable)).arg("b").arg("rubbish"),
        cmd("ZADD").arg(&outbox).arg(unreadable).arg(unreadable).arg(readable).arg(readable),
    ] {
        damage.exec_async(&mut admin).await.unwrap();
    }
    let (left, mut repaired) = support::verify(&system.client, true).await;
    assert!(left.contains(&format!("partition {partition}: 1 undelivered posts")), "{left:?}");
    repaired.retain(|repair| repair.ends_with("is delivered or deleted"));
    assert_eq!(repaired, [format!("{readable} is delivered or deleted")]);
}

#[tokio::test]
async fn one_account_is_checked_alone() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let [ann, bob] = [1, 2].map(id);
        let post = system.create(ann, "a post").await.unwrap().id;
        system.create(ann, "another one").await.unwrap();
        system.repost(bob, post).await.unwrap();
        for n in 0..3 {
            system.like(id(10 + n), post).await.unwrap();
            system.comment(id(10 + n), post, "well", 0).await.unwrap();
        }
        for (user_id, checked) in [(ann, (2, 7)), (bob, (1, 0)), (id(9), (0, 0)), (0, (3, 7))] {
            let request = pb::VerifyRequest { user_id, ..Default::default() };
            let mut reports = system.client.clone().verify(request).await.unwrap().into_inner();
            let (mut posts, mut entries, mut messages) = (0, 0, 0);
            while let Some(report) = reports.message().await.unwrap() {
                assert_eq!(report.violations, Vec::<String>::new());
                posts += report.posts_checked;
                entries += report.entries_checked;
                messages += 1;
            }
            assert_eq!((posts, entries), checked);
            assert_eq!(messages, if user_id == 0 { 1024 } else { 1 });
        }
    }
}

#[tokio::test]
async fn a_clock_that_is_ahead_is_reported_and_set_back() {
    let system = System::start_without_jobs(Single).await;
    let before = system.create(id(1), "a post").await.unwrap().id;
    // Both clocks were a year ahead for a moment: one post has an id from then.
    let partition = support::user(1).partition();
    let clock = format!("post:{{{partition}}}:clock");
    let mut admin = system.redis.nodes()[0].admin().await;
    let tick: u64 = cmd("GET").arg(&clock).query_async(&mut admin).await.unwrap();
    let jumped = tick + 365 * 24 * 3_600 * 4_000;
    for command in [
        cmd("SET").arg(&clock).arg(jumped),
        cmd("SET").arg(format!("{clock}:rests")).arg(format!("{tick};{jumped}")),
    ] {
        command.exec_async(&mut admin).await.unwrap();
    }
    let comment = system.comment(id(2), before, "a comment", 0).await;
    assert_rejected(comment, Code::Unavailable, ErrorReason::ClockAhead);
    assert_rejected(
        system.create(id(1), "a post").await,
        Code::Unavailable,
        ErrorReason::ClockAhead,
    );
    assert_rejected(system.delete(id(1), before).await, Code::Unavailable, ErrorReason::ClockAhead);
    let expected = format!("the clock of partition {partition} is 3153");
    let found = violations(&system.client).await;
    assert!(found.len() == 1 && found[0].starts_with(&expected), "{found:?}");

    // The repair issues its stamp after the clocks are set back.
    let lost = system.create(id(2), "a post").await.unwrap().id;
    let comment = system.comment(id(1), lost, "a comment", 0).await.unwrap().id;
    let mut lose = cmd("HDEL");
    lose.arg(key("comment_bodies", lost)).arg(comment);
    lose.exec_async(&mut admin).await.unwrap();
    let (left, repaired) = support::verify(&system.client, true).await;
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(repaired.len(), 2, "{repaired:?}");
    let expected = format!("the clock of partition {partition} is set back by 3153");
    assert!(repaired[0].starts_with(&expected), "{repaired:?}");
    assert_eq!(support::verify(&system.client, true).await, Default::default());

    let after = system.create(id(1), "a post").await.unwrap().id;
    assert!(before < after && after < before + (60_000 << 12), "{before} {after}");
    system.comment(id(2), before, "a comment", 0).await.unwrap();
    system.delete(id(1), before).await.unwrap();
}
