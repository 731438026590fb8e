//! Errors of calls about a post. Each names its field.

use microblog_domain::Scope;
use microblog_proto::{common::ErrorReason, gateway};
use tonic::Code;

use crate::{
    actions::request_id,
    errors::{TOKEN_INVALID, TOKEN_MISSING, assert_error, invalid},
    system::{System, with_token},
};

/// Expands to a check for each call with a post.
macro_rules! calls_on_a_post {
    ($check:ident) => {
        $check!(optional, view_post, ViewPostRequest);
        $check!(optional, view_likers, ViewLikersRequest);
        $check!(optional, view_comments, ViewCommentsRequest);
        $check!(optional, view_reposts, ViewRepostsRequest);
        $check!(required, like, LikeRequest);
        $check!(required, unlike, UnlikeRequest);
        $check!(required, delete_post, DeletePostRequest);
        $check!(written, repost, RepostRequest);
        $check!(written, comment, CommentRequest);
        $check!(deleted, delete_comment, DeleteCommentRequest);
    };
}

/// Expands to a request that is valid except for its post.
macro_rules! request {
    (written, $request:ident, $post_id:expr) => {{
        let (request_id, text) = (request_id(), "hello".to_owned());
        gateway::$request { request_id, post_id: $post_id, text, ..Default::default() }
    }};
    (deleted, $request:ident, $post_id:expr) => {
        gateway::$request { post_id: $post_id, comment_id: 12 }
    };
    ($kind:ident, $request:ident, $post_id:expr) => {
        gateway::$request { post_id: $post_id, ..Default::default() }
    };
}

#[tokio::test]
async fn a_missing_or_invalid_token_is_rejected() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let post = system.publish(&ann, "hello").await.id;
    macro_rules! check {
        (missing, optional, $method:ident, $request:ident) => {
            let answer = system.gateway().$method(request!(optional, $request, post)).await;
            answer.expect(stringify!($method));
        };
        (missing, $kind:ident, $method:ident, $request:ident) => {
            let answer = system.gateway().$method(request!($kind, $request, post)).await;
            assert_error(stringify!($method), answer, TOKEN_MISSING);
        };
        ($kind:ident, $method:ident, $request:ident) => {
            check!(missing, $kind, $method, $request);
            let request = with_token("not one", request!($kind, $request, post));
            let answer = system.gateway().$method(request).await;
            assert_error(stringify!($method), answer, TOKEN_INVALID);
        };
    }
    #[allow(clippy::needless_update, reason = "some of the requests have more fields")]
    {
        calls_on_a_post!(check);
    }
    let publish = || gateway::PublishRequest { request_id: request_id(), text: "hello".to_owned() };
    assert_error("publish", system.gateway().publish(publish()).await, TOKEN_MISSING);
    let answer = system.gateway().publish(with_token("not one", publish())).await;
    assert_error("publish", answer, TOKEN_INVALID);
}

#[tokio::test]
async fn an_invalid_post_id_is_rejected_by_every_call() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    for post_id in [0, 1 << 53, 1 << 63, u64::MAX] {
        macro_rules! check {
            ($kind:ident, $method:ident, $request:ident) => {
                let request = ann.request(request!($kind, $request, post_id));
                let answer = system.gateway().$method(request).await;
                assert_error(stringify!($method), answer, invalid(&["post_id"]));
            };
        }
        #[allow(clippy::needless_update, reason = "some of the requests have more fields")]
        {
            calls_on_a_post!(check);
        }
    }
}

#[tokio::test]
async fn an_invalid_write_names_its_fields() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let post_id = system.publish(&ann, "hello").await.id;
    let long = "微".repeat(2_001);
    let empty = ["", " \n ", "\u{200b}", "\u{2800}"];
    for text in empty.into_iter().chain(["a\0b", "\u{202e}olleh", long.as_str()]) {
        let (request_id, text) = (request_id(), text.to_owned());
        let publish =
            gateway::PublishRequest { request_id: request_id.clone(), text: text.clone() };
        let answer = system.gateway().publish(ann.request(publish)).await;
        assert_error(&text, answer, invalid(&["text"]));
        let comment = gateway::CommentRequest {
            request_id: request_id.clone(),
            post_id,
            text: text.clone(),
            in_reply_to_id: 0,
        };
        let answer = system.gateway().comment(ann.request(comment)).await;
        assert_error(&text, answer, invalid(&["text"]));
        // Only a repost may have an empty text.
        let repost = gateway::RepostRequest { request_id, post_id, text: text.clone() };
        let answer = system.gateway().repost(ann.request(repost)).await;
        if empty.contains(&text.as_str()) {
            answer.expect(&text);
        } else {
            assert_error(&text, answer, invalid(&["text"]));
        }
    }
    system.publish(&ann, &"微".repeat(2_000)).await;
}

#[tokio::test]
async fn all_invalid_fields_are_named_at_once() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let post_id = system.publish(&ann, "hello").await.id;
    for request_id in ["", "1", "00000000-0000-0000-0000-000000000000"] {
        let (request_id, text) = (request_id.to_owned(), "a\0".to_owned());
        let publish =
            gateway::PublishRequest { request_id: request_id.clone(), text: text.clone() };
        let answer = system.gateway().publish(ann.request(publish)).await;
        assert_error("publish", answer, invalid(&["request_id", "text"]));
        let repost =
            gateway::RepostRequest { request_id: request_id.clone(), post_id, text: text.clone() };
        let answer = system.gateway().repost(ann.request(repost.clone())).await;
        assert_error("repost", answer, invalid(&["request_id", "text"]));
        let repost = gateway::RepostRequest { post_id: 0, ..repost };
        let answer = system.gateway().repost(ann.request(repost)).await;
        assert_error("repost", answer, invalid(&["request_id", "post_id", "text"]));
        let in_reply_to_id = 1 << 53;
        let comment = gateway::CommentRequest { request_id, post_id, text, in_reply_to_id };
        let answer = system.gateway().comment(ann.request(comment.clone())).await;
        assert_error("comment", answer, invalid(&["request_id", "text", "in_reply_to_id"]));
        let comment = gateway::CommentRequest { post_id: 1 << 53, ..comment };
        let answer = system.gateway().comment(ann.request(comment)).await;
        let all = ["request_id", "post_id", "text", "in_reply_to_id"];
        assert_error("comment", answer, invalid(&all));
    }
    for (post_id, fields) in [(post_id, &["comment_id"][..]), (0, &["post_id", "comment_id"])] {
        let request = gateway::DeleteCommentRequest { post_id, comment_id: 0 };
        let answer = system.gateway().delete_comment(ann.request(request)).await;
        assert_error("delete_comment", answer, invalid(fields));
    }
    let all = ["post_id", "order", "page_size"];
    for (post_id, page_size, fields) in [(post_id, 0, &all[1..2]), (0, 0, &all[..2]), (0, -1, &all)]
    {
        let request =
            gateway::ViewCommentsRequest { post_id, order: 7, page_size, ..Default::default() };
        let answer = system.gateway().view_comments(request).await;
        assert_error("view_comments", answer, invalid(fields));
    }
}

#[tokio::test]
async fn an_invalid_page_is_rejected_by_every_list_of_a_post() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let post = system.publish(&ann, "hello").await.id;
    let another = system.publish(&ann, "hello again").await.id;
    for text in ["one", "two"] {
        system.comment(&ann, another, text).await;
    }
    let anothers = system.comments(None, another, 1, "").await.next_page_token;
    assert_ne!(anothers, "");
    let elsewhere = Scope::new("SomeOtherList").with(post).token([1, 2]);
    let token = |reason| (Code::InvalidArgument, reason, &["page_token"][..]);
    let (mismatch, damaged) = (ErrorReason::PageTokenMismatch, ErrorReason::PageTokenInvalid);
    for (post_id, page_size, page_token, expected) in [
        (post, -1, "", invalid(&["page_size"])),
        (0, i32::MIN, "", invalid(&["post_id", "page_size"])),
        (post, 0, "\u{202e}?", token(damaged)),
        (post, 0, elsewhere.as_str(), token(mismatch)),
        (post, 0, anothers.as_str(), token(mismatch)),
    ] {
        macro_rules! check {
            ($method:ident, $request:ident) => {
                let page_token = page_token.to_owned();
                let request =
                    gateway::$request { post_id, page_size, page_token, ..Default::default() };
                let answer = system.gateway().$method(ann.request(request)).await;
                assert_error(stringify!($method), answer, expected);
            };
        }
        #[allow(clippy::needless_update, reason = "one of the requests has more fields")]
        {
            check!(view_likers, ViewLikersRequest);
            check!(view_comments, ViewCommentsRequest);
            check!(view_reposts, ViewRepostsRequest);
        }
    }
    // A page token is valid for its order only.
    let order = microblog_proto::post::CommentOrder::NewestFirst.into();
    let (page_size, page_token) = (1, anothers);
    let request = gateway::ViewCommentsRequest { post_id: another, order, page_size, page_token };
    let answer = system.gateway().view_comments(request).await;
    assert_error("the other order", answer, token(mismatch));
}
