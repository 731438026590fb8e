//! Idempotency keys: a request that is repeated after a crash or a lost answer executes once, and a
//! key that was used for another request is rejected.

use microblog_domain::RequestId;
use microblog_post::{Backlink, BacklinkUpdate, CommentAdmission, Content, Origin, Published};
use microblog_proto::{common::ErrorReason, post as pb};
use microblog_testkit::{Topology, redis};
use tonic::{Code, Status};

use crate::support::{self, System, assert_rejected, id, request_id, timelines::Mode, user};

/// A day, less the time that may have passed.
const KEY_TTL_SECONDS: std::ops::RangeInclusive<i64> = 86_000..=86_400;

async fn create(
    system: &System,
    author: u64,
    request: &str,
    text: &str,
) -> Result<pb::Post, Status> {
    let (request_id, text) = (request.to_owned(), text.to_owned());
    let request = pb::CreatePostRequest { author_id: id(author), request_id, text };
    Ok(system.client.clone().create_post(request).await?.into_inner().post.unwrap())
}

async fn repost(
    system: &System,
    author: u64,
    request: &str,
    post_id: u64,
    text: &str,
) -> Result<pb::Post, Status> {
    let (request_id, text) = (request.to_owned(), text.to_owned());
    let request = pb::RepostRequest { author_id: id(author), request_id, post_id, text };
    Ok(system.client.clone().repost(request).await?.into_inner().post.unwrap())
}

async fn comment(
    system: &System,
    author: u64,
    request: &str,
    post_id: u64,
    text: &str,
    in_reply_to_id: u64,
) -> Result<pb::Comment, Status> {
    let (author_id, request_id, text) = (id(author), request.to_owned(), text.to_owned());
    let request = pb::AddCommentRequest { author_id, request_id, post_id, text, in_reply_to_id };
    Ok(system.client.clone().add_comment(request).await?.into_inner().comment.unwrap())
}

#[track_caller]
fn is_reused<T: std::fmt::Debug>(answer: Result<T, Status>) {
    let status = assert_rejected(answer, Code::InvalidArgument, ErrorReason::RequestIdReused);
    support::names_fields::<()>(Err(status), &["request_id"]);
}

#[track_caller]
fn is_missing<T: std::fmt::Debug>(answer: Result<T, Status>, reason: ErrorReason) {
    assert_rejected(answer, Code::NotFound, reason);
}

fn parsed(request: &str) -> RequestId {
    RequestId::parse("request_id", request).unwrap()
}

/// Publishes a repost without the later steps.
async fn publish(system: &System, request: &str, root: u64) -> (pb::Post, Content) {
    let root = support::post(root);
    let origin = Some(Origin { root, reposted: root });
    let content = Content { author: user(2), text: "again".to_owned(), origin };
    match system.store.publish(&content, parsed(request)).await.unwrap() {
        Published::New(made) => (system.get(made.get(), 0).await.unwrap(), content),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_repeated_request_completes_the_saga() {
    for was_delivered in [false, true] {
        let system = System::start_without_jobs(Topology::Single).await;
        let root = system.create(id(1), "root").await.unwrap();
        let request = request_id();
        let (made, content) = publish(&system, &request, root.id).await;
        if was_delivered {
            // Only its root is not notified.
            system.store.delivered(&[support::post(made.id)]).await.unwrap();
        }
        assert_eq!(system.get(root.id, 0).await.unwrap().reposts, 0);

        let repeated = repost(&system, 2, &request, root.id, &content.text).await.unwrap();
        assert_eq!(repeated.id, made.id);
        assert_eq!(system.get(root.id, 0).await.unwrap().reposts, 1);
        assert_eq!(system.timelines.times(made.id), 1);
        assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
        repost(&system, 2, &request, root.id, &content.text).await.unwrap();
        assert_eq!(system.timelines.times(made.id), 1, "once is enough");
    }
}

#[tokio::test]
async fn a_repeated_request_notifies_the_remaining_targets() {
    for target in 0..2 {
        let system = System::start_without_jobs(Topology::Single).await;
        let root = system.create(id(1), "root").await.unwrap();
        let first = system.repost(id(2), root.id).await.unwrap();
        let [root, first] = [root.id, first.id].map(support::post);
        let origin = Some(Origin { root, reposted: first });
        let content = Content { author: user(3), text: "again".to_owned(), origin };
        let request = request_id();
        let published = system.store.publish(&content, parsed(&request)).await.unwrap();
        let Published::New(repost) = published else { panic!("{published:?}") };
        system.store.delivered(&[repost]).await.unwrap();
        let backlink = Backlink { repost, target: [root, first][target] };
        let change = BacklinkUpdate { backlink, version: repost.get(), exists: true };
        system.store.notify(&[change]).await.unwrap();
        system.store.confirm(&[change]).await.unwrap();

        self::repost(&system, 3, &request, first.get(), &content.text).await.unwrap();
        assert_eq!(system.get(root.get(), 0).await.unwrap().reposts, 2);
        assert_eq!(system.get(first.get(), 0).await.unwrap().reposts, 1);
        assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_repeated_request_delivers_an_undelivered_post() {
    let system = System::start_without_jobs(Topology::Single).await;
    system.timelines.answer(Mode::Unavailable);
    let request = request_id();
    let made = create(&system, 1, &request, "hello").await.unwrap();
    assert_eq!(system.timelines.times(made.id), 0);
    system.timelines.answer(Mode::Ok);
    assert_eq!(create(&system, 1, &request, "hello").await.unwrap(), made);
    assert_eq!(system.timelines.times(made.id), 1);
    assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_request_id_of_a_post_is_rejected_for_another_post() {
    let system = System::start_without_jobs(Topology::Single).await;
    let [root, other] = ["root", "other"].map(|text| system.create(id(1), text));
    let (root, other) = (root.await.unwrap(), other.await.unwrap());
    let [plain, again] = [request_id(), request_id()];
    let made = create(&system, 2, &plain, "hello").await.unwrap();
    let repeated = repost(&system, 2, &again, root.id, "see").await.unwrap();

    is_reused(create(&system, 2, &plain, "bye").await);
    is_reused(repost(&system, 2, &plain, root.id, "hello").await);
    is_reused(repost(&system, 2, &again, root.id, "look").await);
    is_reused(repost(&system, 2, &again, other.id, "see").await);
    is_reused(repost(&system, 2, &again, repeated.id, "see").await);
    is_reused(repost(&system, 2, &again, id(99), "see").await);
    is_reused(create(&system, 2, &again, "see").await);
    let posts = system.store.posts_of(user(2), None, 10).await.unwrap();
    assert_eq!(posts.entries.len(), 2);
    assert_eq!(create(&system, 2, &plain, " hello\r\n").await.unwrap(), made, "the same post");
    // Other accounts may use the same key.
    assert_ne!(create(&system, 3, &plain, "bye").await.unwrap().id, made.id);
    assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_request_id_of_a_comment_is_rejected_for_another_comment() {
    let system = System::start_without_jobs(Topology::Single).await;
    // In one partition, and in different ones.
    let posts = [system.create(id(1), "a"), system.create(id(1), "b"), system.create(id(2), "c")];
    let [a, b, c] =
        <[pb::Post; 3]>::try_from(futures::future::try_join_all(posts).await.unwrap()).unwrap();
    let [first, second] = ["first", "second"].map(|text| system.comment(id(3), a.id, text, 0));
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    let [plain, answer] = [request_id(), request_id()];
    let made = comment(&system, 4, &plain, a.id, "hello", 0).await.unwrap();
    comment(&system, 4, &answer, a.id, "well", first.id).await.unwrap();

    is_reused(comment(&system, 4, &plain, a.id, "bye", 0).await);
    is_reused(comment(&system, 4, &plain, a.id, "hello", first.id).await);
    is_reused(comment(&system, 4, &plain, b.id, "hello", 0).await);
    is_reused(comment(&system, 4, &plain, c.id, "hello", 0).await);
    is_reused(comment(&system, 4, &answer, a.id, "well", 0).await);
    is_reused(comment(&system, 4, &answer, a.id, "well", second.id).await);
    is_reused(comment(&system, 4, &answer, a.id, "well", id(99)).await);
    assert_eq!(system.get(a.id, 0).await.unwrap().comments, 4);
    assert_eq!(comment(&system, 4, &plain, a.id, "hello", 0).await.unwrap(), made);
    assert_ne!(comment(&system, 5, &plain, a.id, "bye", 0).await.unwrap().id, made.id);
    assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_repeated_repost_returns_the_first_one_after_its_target_is_deleted() {
    let system = System::start_without_jobs(Topology::Single).await;
    let root = system.create(id(1), "root").await.unwrap();
    let first = system.repost(id(2), root.id).await.unwrap();
    let request = request_id();
    let made = repost(&system, 3, &request, first.id, "see").await.unwrap();
    system.delete(id(2), first.id).await.unwrap();
    let repeated = repost(&system, 3, &request, first.id, "see").await.unwrap();
    assert_eq!((repeated.id, repeated.root.unwrap().reposts), (made.id, 1));
    is_missing(repost(&system, 4, &request, first.id, "see").await, ErrorReason::PostNotFound);

    system.delete(id(1), root.id).await.unwrap();
    let repeated = repost(&system, 3, &request, first.id, "see").await.unwrap();
    assert_eq!((repeated.id, repeated.root_deleted), (made.id, true));
    is_reused(repost(&system, 3, &request, first.id, "look").await);
}

#[tokio::test]
async fn a_repeated_reply_returns_the_first_one_after_its_comment_is_deleted() {
    let system = System::start_without_jobs(Topology::Single).await;
    let post = system.create(id(1), "discuss").await.unwrap();
    let first = system.comment(id(2), post.id, "first", 0).await.unwrap();
    let request = request_id();
    let made = comment(&system, 3, &request, post.id, "answer", first.id).await.unwrap();
    system.uncomment(id(2), post.id, first.id).await.unwrap();
    let repeated = comment(&system, 3, &request, post.id, "answer", first.id).await.unwrap();
    assert_eq!(repeated, made);
    is_reused(comment(&system, 3, &request, post.id, "question", first.id).await);
    let late = comment(&system, 3, &request_id(), post.id, "answer", first.id).await;
    is_missing(late, ErrorReason::CommentNotFound);
    assert_eq!(system.get(post.id, 0).await.unwrap().comments, 1);
}

#[tokio::test]
async fn a_repeated_request_does_not_recreate_a_deleted_post_or_comment() {
    let system = System::start_without_jobs(Topology::Single).await;
    let post = system.create(id(1), "discuss").await.unwrap();
    let [plain, again, remark] = [request_id(), request_id(), request_id()];
    let made = create(&system, 2, &plain, "hello").await.unwrap();
    let repeated = repost(&system, 2, &again, post.id, "").await.unwrap();
    let said = comment(&system, 2, &remark, post.id, "hello", 0).await.unwrap();
    system.delete(id(2), made.id).await.unwrap();
    system.delete(id(2), repeated.id).await.unwrap();
    system.uncomment(id(2), post.id, said.id).await.unwrap();

    is_missing(create(&system, 2, &plain, "hello").await, ErrorReason::PostNotFound);
    is_missing(repost(&system, 2, &again, post.id, "").await, ErrorReason::PostNotFound);
    let late = comment(&system, 2, &remark, post.id, "hello", 0).await;
    is_missing(late, ErrorReason::CommentNotFound);
    let seen = system.get(post.id, 0).await.unwrap();
    assert_eq!((seen.comments, seen.reposts), (0, 0));
    system.delete(id(1), post.id).await.unwrap();
    let late = comment(&system, 2, &remark, post.id, "hello", 0).await;
    is_missing(late, ErrorReason::PostNotFound);
    assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_repeated_request_adds_a_comment_that_stopped_after_admission() {
    let system = System::start_without_jobs(Topology::Single).await;
    let post = system.create(id(1), "discuss").await.unwrap();
    let request = request_id();
    let on = support::post(post.id);
    let admitted = system.store.admit_comment(on, user(2), parsed(&request)).await.unwrap();
    assert_eq!(admitted, CommentAdmission::Admitted);
    assert_eq!(system.get(post.id, 0).await.unwrap().comments, 0);
    let made = comment(&system, 2, &request, post.id, "hello", 0).await.unwrap();
    assert_eq!(comment(&system, 2, &request, post.id, "hello", 0).await.unwrap(), made);
    assert_eq!(system.get(post.id, 0).await.unwrap().comments, 1);
}

#[tokio::test]
async fn idempotency_keys_expire_after_a_day() {
    let system = System::start_without_jobs(Topology::Single).await;
    let post = system.create(id(1), "discuss").await.unwrap();
    system.comment(id(2), post.id, "hello", 0).await.unwrap();
    let mut admin = system.redis.nodes()[0].admin().await;
    for kind in ["request", "comment_admission", "comment_request"] {
        let pattern = format!("*:{kind}:*");
        let keys: Vec<String> =
            redis::cmd("KEYS").arg(pattern).query_async(&mut admin).await.unwrap();
        let [key] = &keys[..] else { panic!("{keys:?}") };
        let left: i64 = redis::cmd("TTL").arg(key).query_async(&mut admin).await.unwrap();
        assert!(KEY_TTL_SECONDS.contains(&left), "{key}: {left} s");
    }
}
