//! Blocks, both ways, and what they keep a viewer from.

use microblog_proto::{gateway, user};
use microblog_testkit::Topology;

use crate::{
    acts::request_id,
    refused::{BLOCKED_BY_TARGET, COMMENT_NOT_FOUND, TARGET_BLOCKED, assert_refused, invalid},
    system::{Flags, Jobs, Member, PASSWORD, System, by_id},
};

/// Expands to a check for each call that acts on a post, or shows what is under it.
macro_rules! calls {
    ($check:ident, $post_id:expr) => {{
        let (post_id, text) = ($post_id, "to be or not".to_owned());
        $check!(acts, like, gateway::LikeRequest { post_id });
        let request = gateway::RepostRequest { request_id: request_id(), post_id, text };
        $check!(acts, repost, request);
        let (request_id, text) = (request_id(), "to be or not".to_owned());
        let request = gateway::CommentRequest { request_id, post_id, text, in_reply_to_id: 0 };
        $check!(acts, comment, request);
        $check!(looks, view_post, gateway::ViewPostRequest { post_id });
        $check!(looks, view_likers, gateway::ViewLikersRequest { post_id, ..Default::default() });
        let request = gateway::ViewCommentsRequest { post_id, ..Default::default() };
        $check!(looks, view_comments, request);
        let request = gateway::ViewRepostsRequest { post_id, ..Default::default() };
        $check!(looks, view_reposts, request);
    }};
}

/// Does everything to a post, and expects nothing to be refused.
async fn assert_free(system: &System, viewer: &Member, post_id: u64) {
    macro_rules! check {
        ($kind:ident, $method:ident, $request:expr) => {
            system.gateway().$method(viewer.asks($request)).await.expect(stringify!($method));
        };
    }
    calls!(check, post_id);
}

#[tokio::test]
async fn whom_the_author_blocks_can_neither_see_nor_touch_a_post() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let post_id = system.publish(&ann, "hello").await.id;
    assert_free(&system, &bob, post_id).await;
    system.block(&ann, &bob).await;
    macro_rules! check {
        ($kind:ident, $method:ident, $request:expr) => {
            let answer = system.gateway().$method(bob.asks($request)).await;
            assert_refused(stringify!($method), answer, BLOCKED_BY_TARGET);
        };
    }
    calls!(check, post_id);

    // What was done before can be taken back, and without a session anybody sees it.
    system.unlike(&bob, post_id).await;
    assert!(system.likers(None, post_id, 0, "").await.users.is_empty());
    let comments = system.comments(None, post_id, 0, "").await.comments;
    let comment_id = comments[0].comment.as_ref().unwrap().id;
    let request = bob.asks(gateway::DeleteCommentRequest { post_id, comment_id });
    system.gateway().delete_comment(request).await.unwrap();
    system.view(None, post_id).await;

    let request = ann.asks(gateway::UnblockRequest { user: by_id(bob.id) });
    system.gateway().unblock(request).await.unwrap();
    assert_free(&system, &bob, post_id).await;
}

#[tokio::test]
async fn who_blocks_the_author_can_look_but_not_touch() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let post_id = system.publish(&ann, "hello").await.id;
    system.block(&bob, &ann).await;
    macro_rules! check {
        (acts, $method:ident, $request:expr) => {
            let answer = system.gateway().$method(bob.asks($request)).await;
            assert_refused(stringify!($method), answer, TARGET_BLOCKED);
        };
        (looks, $method:ident, $request:expr) => {
            system.gateway().$method(bob.asks($request)).await.expect(stringify!($method));
        };
    }
    calls!(check, post_id);

    // The other one's block counts more.
    system.block(&ann, &bob).await;
    let answer = system.gateway().like(bob.asks(gateway::LikeRequest { post_id })).await;
    assert_refused("both", answer, BLOCKED_BY_TARGET);
}

#[tokio::test]
async fn a_block_with_the_roots_author_forbids_to_repost_and_nothing_else() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let blocked = system.join("blocked").await;
    let blocker = system.join("blocker").await;
    let root = system.publish(&ann, "the root").await.id;
    let post_id = system.repost(&bob, root, "look").await.id;
    system.block(&ann, &blocked).await;
    system.block(&blocker, &ann).await;
    for (viewer, expected) in [(&blocked, BLOCKED_BY_TARGET), (&blocker, TARGET_BLOCKED)] {
        let (request_id, text) = (request_id(), String::new());
        let request = gateway::RepostRequest { request_id, post_id, text };
        let answer = system.gateway().repost(viewer.asks(request)).await;
        assert_refused("the root's author", answer, expected);
        system.like(viewer, post_id).await;
        system.comment(viewer, post_id, "of the repost").await;
        assert_eq!(system.comments(Some(&bob), post_id, 0, "").await.comments.len(), 1);
        assert_eq!(system.likers(Some(viewer), post_id, 0, "").await.users.len(), 1);
        system.unlike(viewer, post_id).await;
        let comments = system.comments(Some(&bob), post_id, 0, "").await.comments;
        let comment_id = comments[0].comment.as_ref().unwrap().id;
        let request = bob.asks(gateway::DeleteCommentRequest { post_id, comment_id });
        system.gateway().delete_comment(request).await.unwrap();
    }
    // The repost's own author counts as well.
    system.block(&bob, &ann).await;
    let (request_id, text) = (request_id(), String::new());
    let request = gateway::RepostRequest { request_id, post_id, text };
    let answer = system.gateway().repost(ann.asks(request)).await;
    assert_refused("the repost's author", answer, BLOCKED_BY_TARGET);
}

#[tokio::test]
async fn who_takes_a_like_back_is_told_nothing_of_the_post() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let fan = system.join("fan").await;
    let blocked = system.join("blocked").await;
    let stranger = system.join("stranger").await;
    let post_id = system.publish(&ann, "hello").await.id;
    let none = system.unlike(&stranger, post_id).await;
    system.like(&ann, post_id).await;
    system.like(&fan, post_id).await;
    system.block(&ann, &blocked).await;
    for viewer in [&blocked, &stranger, &fan] {
        let answer = system.unlike(viewer, post_id).await;
        assert_eq!(answer, none, "the same, whoever likes it");
    }
    assert_eq!(system.likers(None, post_id, 0, "").await.users.len(), 1);
}

#[tokio::test]
async fn nobody_is_kept_from_what_is_their_own() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let post_id = system.publish(&ann, "hello").await.id;
    assert_free(&system, &ann, post_id).await;
    let own = system.reposts(Some(&ann), post_id, 0, "").await.posts;
    let own = own[0].post.as_ref().unwrap().id;
    assert_free(&system, &ann, own).await;
}

#[tokio::test]
async fn nobody_answers_the_comment_of_somebody_past_a_block() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let cleo = system.join("cleo").await;
    let post_id = system.publish(&ann, "hello").await.id;
    let question = system.comment(&cleo, post_id, "why?").await.id;
    let answer = |request_id: &str, in_reply_to_id| gateway::CommentRequest {
        request_id: request_id.to_owned(),
        post_id,
        text: "because".to_owned(),
        in_reply_to_id,
    };
    let before = request_id();
    let made = system.gateway().comment(bob.asks(answer(&before, question))).await.unwrap();
    assert_eq!(made.into_inner().comment.unwrap().in_reply_to_author_id, cleo.id);

    system.block(&cleo, &bob).await;
    for request_id in [before.clone(), request_id()] {
        let refused = system.gateway().comment(bob.asks(answer(&request_id, question))).await;
        assert_refused("the commenter's block", refused, BLOCKED_BY_TARGET);
        let own = answer(&request_id, question);
        let refused = system.gateway().comment(cleo.asks(own)).await;
        refused.expect("an answer to a comment of one's own");
    }
    let bobs = system.comment(&bob, post_id, "of the post").await.id;
    let refused = system.gateway().comment(cleo.asks(answer(&request_id(), bobs))).await;
    assert_refused("a block of one's own", refused, TARGET_BLOCKED);
    assert_eq!(system.comments(None, post_id, 0, "").await.comments.len(), 5);

    let request = cleo.asks(gateway::UnblockRequest { user: by_id(bob.id) });
    system.gateway().unblock(request).await.unwrap();
    system.gateway().comment(bob.asks(answer(&request_id(), question))).await.unwrap();

    // A repeated request is answered although the comment that it answers is deleted.
    let request = cleo.asks(gateway::DeleteCommentRequest { post_id, comment_id: question });
    system.gateway().delete_comment(request).await.unwrap();
    system.gateway().comment(bob.asks(answer(&before, question))).await.unwrap();
    let refused = system.gateway().comment(bob.asks(answer(&request_id(), question))).await;
    assert_refused("a deleted comment", refused, COMMENT_NOT_FOUND);
    let refused = system.gateway().comment(bob.asks(answer(&request_id(), u64::MAX))).await;
    assert_refused("no comment's id", refused, invalid(&["in_reply_to_id"]));
}

#[tokio::test]
async fn nobody_answers_the_comment_of_an_account_that_is_gone() {
    // No job: the post service does not hear of the deletion.
    let system = System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await;
    let ann = system.join("ann").await;
    let cleo = system.join("cleo").await;
    let post_id = system.publish(&ann, "hello").await.id;
    let in_reply_to_id = system.comment(&cleo, post_id, "why?").await.id;
    let request = user::DeleteUserRequest { user_id: cleo.id, password: PASSWORD.to_owned() };
    system.user().delete_user(request).await.unwrap();
    let (request_id, text) = (request_id(), "because".to_owned());
    let request = gateway::CommentRequest { request_id, post_id, text, in_reply_to_id };
    let refused = system.gateway().comment(ann.asks(request)).await;
    assert_refused("the commenter is gone", refused, COMMENT_NOT_FOUND);
}
