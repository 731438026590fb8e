//! The saga of posts: what a stop between two steps leaves, what the sweeper completes, and what
//! late steps do.

use std::time::Duration;

use microblog_chassis::Peer;
use microblog_domain::{CommentId, PostId, RequestId, UserId};
use microblog_post::{
    AddedComment, Backlink, BacklinkUpdate, CommentContent, Content, Delivery, Origin, Published,
    Reply, Sweeper,
};
use microblog_testkit::{Topology, redis};

use crate::support::{self, System, id, timelines::Mode, user};

async fn sweep(system: &System) {
    let config = support::config(&system.redis.url("post"), &[]);
    let peer = Peer::local(&system.timelines.service(), &config.chassis);
    let delivery = Delivery::new(system.store.clone(), Some(peer));
    let mut sweeper = Sweeper::new(support::tiered(&system.store), delivery);
    sweeper.notify_targets(Duration::ZERO).await.unwrap();
    sweeper.deliver(Duration::ZERO).await.unwrap();
}

async fn has_no_violations(system: &System) {
    assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
}

async fn reposts(system: &System, post_id: u64) -> u64 {
    system.get(post_id, 0).await.unwrap().reposts
}

/// The number of pending reposts and of undelivered posts.
async fn backlog_lengths(system: &System, author: UserId) -> [u64; 2] {
    let [pending, outbox, ..] = system.store.backlogs(author.partition()).await.unwrap();
    [pending, outbox]
}

fn content(author: UserId, root: u64, reposted: u64) -> Content {
    let [root, reposted] = [root, reposted].map(support::post);
    Content { author, text: "again".to_owned(), origin: Some(Origin { root, reposted }) }
}

fn changes(id: PostId, content: &Content, version: u64, exists: bool) -> Vec<BacklinkUpdate> {
    let change =
        |target| BacklinkUpdate { backlink: Backlink { repost: id, target }, version, exists };
    content.counted_by().map(change).collect()
}

/// Publishes a repost without the later steps.
async fn publish(system: &System, content: &Content) -> PostId {
    let request = RequestId::parse("request_id", &support::request_id()).unwrap();
    match system.store.publish(content, request).await.unwrap() {
        Published::New(id) => id,
        other => panic!("{other:?}"),
    }
}

/// Deletes a post without the later steps.
async fn delete(system: &System, id: PostId, content: &Content) -> Vec<BacklinkUpdate> {
    let version = system.store.delete(&support::deletion(id, content)).await.unwrap().unwrap();
    changes(id, content, version, false)
}

/// Returns the keys that match a pattern, without their partition, sorted.
async fn keys(system: &System, pattern: &str) -> Vec<String> {
    let mut keys = Vec::new();
    for node in system.redis.nodes() {
        let mut admin = node.admin().await;
        let found: Vec<String> =
            redis::cmd("KEYS").arg(pattern).query_async(&mut admin).await.unwrap();
        keys.extend(found.iter().map(|key| key.split_once("}:").unwrap().1.to_owned()));
    }
    keys.sort();
    keys
}

#[tokio::test]
async fn the_sweeper_completes_a_repost_that_stopped_after_its_write() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start_without_jobs(topology).await;
        let root = system.create(id(1), "root").await.unwrap();
        let first = publish(&system, &content(user(2), root.id, root.id)).await;
        let second = publish(&system, &content(user(3), root.id, first.get())).await;
        assert_eq!(reposts(&system, root.id).await, 0);
        assert_eq!(backlog_lengths(&system, user(2)).await, [1, 1]);
        assert_eq!(
            backlog_lengths(&system, user(3)).await,
            [2, 1],
            "its root, and what it reposts"
        );

        sweep(&system).await;
        assert_eq!(reposts(&system, root.id).await, 2);
        assert_eq!(reposts(&system, first.get()).await, 1);
        for post in [first, second] {
            let heard = system.timelines.deliveries();
            let heard: Vec<_> = heard.iter().filter(|heard| heard.post_id == post.get()).collect();
            let [heard] = heard[..] else { panic!("{heard:?}") };
            assert_eq!(heard.root_id, root.id);
        }
        has_no_violations(&system).await;
    }
}

#[tokio::test]
async fn a_repost_that_is_notified_twice_counts_once() {
    let system = System::start_without_jobs(Topology::Single).await;
    let root = system.create(id(1), "root").await.unwrap();
    let content = content(user(2), root.id, root.id);
    let repost = publish(&system, &content).await;
    let came = changes(repost, &content, repost.get(), true);
    for _ in 0..2 {
        system.store.notify(&came).await.unwrap();
        assert_eq!(reposts(&system, root.id).await, 1);
    }
    let went = delete(&system, repost, &content).await;
    for _ in 0..2 {
        system.store.notify(&went).await.unwrap();
        assert_eq!(reposts(&system, root.id).await, 0);
    }
    system.store.confirm(&went).await.unwrap();
    has_no_violations(&system).await;
}

#[tokio::test]
async fn a_late_notification_does_not_bring_a_deleted_repost_back() {
    for was_notified_before in [true, false] {
        let system = System::start_without_jobs(Topology::Single).await;
        let root = system.create(id(1), "root").await.unwrap();
        let content = content(user(2), root.id, root.id);
        let repost = publish(&system, &content).await;
        let came = changes(repost, &content, repost.get(), true);
        if was_notified_before {
            system.store.notify(&came).await.unwrap();
            system.store.confirm(&came).await.unwrap();
        }
        system.delete(id(2), repost.get()).await.unwrap();

        system.store.notify(&came).await.unwrap();
        system.store.confirm(&came).await.unwrap();
        assert_eq!(reposts(&system, root.id).await, 0);
        has_no_violations(&system).await;

        let key = format!("post:{{{}}}:repost_tombstones:{}", user(1).partition(), root.id);
        let mut admin = system.redis.nodes()[0].admin().await;
        let ttl: i64 = redis::cmd("TTL").arg(key).query_async(&mut admin).await.unwrap();
        assert!((86_000..=86_400).contains(&ttl), "not for a day, but {ttl} s");
    }
}

#[tokio::test]
async fn tombstones_of_reposts_expire_after_a_day() {
    let system = System::start_without_jobs(Topology::Single).await;
    let root = system.create(id(1), "root").await.unwrap();
    let repost = system.repost(id(2), root.id).await.unwrap();
    let key = format!("post:{{{}}}:repost_tombstones:{}", user(1).partition(), root.id);
    let mut admin = system.redis.nodes()[0].admin().await;
    let old = redis::cmd("ZADD").arg(&key).arg(1).arg(id(98)).arg(2).arg(id(99)).take();
    old.exec_async(&mut admin).await.unwrap();
    system.delete(id(2), repost.id).await.unwrap();
    let all = redis::cmd("ZRANGE").arg(&key).arg(0).arg(-1).take();
    let left: Vec<u64> = all.query_async(&mut admin).await.unwrap();
    assert_eq!(left, [repost.id]);
}

#[tokio::test]
async fn the_sweeper_completes_a_deletion_that_stopped_after_its_write() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start_without_jobs(topology).await;
        let root = system.create(id(1), "root").await.unwrap();
        let first = system.repost(id(2), root.id).await.unwrap();
        let second = system.repost(id(3), first.id).await.unwrap();
        let content = content(user(3), root.id, first.id);
        delete(&system, support::post(second.id), &content).await;
        assert_eq!(reposts(&system, root.id).await, 2);
        assert_eq!(backlog_lengths(&system, user(3)).await, [2, 0]);

        // The caller did not get the answer, and repeats the call.
        system.delete(id(3), second.id).await.unwrap();
        sweep(&system).await;
        assert_eq!(reposts(&system, root.id).await, 1);
        assert_eq!(reposts(&system, first.id).await, 0);
        has_no_violations(&system).await;
    }
}

#[tokio::test]
async fn a_concurrent_deletion_completes_the_notifications_of_the_other() {
    let system = System::start_without_jobs(Topology::Single).await;
    let root = system.create(id(1), "root").await.unwrap();
    let first = system.repost(id(2), root.id).await.unwrap();
    let second = system.repost(id(3), first.id).await.unwrap();
    let (repost, content) = (support::post(second.id), content(user(3), root.id, first.id));
    let went = delete(&system, repost, &content).await;
    // The other call saw the post before. One of two posts may be notified by then.
    for notified in [&went[..0], &went[..1]] {
        system.store.notify(notified).await.unwrap();
        system.store.confirm(notified).await.unwrap();
        assert_eq!(delete(&system, repost, &content).await, went);
    }
    system.store.notify(&went).await.unwrap();
    system.store.confirm(&went).await.unwrap();
    assert_eq!(system.store.delete(&support::deletion(repost, &content)).await.unwrap(), None);
    assert_eq!(reposts(&system, root.id).await, 1);
    assert_eq!(reposts(&system, first.id).await, 0);
    has_no_violations(&system).await;
}

#[tokio::test]
async fn a_late_confirmation_of_a_repost_keeps_its_deletion_pending() {
    let system = System::start_without_jobs(Topology::Single).await;
    let root = system.create(id(1), "root").await.unwrap();
    let content = content(user(2), root.id, root.id);
    let repost = publish(&system, &content).await;
    let came = changes(repost, &content, repost.get(), true);
    system.store.notify(&came).await.unwrap();
    let went = delete(&system, repost, &content).await;

    system.store.confirm(&came).await.unwrap();
    assert_eq!(backlog_lengths(&system, user(2)).await, [1, 0]);
    system.store.notify(&went).await.unwrap();
    system.store.confirm(&went).await.unwrap();
    assert_eq!(backlog_lengths(&system, user(2)).await, [0, 0]);
    has_no_violations(&system).await;
}

#[tokio::test]
async fn a_post_deleted_before_its_delivery_leaves_the_outbox() {
    let system = System::start_without_jobs(Topology::Single).await;
    system.timelines.answer(Mode::Unavailable);
    let post = system.create(id(1), "hasty").await.unwrap();
    assert_eq!(backlog_lengths(&system, user(1)).await, [0, 1]);
    system.delete(id(1), post.id).await.unwrap();
    assert_eq!(backlog_lengths(&system, user(1)).await, [0, 0]);
    system.timelines.answer(Mode::Ok);
    sweep(&system).await;
    assert_eq!(system.timelines.times(post.id), 0);
    has_no_violations(&system).await;
}

#[tokio::test]
async fn a_repost_of_a_deleted_root_leaves_no_keys_in_the_roots_partition() {
    let system = System::start_without_jobs(Topology::Single).await;
    let root = system.create(id(1), "root").await.unwrap();
    // The root is deleted just after the repost's author read it.
    let content = content(user(2), root.id, root.id);
    system.delete(id(1), root.id).await.unwrap();
    let repost = publish(&system, &content).await;
    sweep(&system).await;
    assert_eq!(keys(&system, &format!("*:{}", root.id)).await, Vec::<String>::new());
    assert!(system.get(repost.get(), 0).await.unwrap().root_deleted);
    has_no_violations(&system).await;

    system.delete(id(2), repost.get()).await.unwrap();
    assert_eq!(keys(&system, &format!("*:{}", root.id)).await, Vec::<String>::new());
    has_no_violations(&system).await;
}

#[tokio::test]
async fn a_deleted_post_leaves_only_idempotency_keys_and_its_delivery() {
    let system = System::start_without_jobs(Topology::Single).await;
    let post = system.create(id(1), "rich").await.unwrap();
    system.like(id(2), post.id).await.unwrap();
    let comment = system.comment(id(2), post.id, "first", 0).await.unwrap();
    system.comment(id(3), post.id, "answer", comment.id).await.unwrap();
    let first = system.repost(id(2), post.id).await.unwrap();
    let second = system.repost(id(3), post.id).await.unwrap();
    system.delete(id(2), first.id).await.unwrap();
    let of_post = keys(&system, &format!("*:{}", post.id)).await;
    let kinds: Vec<_> = of_post.iter().map(|key| key.split_once(':').unwrap().0).collect();
    let expected = ["comment_bodies", "comments", "likes", "post", "repost_tombstones", "reposts"];
    assert_eq!(kinds, expected);

    system.delete(id(1), post.id).await.unwrap();
    system.delete(id(3), second.id).await.unwrap();
    let kinds: Vec<_> = keys(&system, "*").await;
    let kinds: Vec<_> = kinds.iter().map(|key| key.split(':').next().unwrap()).collect();
    let expected = [
        &["authors"; 3][..],
        // Each partition has `clock` and `clock:rests`.
        &["clock"; 6],
        &["comment_admission"; 2],
        &["comment_request"; 2],
        // For a day.
        &["delivered"; 3],
        &["request"; 3],
    ];
    assert_eq!(kinds, expected.concat());
    has_no_violations(&system).await;
}

#[tokio::test]
async fn a_comment_is_rejected_if_its_post_or_comment_was_deleted_meanwhile() {
    let system = System::start_without_jobs(Topology::Single).await;
    let post = system.create(id(1), "discuss").await.unwrap();
    let first = system.comment(id(2), post.id, "first", 0).await.unwrap();
    let on = support::post(post.id);
    let reply = Reply { to: CommentId::new(first.id).unwrap(), author: user(2) };
    let content =
        |in_reply_to| CommentContent { author: user(3), text: "answer".to_owned(), in_reply_to };
    let add = async |in_reply_to| {
        let request = RequestId::parse("request_id", &support::request_id()).unwrap();
        system.store.add_comment(on, &content(in_reply_to), request).await.unwrap()
    };
    system.uncomment(id(2), post.id, first.id).await.unwrap();
    assert_eq!(add(Some(reply)).await, AddedComment::CommentNotFound);
    system.delete(id(1), post.id).await.unwrap();
    assert_eq!(add(Some(reply)).await, AddedComment::PostNotFound);
    assert_eq!(add(None).await, AddedComment::PostNotFound);
    assert_eq!(keys(&system, &format!("*:{}", post.id)).await, Vec::<String>::new());
}

#[tokio::test]
async fn counts_of_zero_are_not_stored() {
    let system = System::start_without_jobs(Topology::Single).await;
    let post = system.create(id(1), "fleeting").await.unwrap();
    system.like(id(2), post.id).await.unwrap();
    let comment = system.comment(id(2), post.id, "first", 0).await.unwrap();
    let repost = system.repost(id(2), post.id).await.unwrap();
    let key = format!("post:{{{}}}:post:{}", user(1).partition(), post.id);
    let fields = async || -> u64 {
        let mut admin = system.redis.nodes()[0].admin().await;
        redis::cmd("HLEN").arg(&key).query_async(&mut admin).await.unwrap()
    };
    assert_eq!(fields().await, 4);
    system.unlike(id(2), post.id).await.unwrap();
    system.uncomment(id(2), post.id, comment.id).await.unwrap();
    system.delete(id(2), repost.id).await.unwrap();
    assert_eq!(fields().await, 1, "what it says");
}

#[tokio::test]
async fn ids_grow_after_the_machines_clock_went_back() {
    let system = System::start_without_jobs(Topology::Single).await;
    let first = system.create(id(1), "first").await.unwrap();
    // As if the last stamp had been issued by a clock a minute ahead of now.
    let key = format!("post:{{{}}}:clock", user(1).partition());
    let mut admin = system.redis.nodes()[0].admin().await;
    let last: u64 = redis::cmd("GET").arg(&key).query_async(&mut admin).await.unwrap();
    let ahead = last + 60_000 * 4;
    let () = redis::cmd("SET").arg(&key).arg(ahead).query_async(&mut admin).await.unwrap();

    let second = system.create(id(1), "second").await.unwrap();
    let third = system.repost(id(1), second.id).await.unwrap();
    assert!(first.id < second.id && second.id < third.id);
    system.comment(id(2), third.id, "fourth", 0).await.unwrap();
    let last: u64 = redis::cmd("GET").arg(&key).query_async(&mut admin).await.unwrap();
    assert_eq!(last, ahead + 3, "two posts and a comment");
    has_no_violations(&system).await;
}
