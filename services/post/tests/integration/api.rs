//! Black-box tests: real gRPC, real Redis.

use std::time::Duration;

use microblog_proto::{common::ErrorReason, post as pb};
use microblog_testkit::Topology;
use tonic::Code;

use crate::support::{self, System, assert_rejected, id, names_fields, request_id};

#[tokio::test]
async fn a_post_is_read_as_it_was_written() {
    let system = System::start(Topology::Single).await;
    let made = system.create(id(1), "  hello @bob,\r\nthis is #micro blog#  ").await.unwrap();
    assert_eq!(made.text, "hello @bob,\nthis is #micro blog#");
    assert_eq!(made.author_id, id(1));
    assert_eq!(made.created_at, Some(support::post(made.id).created_at().into()));
    let found: Vec<_> = made.entities.iter().map(|e| (e.start, e.end)).collect();
    assert_eq!(found, [(6, 10), (20, 32)]);
    assert_eq!(system.get(made.id, 0).await.unwrap(), made);
    assert_eq!(system.timelines.times(made.id), 1);
    system.settles().await;
}

#[tokio::test]
async fn likes_are_counted_and_listed_newest_first() {
    let system = System::start(Topology::Single).await;
    let post = system.create(id(1), "like me").await.unwrap();
    for n in 2..=4 {
        assert_eq!(system.like(id(n), post.id).await.unwrap(), n - 1);
        // Likes with equal stamps have no particular order.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(system.like(id(2), post.id).await.unwrap(), 3, "a like counts once");
    let request =
        pb::ListLikersRequest { post_id: post.id, page_size: 2, page_token: String::new() };
    let first = system.client.clone().list_likers(request.clone()).await.unwrap().into_inner();
    assert_eq!(first.likes.iter().map(|l| l.user_id).collect::<Vec<_>>(), [id(4), id(3)]);
    let request = pb::ListLikersRequest { page_token: first.next_page_token, ..request };
    let second = system.client.clone().list_likers(request).await.unwrap().into_inner();
    assert_eq!(second.likes.iter().map(|l| l.user_id).collect::<Vec<_>>(), [id(2)]);
    assert_eq!(second.next_page_token, "");
    assert!(system.get(post.id, id(3)).await.unwrap().liked);
    assert_eq!(system.unlike(id(3), post.id).await.unwrap(), 2);
    assert_eq!(system.unlike(id(3), post.id).await.unwrap(), 2);
    assert!(!system.get(post.id, id(3)).await.unwrap().liked);
    system.settles().await;
}

#[tokio::test]
async fn a_repost_is_counted_by_its_root_and_by_the_one_reposted() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let root = system.create(id(1), "root").await.unwrap();
        let first = system.repost(id(2), root.id).await.unwrap();
        let second = system.repost(id(3), first.id).await.unwrap();
        assert_eq!((second.root_id, second.reposted_id), (root.id, first.id));
        assert_eq!(second.root.as_ref().unwrap().reposts, 2);
        assert_eq!(system.get(first.id, 0).await.unwrap().reposts, 1);
        system.delete(id(3), second.id).await.unwrap();
        assert_eq!(system.get(root.id, 0).await.unwrap().reposts, 1);
        assert_eq!(system.get(first.id, 0).await.unwrap().reposts, 0);
        system.delete(id(1), root.id).await.unwrap();
        let orphan = system.get(first.id, 0).await.unwrap();
        assert!(orphan.root_deleted && orphan.root.is_none() && orphan.root_id == root.id);
        assert_rejected(
            system.repost(id(4), first.id).await,
            Code::NotFound,
            ErrorReason::PostNotFound,
        );
        system.settles().await;
    }
}

#[tokio::test]
async fn comments_are_listed_either_way_and_go_with_the_post() {
    let system = System::start(Topology::Single).await;
    let post = system.create(id(1), "discuss").await.unwrap();
    let first = system.comment(id(2), post.id, "first @ann", 0).await.unwrap();
    let answer = system.comment(id(3), post.id, "answer", first.id).await.unwrap();
    assert_eq!((answer.in_reply_to_id, answer.in_reply_to_author_id), (first.id, id(2)));
    let list = |order: pb::CommentOrder| {
        let mut client = system.client.clone();
        async move {
            let request = pb::ListCommentsRequest {
                post_id: post.id,
                order: order.into(),
                ..Default::default()
            };
            client.list_comments(request).await.unwrap().into_inner().comments
        }
    };
    assert_eq!(list(pb::CommentOrder::Unspecified).await, [first.clone(), answer.clone()]);
    assert_eq!(list(pb::CommentOrder::NewestFirst).await, [answer.clone(), first.clone()]);
    assert_rejected(
        system.uncomment(id(3), post.id, first.id).await,
        Code::PermissionDenied,
        ErrorReason::NotTheAuthor,
    );
    system.uncomment(id(2), post.id, first.id).await.unwrap();
    system.uncomment(id(2), post.id, first.id).await.unwrap();
    system.uncomment(id(1), post.id, answer.id).await.unwrap();
    assert_eq!(system.get(post.id, 0).await.unwrap().comments, 0);
    system.settles().await;
    system.delete(id(1), post.id).await.unwrap();
    assert_rejected(
        system.comment(id(2), post.id, "late", 0).await,
        Code::NotFound,
        ErrorReason::PostNotFound,
    );
}

#[tokio::test]
async fn every_invalid_field_is_named_at_once() {
    let system = System::start(Topology::Single).await;
    let request = pb::AddCommentRequest {
        author_id: 0,
        request_id: "7".to_owned(),
        post_id: 1 << 53,
        text: " \u{200b} ".to_owned(),
        in_reply_to_id: u64::MAX,
    };
    let fields = ["author_id", "request_id", "post_id", "text", "in_reply_to_id"];
    names_fields(system.client.clone().add_comment(request).await, &fields);
    names_fields(system.create(id(1), &"x".repeat(2_001)).await, &["text"]);
    names_fields(system.create(id(1), "").await, &["text"]);
    names_fields(system.create(id(1), "a\0b").await, &["text"]);
    let longest = "👩‍👩‍👧".repeat(600) + &"x".repeat(1_400);
    assert_eq!(system.create(id(1), &longest).await.unwrap().text, longest);
    let request = pb::RepostRequest {
        author_id: id(1),
        request_id: request_id(),
        post_id: id(99),
        text: String::new(),
    };
    assert_rejected(
        system.client.clone().repost(request).await,
        Code::NotFound,
        ErrorReason::PostNotFound,
    );
    assert_rejected(system.like(id(1), id(99)).await, Code::NotFound, ErrorReason::PostNotFound);
}
