//! Streams of new notices.

use microblog_proto::notice::{self as pb, NoticeKind};
use microblog_testkit::Topology;
use tokio::time::timeout;
use tonic::Streaming;

use crate::support::{PATIENCE, System, actors, id};

async fn watch(
    system: &System,
    user_id: u64,
    since_token: &str,
) -> Streaming<pb::WatchNoticesResponse> {
    let request = pb::WatchNoticesRequest { user_id, since_token: since_token.to_owned() };
    system.client.clone().watch_notices(request).await.unwrap().into_inner()
}

async fn next(stream: &mut Streaming<pb::WatchNoticesResponse>) -> pb::WatchNoticesResponse {
    timeout(PATIENCE, stream.message()).await.unwrap().unwrap().expect("it has no end")
}

#[tokio::test]
async fn new_notices_are_sent_and_a_stream_resumes_without_a_gap() {
    let system = System::start(Topology::Single).await;
    let [ann, bob, cleo] = [1, 2, 3].map(id);
    let post = system.publish(ann, "post").await;
    system.like(bob, post).await;
    system.settle(&[ann, bob]).await;
    let mut stream = watch(&system, ann, "").await;
    let first = next(&mut stream).await;
    assert!(first.notices.is_empty());
    system.like(cleo, post).await;
    let second = next(&mut stream).await;
    assert_eq!(second.notices.len(), 1);
    assert_eq!(actors(&second.notices[0]), [cleo, bob]);
    let is_new = |notice: &pb::Notice| notice.acts.iter().map(|act| act.is_new).collect::<Vec<_>>();
    assert_eq!(is_new(&second.notices[0]), [true, false]);
    drop(stream);
    system.follow(bob, ann).await;
    system.settle(&[ann, bob]).await;
    let mut stream = watch(&system, ann, &second.since_token).await;
    let kinds = |message: &pb::WatchNoticesResponse| -> Vec<_> {
        message.notices.iter().map(pb::Notice::kind).collect()
    };
    let third = next(&mut stream).await;
    assert_eq!(kinds(&third), [NoticeKind::Follow]);
    let mut again = watch(&system, ann, &first.since_token).await;
    assert_eq!(kinds(&next(&mut again).await), [NoticeKind::Follow, NoticeKind::Like]);
    // The end of an act is no message, and the next one comes.
    system.unlike(cleo, post).await;
    system.settle(&[ann, bob]).await;
    let comment = system.comment(cleo, post, 0, "hi").await;
    let fourth = next(&mut stream).await;
    assert_eq!(
        fourth.notices.iter().map(|notice| notice.comment_id).collect::<Vec<_>>(),
        [comment]
    );
    let request = pb::MarkSeenRequest { user_id: ann, token: fourth.since_token };
    system.client.clone().mark_seen(request).await.unwrap();
    assert!(system.page(ann, &[], true).await.notices.is_empty());
}

/// Reads messages until all of some acts were sent as new ones: by their accounts and times.
async fn until_sent(stream: &mut Streaming<pb::WatchNoticesResponse>, mut expected: Vec<pb::Act>) {
    while !expected.is_empty() {
        let message = next(stream).await;
        let acts = message.notices.iter().flat_map(|notice| &notice.acts);
        for act in acts.filter(|act| act.is_new) {
            expected.retain(|one| (one.actor_id, one.since) != (act.actor_id, act.since));
        }
    }
}

#[tokio::test]
async fn an_act_that_is_undone_and_repeated_while_a_stream_is_open_is_sent() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let [ann, bob] = [1, 2].map(id);
        let post = system.publish(ann, "post").await;
        system.settle(&[ann, bob]).await;
        let mut stream = watch(&system, ann, "").await;
        next(&mut stream).await;
        for _ in 0..3 {
            system.like(bob, post).await;
            system.unlike(bob, post).await;
            system.follow(bob, ann).await;
            system.unfollow(bob, ann).await;
            // The stream may have passed both.
            system.settle(&[ann, bob]).await;
            assert!(system.notices(ann).await.is_empty());
            system.like(bob, post).await;
            system.follow(bob, ann).await;
            system.settle(&[ann, bob]).await;
            let unread = system.page(ann, &[], true).await.notices;
            assert_eq!(unread.len(), 2);
            until_sent(&mut stream, unread.iter().map(|notice| notice.acts[0]).collect()).await;
            system.unlike(bob, post).await;
            system.unfollow(bob, ann).await;
            system.settle(&[ann, bob]).await;
        }
    }
}

#[tokio::test]
async fn a_stream_goes_on_without_the_cache() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let ann = id(1);
        let post = system.publish(ann, "post").await;
        system.settle(&[ann]).await;
        system.caches().await;
        let mut stream = watch(&system, ann, "").await;
        next(&mut stream).await;
        // Each new act is sent once.
        let mut is_sent = async |actor| {
            let message = next(&mut stream).await;
            let acts = message.notices.iter().flat_map(|notice| &notice.acts);
            let new = acts.filter(|act| act.is_new).map(|act| act.actor_id);
            assert_eq!(new.collect::<Vec<_>>(), [actor]);
        };
        for actor in (10..16).map(id) {
            system.flush().await;
            system.like(actor, post).await;
            is_sent(actor).await;
        }
        for node in system.redis.nodes() {
            node.pause();
        }
        for actor in (16..18).map(id) {
            system.like(actor, post).await;
            is_sent(actor).await;
        }
        for node in system.redis.nodes() {
            node.resume();
        }
        system.like(id(18), post).await;
        is_sent(id(18)).await;
    }
}

#[tokio::test]
async fn many_new_notices_take_several_messages_of_which_the_last_has_the_token() {
    let system = System::start(Topology::Single).await;
    let [ann, bob] = [1, 2].map(id);
    let post = system.publish(ann, "post").await;
    system.settle(&[ann]).await;
    let before = system.page(ann, &[], false).await.seen_token;
    let mut comments = Vec::new();
    for _ in 0..230 {
        comments.push(system.comment(bob, post, 0, "hi").await);
    }
    system.settle(&[ann]).await;
    let mut stream = watch(&system, ann, &before).await;
    let (first, second) = (next(&mut stream).await, next(&mut stream).await);
    assert_eq!((first.notices.len(), second.notices.len()), (200, 30));
    // Interrupted after the first one, a stream sends all again.
    let mut again = watch(&system, ann, &first.since_token).await;
    assert_eq!(next(&mut again).await.notices, first.notices);
    let mut found: Vec<_> =
        [first.notices, second.notices].concat().iter().map(|notice| notice.comment_id).collect();
    found.reverse();
    assert_eq!(found, comments);
    let mut stream = watch(&system, ann, &second.since_token).await;
    assert!(next(&mut stream).await.notices.is_empty());
    // The token of some kinds is none of all.
    let some = system.page(ann, &[NoticeKind::Like], false).await.seen_token;
    let request = pb::WatchNoticesRequest { user_id: ann, since_token: some };
    let status = system.client.clone().watch_notices(request).await.unwrap_err();
    let reason = microblog_chassis::status::reason_of(&status);
    assert_eq!(reason, Some(microblog_proto::common::ErrorReason::PageTokenMismatch));
}
