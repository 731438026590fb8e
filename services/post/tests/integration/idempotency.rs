//! Idempotency keys: a request that is repeated after a crash or a lost answer executes once, and a
//! key that was used for another request is rejected.

use microblog_proto::{common::ErrorReason, post as pb};
use microblog_testkit::{self as testkit, Topology};
use tonic::{Code, Status};

use crate::support::{
    self, PATIENCE, System, assert_rejected, id, lists::List, request_id, timelines::Mode,
};

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

#[tokio::test]
async fn a_repeated_request_delivers_an_undelivered_post() {
    let system = System::start(Topology::Single).await;
    system.timelines.answer(Mode::Unavailable);
    let request = request_id();
    let made = create(&system, 1, &request, "hello").await.unwrap();
    assert_eq!(system.timelines.times(made.id), 0);
    system.timelines.answer(Mode::Ok);
    assert_eq!(create(&system, 1, &request, "hello").await.unwrap(), made);
    assert_eq!(system.timelines.times(made.id), 1);
    system.settles().await;
}

#[tokio::test]
async fn a_request_id_of_a_post_is_rejected_for_another_post() {
    let system = System::start(Topology::Single).await;
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
    assert_eq!(List::UserPosts(id(2)).whole(&system.client, 20).await.len(), 2);
    assert_eq!(create(&system, 2, &plain, " hello\r\n").await.unwrap(), made, "the same post");
    // Other accounts may use the same key.
    assert_ne!(create(&system, 3, &plain, "bye").await.unwrap().id, made.id);
    system.settles().await;
}

#[tokio::test]
async fn a_request_id_of_a_comment_is_rejected_for_another_comment() {
    let system = System::start(Topology::Single).await;
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
    system.settles().await;
}

#[tokio::test]
async fn a_repeated_repost_returns_the_first_one_after_its_target_is_deleted() {
    let system = System::start(Topology::Single).await;
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
    let system = System::start(Topology::Single).await;
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
    let system = System::start(Topology::Single).await;
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
    system.settles().await;
}

/// Rows that are a day old are removed, and an id of that time is one of a new request before.
#[tokio::test]
async fn requests_are_known_for_a_day() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let post = system.create(id(1), "discuss").await.unwrap();
        let [plain, remark] = [request_id(), request_id()];
        let made = create(&system, 2, &plain, "hello").await.unwrap();
        let said = comment(&system, 2, &remark, post.id, "hello", 0).await.unwrap();
        assert_eq!(system.rows("requests").await, 3);
        let age = |hours: u64| format!("UPDATE requests SET made = made - {}", hours * 3_600_000);
        system.execute(&age(23)).await;
        assert_eq!(create(&system, 2, &plain, "hello").await.unwrap().id, made.id);
        assert_eq!(comment(&system, 2, &remark, post.id, "hello", 0).await.unwrap(), said);
        system.execute(&age(2)).await;
        assert_ne!(create(&system, 2, &plain, "hello").await.unwrap().id, made.id);
        assert_ne!(comment(&system, 2, &remark, post.id, "hello", 0).await.unwrap().id, said.id);
        // The first one is the only one that was not used again.
        testkit::eventually("old requests are removed", PATIENCE, async || {
            system.rows("requests").await == 2
        })
        .await;
    }
}

/// The same id may be that of a post and of a comment, and of different accounts.
#[tokio::test]
async fn ids_of_posts_and_comments_are_apart() {
    let system = System::start(Topology::Single).await;
    let request = request_id();
    let post = create(&system, 1, &request, "hello").await.unwrap();
    let said = comment(&system, 1, &request, post.id, "hello", 0).await.unwrap();
    assert_eq!(create(&system, 1, &request, "hello").await.unwrap().id, post.id);
    assert_eq!(comment(&system, 1, &request, post.id, "hello", 0).await.unwrap(), said);
}
