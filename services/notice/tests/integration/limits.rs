//! Limits: of the acts of a notice, of the notices and mentions of an account, and of the work.

use futures::{StreamExt as _, stream};
use microblog_proto::notice::{self as pb, NoticeKind};
use microblog_testkit::{Topology, eventually};

use crate::support::{PATIENCE, System, id};

/// Runs calls, some at once.
async fn each<F: Future<Output = ()>>(numbers: impl Iterator<Item = u64>, call: impl Fn(u64) -> F) {
    stream::iter(numbers).for_each_concurrent(16, call).await;
}

#[tokio::test]
async fn a_notice_has_its_newest_20_acts_and_counts_the_others() {
    let system = System::start(Topology::Single).await;
    let ann = id(1);
    let post = system.publish(ann, "post").await;
    for n in 0..25 {
        system.like(id(10 + n), post).await;
    }
    let newest = |from: u64| (from..35).rev().map(id).collect::<Vec<_>>();
    system.has(ann, &[(NoticeKind::Like, newest(15), 5, post, 0)]).await;
    // Those are counted, not known.
    system.unlike(id(11), post).await;
    system.unlike(id(34), post).await;
    let left = newest(15)[1..].to_vec();
    system.has(ann, &[(NoticeKind::Like, left, 5, post, 0)]).await;
}

#[tokio::test]
async fn follows_of_many_partitions_are_all_counted() {
    const FOLLOWS: u64 = 120;
    let system = System::start(Topology::Single).await;
    let ann = id(1);
    each(0..FOLLOWS, |n| system.follow(id(10 + n), ann)).await;
    eventually("the follows are counted", PATIENCE, async || {
        let [notice] = &system.notices(ann).await[..] else { return false };
        notice.acts.len() == 20 && notice.earlier == FOLLOWS - 20
    })
    .await;
}

#[tokio::test]
async fn what_never_counted_is_removed_with_other_old_notices() {
    let mut system = System::start(Topology::Single).await;
    let [ann, bob] = [1, 2].map(id);
    let mut posts = Vec::new();
    for n in 0..10 {
        posts.push(system.publish(ann, &n.to_string()).await);
    }
    system.stop().await;
    for &post in &posts {
        system.like(bob, post).await;
        system.unlike(bob, post).await;
    }
    system.restart().await;
    system.settle(&[ann]).await;
    assert!(system.notices(ann).await.is_empty());
    let count = format!("SELECT count(*) FROM notices WHERE account = {ann}");
    assert_eq!(system.numbers(&count).await, [posts.len() as i64]);
}

#[tokio::test]
async fn an_account_has_its_newest_800_notices_and_mentions() {
    let system = System::start(Topology::Single).await;
    let ann = system.register("ann").await;
    let first = system.publish(id(2), "@ann").await;
    system.settle(&[id(2)]).await;
    each(0..860, async |_| assert_ne!(system.publish(id(3), "@ann").await, first)).await;
    system.settle(&[id(3)]).await;
    let mut mentions = Vec::new();
    let (mut posts, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = pb::ListMentionsRequest { user_id: ann, page_size: 200, page_token };
        let page = system.client.clone().list_mentions(request).await.unwrap().into_inner();
        mentions.extend(page.post_ids);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    loop {
        let request = pb::ListNoticesRequest {
            user_id: ann,
            page_size: 150,
            page_token,
            ..Default::default()
        };
        let page = system.client.clone().list_notices(request).await.unwrap().into_inner();
        posts.extend(page.notices.iter().map(|notice| notice.post_id));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!((mentions.len(), posts.len()), (800, 800));
    assert!(mentions.is_sorted_by(|a, b| a > b), "each once, newest first");
    posts.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(posts, mentions);
    assert!(!mentions.contains(&first));
}

#[tokio::test]
async fn likes_that_come_together_are_applied_together() {
    const LIKES: u64 = 1_500;
    let mut system = System::start(Topology::Single).await;
    let ann = id(1);
    let post = system.publish(ann, "post").await;
    system.settle(&[ann]).await;
    system.stop().await;
    each(0..LIKES, |n| system.like(id(10 + n), post)).await;
    system.restart().await;
    eventually("the likes are applied", PATIENCE, async || {
        let [notice] = &system.notices(ann).await[..] else { return false };
        notice.acts.len() as u64 + notice.earlier == LIKES
    })
    .await;
    // A transaction raises it once.
    let revision = format!("SELECT revision FROM accounts WHERE id = {ann}");
    assert!(system.numbers(&revision).await[0] < 15);
}
