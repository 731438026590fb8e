//! Validation of requests: each invalid field is named, nothing is written, nothing crashes.

use microblog_proto::{
    common::ErrorReason,
    post::{self as pb, entity::Target},
};
use microblog_testkit::Topology::Single;
use tonic::Code;

use crate::support::{System, assert_rejected, id, names_fields, request_id};

const WRONG_IDS: [u64; 4] = [0, 1 << 53, 1 << 63, u64::MAX];

/// Empty or invisible texts.
const EMPTY: [&str; 9] = [
    "",
    "   ",
    "\n\r\n",
    "\u{200b}\u{200d}",
    " \u{3000}",
    "\u{fe0f}\u{2060}",
    "\u{2800}",
    "\u{ffa0}\u{3164}",
    "\u{301}",
];

/// Characters that disturb the text around them.
const DISTURBING: [&str; 12] = [
    "a\0b",
    "a\u{7}b",
    "a\u{1b}[31mb",
    "a\rb",
    "a\u{85}b",
    "a\u{2028}b",
    "\u{202e}evil",
    "a\u{202d}b",
    "a\u{feff}b",
    "a\u{fdd0}b",
    "a\u{ffff}b",
    "a\u{e0001}b",
];

#[tokio::test]
async fn every_invalid_field_of_a_write_is_named() {
    let system = System::start(Single).await;
    let mut client = system.client.clone();
    let nil = "00000000-0000-0000-0000-000000000000";
    for (number, request_id) in WRONG_IDS.into_iter().zip(["", nil, "7", "not-a-uuid"]) {
        let (request_id, text) = (request_id.to_owned(), "\0".to_owned());
        let (author_id, user_id, post_id) = (number, number, number);
        let create =
            pb::CreatePostRequest { author_id, request_id: request_id.clone(), text: text.clone() };
        let fields = ["author_id", "request_id", "text"];
        names_fields(client.create_post(create).await, &fields);
        let repost = pb::RepostRequest {
            author_id,
            request_id: request_id.clone(),
            post_id,
            text: text.clone(),
        };
        let fields = ["author_id", "request_id", "post_id", "text"];
        names_fields(client.repost(repost).await, &fields);
        // 0 means that the comment is not a reply.
        let in_reply_to_id = number.max(1 << 53);
        let comment =
            pb::AddCommentRequest { author_id, request_id, post_id, text, in_reply_to_id };
        let fields = ["author_id", "request_id", "post_id", "text", "in_reply_to_id"];
        names_fields(client.add_comment(comment).await, &fields);
        let delete = pb::DeletePostRequest { author_id, post_id };
        names_fields(client.delete_post(delete).await, &["author_id", "post_id"]);
        let uncomment = pb::DeleteCommentRequest { user_id, post_id, comment_id: number };
        let fields = ["user_id", "post_id", "comment_id"];
        names_fields(client.delete_comment(uncomment).await, &fields);
        let fields = ["user_id", "post_id"];
        names_fields(client.like(pb::LikeRequest { user_id, post_id }).await, &fields);
        names_fields(client.unlike(pb::UnlikeRequest { user_id, post_id }).await, &fields);
        let forget = pb::ForgetUserRequest { user_id };
        names_fields(client.forget_user(forget).await, &["user_id"]);
    }
}

#[tokio::test]
async fn every_invalid_field_of_a_read_is_named() {
    let system = System::start(Single).await;
    let mut client = system.client.clone();
    for number in WRONG_IDS {
        let (post_id, author_id, page_size) = (number, number, -1);
        // 0 means no viewer.
        let viewer_id = number.max(1 << 53);
        let get = pb::GetPostRequest { post_id, viewer_id };
        names_fields(client.get_post(get).await, &["post_id", "viewer_id"]);
        let page_token = String::new();
        let likers = pb::ListLikersRequest { post_id, page_size, page_token: page_token.clone() };
        names_fields(client.list_likers(likers).await, &["post_id", "page_size"]);
        let comments = pb::ListCommentsRequest {
            post_id,
            order: 3,
            page_size,
            page_token: page_token.clone(),
        };
        let fields = ["post_id", "order", "page_size"];
        names_fields(client.list_comments(comments).await, &fields);
        let comment = pb::GetCommentRequest { post_id, comment_id: number };
        names_fields(client.get_comment(comment).await, &["post_id", "comment_id"]);
        let reposts = pb::ListRepostsRequest {
            post_id,
            viewer_id,
            page_size,
            page_token: page_token.clone(),
        };
        let fields = ["post_id", "viewer_id", "page_size"];
        names_fields(client.list_reposts(reposts).await, &fields);
        let posts =
            pb::ListUserPostsRequest { author_id, viewer_id, page_size, page_token, before_id: 0 };
        let fields = ["author_id", "viewer_id", "page_size"];
        names_fields(client.list_user_posts(posts).await, &fields);
        let comments =
            pb::ListUserCommentsRequest { author_id, page_size, page_token: String::new() };
        names_fields(client.list_user_comments(comments).await, &["author_id", "page_size"]);
        if number != 0 {
            let verify = pb::VerifyRequest { user_id: number };
            names_fields(client.verify(verify).await.map(|_| ()), &["user_id"]);
        }
    }
}

#[tokio::test]
async fn invisible_and_disturbing_texts_are_rejected() {
    let system = System::start(Single).await;
    let post = system.create(id(1), "a post").await.unwrap().id;
    let stacked = format!("a{}", "\u{301}".repeat(100_000));
    let long = ["x".repeat(2_001), "微".repeat(2_001), "👍🏽".repeat(2_001), "x".repeat(3 << 20)];
    let texts = EMPTY.into_iter().chain(DISTURBING).map(str::to_owned);
    for text in texts.chain([stacked]).chain(long) {
        names_fields(system.create(id(1), &text).await, &["text"]);
        names_fields(system.comment(id(1), post, &text, 0).await, &["text"]);
        let request = pb::RepostRequest {
            author_id: id(1),
            request_id: request_id(),
            post_id: post,
            text: text.clone(),
        };
        let answer = system.client.clone().repost(request).await;
        if EMPTY.contains(&text.as_str()) {
            assert_eq!(answer.unwrap().into_inner().post.unwrap().text, "");
        } else {
            names_fields(answer, &["text"]);
        }
    }
    assert_eq!(system.get(post, 0).await.unwrap().comments, 0);
    system.settles().await;
}

#[tokio::test]
async fn texts_have_up_to_2000_grapheme_clusters() {
    let system = System::start(Single).await;
    let post = system.create(id(1), "a post").await.unwrap().id;
    // Each counts as one character, with its stored form.
    for (written, kept) in [
        ("x", "x"),
        ("微", "微"),
        ("e\u{301}", "é"),
        ("\u{1112}\u{1161}\u{11ab}", "한"),
        ("न\u{93f}", "न\u{93f}"),
        ("👍🏽", "👍🏽"),
        ("🇩🇪", "🇩🇪"),
        ("👨‍👩‍👧‍👦", "👨‍👩‍👧‍👦"),
        // The longest emoji.
        ("👩🏻\u{200d}❤\u{fe0f}\u{200d}💋\u{200d}👨🏿", "👩🏻\u{200d}❤\u{fe0f}\u{200d}💋\u{200d}👨🏿"),
    ] {
        let longest = written.repeat(2_000);
        let made = system.create(id(1), &longest).await.unwrap();
        assert_eq!(made.text, kept.repeat(2_000));
        assert_eq!(system.get(made.id, 0).await.unwrap().text, made.text);
        assert_eq!(system.comment(id(1), post, &longest, 0).await.unwrap().text, made.text);
        names_fields(system.create(id(1), &written.repeat(2_001)).await, &["text"]);
    }
    for text in
        ["👩‍👩‍👧‍👦 and 🏴\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}", "a\n\nb", "שלום, مرحبا"]
    {
        assert_eq!(system.create(id(1), text).await.unwrap().text, text);
    }
    assert_eq!(system.create(id(1), "\r\n a\r\nb \n").await.unwrap().text, "a\nb");
}

#[tokio::test]
async fn entities_are_found_in_posts_reposts_and_comments() {
    let system = System::start(Single).await;
    let text = "👍🏽 @Bob_1 on #微博 话题#, #Rust! mail ann@example.org";
    let made = system.create(id(1), text).await.unwrap();
    let parts: Vec<_> = made
        .entities
        .iter()
        .map(|entity| {
            let (start, end) = (entity.start as usize, entity.end as usize);
            let part: String = text.chars().skip(start).take(end - start).collect();
            let target = match entity.target.clone().unwrap() {
                Target::Mention(mention) => (mention.name, mention.user_id),
                Target::Hashtag(hashtag) => (hashtag.tag, 0),
            };
            (part, target)
        })
        .collect();
    let expected = [("@Bob_1", "Bob_1"), ("#微博 话题#", "微博 话题"), ("#Rust", "rust")];
    let expected = expected.map(|(part, target)| (part.to_owned(), (target.to_owned(), 0)));
    assert_eq!(parts, expected);
    assert_eq!(made.entities[0].start, 3, "code points, not bytes or UTF-16 units");

    let comment = system.comment(id(2), made.id, text, 0).await.unwrap();
    assert_eq!(comment.entities, made.entities);
    let request = pb::RepostRequest {
        author_id: id(3),
        request_id: request_id(),
        post_id: made.id,
        text: text.to_owned(),
    };
    let repost = system.client.clone().repost(request).await.unwrap().into_inner().post.unwrap();
    assert_eq!(repost.entities, made.entities);
    assert_eq!(repost.root.unwrap().entities, made.entities);
}

#[tokio::test]
async fn a_message_that_is_too_large_is_rejected_and_the_next_is_served() {
    let system = System::start(Single).await;
    let huge = "x".repeat(5_000_000);
    let reason = ErrorReason::MessageTooLarge;
    assert_rejected(system.create(id(1), &huge).await, Code::ResourceExhausted, reason);
    let comment = system.comment(id(1), id(2), &huge, 0).await;
    assert_rejected(comment, Code::ResourceExhausted, reason);
    system.create(id(1), "small").await.unwrap();
}
