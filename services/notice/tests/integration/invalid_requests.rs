//! Requests that are rejected.

use microblog_proto::{common::ErrorReason, notice as pb};
use microblog_testkit::Topology;
use tonic::Code;

use crate::support::{System, assert_invalid_field, id};

#[tokio::test]
async fn invalid_fields_are_named() {
    let system = System::start(Topology::Single).await;
    let mut client = system.client.clone();
    let list = |user_id, kinds: &[i32], page_size| pb::ListNoticesRequest {
        user_id,
        kinds: kinds.to_vec(),
        page_size,
        ..Default::default()
    };
    assert_invalid_field(client.list_notices(list(0, &[], 0)).await, "user_id");
    assert_invalid_field(client.list_notices(list(1, &[1, 9], 0)).await, "kinds[1]");
    assert_invalid_field(client.list_notices(list(1, &[0], 0)).await, "kinds[0]");
    assert_invalid_field(client.list_notices(list(1, &[1; 8], 0)).await, "kinds");
    assert_invalid_field(client.list_notices(list(1, &[], -1)).await, "page_size");
    let mentions = pb::ListMentionsRequest::default();
    assert_invalid_field(client.list_mentions(mentions).await, "user_id");
    let seen = pb::MarkSeenRequest { user_id: id(1), token: String::new() };
    assert_invalid_field(client.mark_seen(seen).await, "token");
    let watch = pb::WatchNoticesRequest::default();
    assert_invalid_field(client.watch_notices(watch).await, "user_id");
}

#[tokio::test]
async fn tokens_are_valid_for_their_list_only() {
    let system = System::start(Topology::Single).await;
    let [ann, bob] = [1, 2].map(id);
    let posts = [system.publish(ann, "1").await, system.publish(ann, "2").await];
    for post in posts {
        system.like(bob, post).await;
    }
    system.settle(&[ann]).await;
    let mut client = system.client.clone();
    let list = pb::ListNoticesRequest { user_id: ann, page_size: 1, ..Default::default() };
    let page = client.list_notices(list.clone()).await.unwrap().into_inner();
    let page_token = page.next_page_token;
    assert!(!page_token.is_empty() && !page.seen_token.is_empty());
    let next = pb::ListNoticesRequest { page_token: page_token.clone(), ..list.clone() };
    let next = client.list_notices(next).await.unwrap().into_inner();
    assert_eq!((next.notices[0].post_id, next.seen_token.as_str()), (posts[0], ""));
    for other in [
        pb::ListNoticesRequest { user_id: bob, ..list.clone() },
        pb::ListNoticesRequest { kinds: vec![1], ..list.clone() },
        pb::ListNoticesRequest { unseen: true, ..list.clone() },
    ] {
        let other = pb::ListNoticesRequest { page_token: page_token.clone(), ..other };
        let status = client.list_notices(other).await.unwrap_err();
        let reason = microblog_chassis::status::reason_of(&status);
        assert_eq!(
            (status.code(), reason),
            (Code::InvalidArgument, Some(ErrorReason::PageTokenMismatch))
        );
    }
    let seen = pb::MarkSeenRequest { user_id: bob, token: page.seen_token };
    let status = client.mark_seen(seen).await.unwrap_err();
    let reason = microblog_chassis::status::reason_of(&status);
    assert_eq!(reason, Some(ErrorReason::PageTokenMismatch));
}
