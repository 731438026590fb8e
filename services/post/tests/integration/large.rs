//! The longest texts: a page ends where it would exceed a message, and the next continues there.

use futures::future::join_all;
use microblog_proto::post as pb;
use microblog_testkit::Topology::Single;

use crate::support::{System, id, lists::List, request_id};

/// The most bytes of 2,000 characters: a page of 200 of them would have 13 MiB.
fn longest() -> String {
    "👩🏻\u{200d}❤\u{fe0f}\u{200d}💋\u{200d}👨🏿".repeat(2_000)
}

#[tokio::test]
async fn lists_of_the_longest_texts_can_be_read_to_their_end() {
    const ENTRIES: u64 = 50;
    let system = System::start(Single).await;
    let text = longest();
    let root = system.create(id(1), &text).await.unwrap();
    assert_eq!(root.text.len(), 70_000);
    let comments = (0..ENTRIES).map(|n| system.comment(id(10 + n), root.id, &text, 0));
    let comments: Vec<_> =
        join_all(comments).await.into_iter().map(|comment| comment.unwrap().id).collect();
    // All by one author, so that its list has them, each with its root.
    let reposts = (0..ENTRIES).map(|_| {
        let request = pb::RepostRequest {
            author_id: id(2),
            request_id: request_id(),
            post_id: root.id,
            text: text.clone(),
        };
        let mut client = system.client.clone();
        async move { client.repost(request).await.unwrap().into_inner().post.unwrap().id }
    });
    let mut reposts = join_all(reposts).await;
    reposts.sort_unstable_by_key(|&repost| std::cmp::Reverse(repost));

    for list in [List::Reposts(root.id), List::UserPosts(id(2))] {
        assert_eq!(list.whole(&system.client, 200).await, reposts, "{list:?}");
        assert!(list.page(&system.client, 200, "").await.unwrap().0.len() < reposts.len());
    }
    let mut oldest = comments;
    oldest.sort_unstable();
    assert_eq!(List::oldest(root.id).whole(&system.client, 200).await, oldest);
    oldest.reverse();
    assert_eq!(List::newest(root.id).whole(&system.client, 200).await, oldest);
    // Small entries are not truncated.
    join_all((0..200).map(|n| system.like(id(1_000 + n), root.id))).await;
    let (page, next) = List::Likers(root.id).page(&system.client, 200, "").await.unwrap();
    assert_eq!((page.len(), next.as_str()), (200, ""));
}
