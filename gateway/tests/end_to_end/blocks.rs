//! Effects of blocks, in both directions.

use microblog_proto::{gateway, user};
use microblog_testkit::Topology;

use crate::{
    actions::request_id,
    errors::{BLOCKED_BY_TARGET, COMMENT_NOT_FOUND, TARGET_BLOCKED, assert_error, invalid},
    system::{Flags, Jobs, Member, PASSWORD, System, by_id},
};

/// Expands to a check for each call that acts on a post or shows its lists.
macro_rules! calls {
    ($check:ident, $post_id:expr) => {{
        let (post_id, text) = ($post_id, "to be or not".to_owned());
        $check!(acts, like, gateway::LikeRequest { post_id });
        let request = gateway::RepostRequest { request_id: request_id(), post_id, text };
        $check!(acts, repost, request);
        let (request_id, text) = (request_id(), "to be or not".to_owned());
        let request = gateway::CommentRequest { request_id, post_id, text, in_reply_to_id: 0 };
        $check!(acts, comment, request);
        $check!(reads, view_post, gateway::ViewPostRequest { post_id });
        $check!(reads, view_likers, gateway::ViewLikersRequest { post_id, ..Default::default() });
        let request = gateway::ViewCommentsRequest { post_id, ..Default::default() };
        $check!(reads, view_comments, request);
        let request = gateway::ViewRepostsRequest { post_id, ..Default::default() };
        $check!(reads, view_reposts, request);
    }};
}

/// Makes all calls on a post, which must succeed.
async fn assert_free(system: &System, viewer: &Member, post_id: u64) {
    macro_rules! check {
        ($kind:ident, $method:ident, $request:expr) => {
            system.gateway().$method(viewer.request($request)).await.expect(stringify!($method));
        };
    }
    calls!(check, post_id);
}

#[tokio::test]
async fn an_account_blocked_by_the_author_can_neither_view_nor_change_a_post() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let post_id = system.publish(&ann, "hello").await.id;
    assert_free(&system, &bob, post_id).await;
    system.block(&ann, &bob).await;
    macro_rules! check {
        ($kind:ident, $method:ident, $request:expr) => {
            let answer = system.gateway().$method(bob.request($request)).await;
            assert_error(stringify!($method), answer, BLOCKED_BY_TARGET);
        };
    }
    calls!(check, post_id);

    // Earlier actions can be undone, and anonymous viewers see the post.
    system.unlike(&bob, post_id).await;
    assert!(system.likers(None, post_id, 0, "").await.users.is_empty());
    let comments = system.comments(None, post_id, 0, "").await.comments;
    let comment_id = comments[0].comment.as_ref().unwrap().id;
    let request = bob.request(gateway::DeleteCommentRequest { post_id, comment_id });
    system.gateway().delete_comment(request).await.unwrap();
    system.view(None, post_id).await;

    let request = ann.request(gateway::UnblockRequest { user: by_id(bob.id) });
    system.gateway().unblock(request).await.unwrap();
    assert_free(&system, &bob, post_id).await;
}

#[tokio::test]
async fn a_viewer_who_blocks_the_author_can_view_but_not_change_a_post() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let post_id = system.publish(&ann, "hello").await.id;
    system.block(&bob, &ann).await;
    macro_rules! check {
        (acts, $method:ident, $request:expr) => {
            let answer = system.gateway().$method(bob.request($request)).await;
            assert_error(stringify!($method), answer, TARGET_BLOCKED);
        };
        (reads, $method:ident, $request:expr) => {
            system.gateway().$method(bob.request($request)).await.expect(stringify!($method));
        };
    }
    calls!(check, post_id);

    // The author's block takes precedence.
    system.block(&ann, &bob).await;
    let answer = system.gateway().like(bob.request(gateway::LikeRequest { post_id })).await;
    assert_error("both", answer, BLOCKED_BY_TARGET);
}

#[tokio::test]
async fn a_block_with_the_roots_author_rejects_only_reposts() {
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
        let answer = system.gateway().repost(viewer.request(request)).await;
        assert_error("the root's author", answer, expected);
        system.like(viewer, post_id).await;
        system.comment(viewer, post_id, "of the repost").await;
        assert_eq!(system.comments(Some(&bob), post_id, 0, "").await.comments.len(), 1);
        assert_eq!(system.likers(Some(viewer), post_id, 0, "").await.users.len(), 1);
        system.unlike(viewer, post_id).await;
        let comments = system.comments(Some(&bob), post_id, 0, "").await.comments;
        let comment_id = comments[0].comment.as_ref().unwrap().id;
        let request = bob.request(gateway::DeleteCommentRequest { post_id, comment_id });
        system.gateway().delete_comment(request).await.unwrap();
    }
    // A block with the repost's author applies, too.
    system.block(&bob, &ann).await;
    let (request_id, text) = (request_id(), String::new());
    let request = gateway::RepostRequest { request_id, post_id, text };
    let answer = system.gateway().repost(ann.request(request)).await;
    assert_error("the repost's author", answer, BLOCKED_BY_TARGET);
}

#[tokio::test]
async fn unlike_returns_nothing_about_the_post() {
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
        assert_eq!(answer, none, "the same for every number of likes");
    }
    assert_eq!(system.likers(None, post_id, 0, "").await.users.len(), 1);
}

#[tokio::test]
async fn own_posts_are_always_accessible() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let post_id = system.publish(&ann, "hello").await.id;
    assert_free(&system, &ann, post_id).await;
    let own = system.reposts(Some(&ann), post_id, 0, "").await.posts;
    let own = own[0].post.as_ref().unwrap().id;
    assert_free(&system, &ann, own).await;
}

#[tokio::test]
async fn a_block_rejects_replies_to_a_comment() {
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
    let made = system.gateway().comment(bob.request(answer(&before, question))).await.unwrap();
    assert_eq!(made.into_inner().comment.unwrap().in_reply_to_author_id, cleo.id);

    system.block(&cleo, &bob).await;
    for request_id in [before.clone(), request_id()] {
        let rejected = system.gateway().comment(bob.request(answer(&request_id, question))).await;
        assert_error("the commenter's block", rejected, BLOCKED_BY_TARGET);
        let own = answer(&request_id, question);
        let rejected = system.gateway().comment(cleo.request(own)).await;
        rejected.expect("an answer to a comment of one's own");
    }
    let bobs = system.comment(&bob, post_id, "of the post").await.id;
    let rejected = system.gateway().comment(cleo.request(answer(&request_id(), bobs))).await;
    assert_error("a block of one's own", rejected, TARGET_BLOCKED);
    assert_eq!(system.comments(None, post_id, 0, "").await.comments.len(), 5);

    let request = cleo.request(gateway::UnblockRequest { user: by_id(bob.id) });
    system.gateway().unblock(request).await.unwrap();
    system.gateway().comment(bob.request(answer(&request_id(), question))).await.unwrap();

    // A retry succeeds although the comment that it replies to is deleted.
    let request = cleo.request(gateway::DeleteCommentRequest { post_id, comment_id: question });
    system.gateway().delete_comment(request).await.unwrap();
    system.gateway().comment(bob.request(answer(&before, question))).await.unwrap();
    let rejected = system.gateway().comment(bob.request(answer(&request_id(), question))).await;
    assert_error("a deleted comment", rejected, COMMENT_NOT_FOUND);
    let rejected = system.gateway().comment(bob.request(answer(&request_id(), u64::MAX))).await;
    assert_error("no comment's id", rejected, invalid(&["in_reply_to_id"]));
}

#[tokio::test]
async fn replies_to_a_deleted_account_are_rejected() {
    // No background jobs, so the post service is not notified of the deletion.
    let system = System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await;
    let ann = system.join("ann").await;
    let cleo = system.join("cleo").await;
    let post_id = system.publish(&ann, "hello").await.id;
    let in_reply_to_id = system.comment(&cleo, post_id, "why?").await.id;
    let request = user::DeleteUserRequest { user_id: cleo.id, password: PASSWORD.to_owned() };
    system.user().delete_user(request).await.unwrap();
    let (request_id, text) = (request_id(), "because".to_owned());
    let request = gateway::CommentRequest { request_id, post_id, text, in_reply_to_id };
    let rejected = system.gateway().comment(ann.request(request)).await;
    assert_error("the commenter is deleted", rejected, COMMENT_NOT_FOUND);
}
