//! What becomes of a repost when its root, or the root's author, is not there for its viewer.

use microblog_proto::{
    gateway::{self, RootState, ViewedPost},
    user,
};
use microblog_testkit::Topology;

use crate::{
    acts::request_id,
    refused::{POST_NOT_FOUND, assert_refused},
    system::{Flags, Jobs, Member, PASSWORD, System},
};

/// The root's author, who reposted it, and the repost.
async fn reposted(system: &System) -> (Member, Member, u64, u64) {
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let root = system.publish(&ann, "the root").await.id;
    let repost = system.repost(&bob, root, "look").await.id;
    (ann, bob, root, repost)
}

fn assert_without_root(view: ViewedPost, state: RootState) {
    assert_eq!((view.root_state(), view.root), (state, None));
    let post = view.post.unwrap();
    assert_eq!(post.text, "look");
    assert_eq!((post.root, post.root_deleted), (None, state == RootState::Deleted));
}

#[tokio::test]
async fn a_root_is_hidden_from_whom_a_block_or_mute_keeps_from_its_author() {
    let system = System::start().await;
    let (ann, bob, root, repost) = reposted(&system).await;
    let blocked = system.join("blocked").await;
    let blocker = system.join("blocker").await;
    let muter = system.join("muter").await;
    system.block(&ann, &blocked).await;
    system.block(&blocker, &ann).await;
    system.mute(&muter, &ann).await;
    for viewer in [&blocked, &blocker, &muter] {
        assert_without_root(system.view(Some(viewer), repost).await, RootState::Hidden);
    }
    for viewer in [Some(&ann), Some(&bob), None] {
        assert_eq!(system.view(viewer, repost).await.root_state(), RootState::Shown);
    }
    // Who asks for it by its id sees it, but for whom its author blocks.
    for viewer in [&blocker, &muter] {
        assert_eq!(system.view(Some(viewer), root).await.post.unwrap().text, "the root");
    }
}

#[tokio::test]
async fn a_repost_outlives_its_root_and_repeats_it_no_more() {
    let system = System::start().await;
    let (ann, bob, root, repost) = reposted(&system).await;
    system.delete_post(&ann, root).await;
    for viewer in [Some(&ann), Some(&bob), None] {
        assert_without_root(system.view(viewer, repost).await, RootState::Deleted);
    }
    for post_id in [root, repost] {
        let (request_id, text) = (request_id(), String::new());
        let request = bob.asks(gateway::RepostRequest { request_id, post_id, text });
        assert_refused("no root", system.gateway().repost(request).await, POST_NOT_FOUND);
    }
    // It is a post of its own.
    assert_eq!(system.like(&ann, repost).await, 1);
    system.comment(&ann, repost, "gone").await;
}

#[tokio::test]
async fn a_root_goes_with_its_authors_account() {
    // Nothing runs in the background: the post service does not hear of the deletion.
    let system = System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await;
    let (ann, bob, root, repost) = reposted(&system).await;
    // Muted or not: who is gone is gone.
    system.mute(&bob, &ann).await;
    let request = user::DeleteUserRequest { user_id: ann.id, password: PASSWORD.to_owned() };
    system.user().delete_user(request).await.unwrap();
    for viewer in [Some(&bob), None] {
        assert_without_root(system.view(viewer, repost).await, RootState::Deleted);
    }
    macro_rules! check {
        ($method:ident, $request:ident) => {
            let request = gateway::$request { post_id: root, ..Default::default() };
            let answer = system.gateway().$method(bob.asks(request)).await;
            assert_refused(stringify!($method), answer, POST_NOT_FOUND);
        };
    }
    #[allow(clippy::needless_update, reason = "some of the requests have more fields")]
    {
        check!(view_post, ViewPostRequest);
        check!(view_likers, ViewLikersRequest);
        check!(view_comments, ViewCommentsRequest);
        check!(view_reposts, ViewRepostsRequest);
        check!(like, LikeRequest);
    }
    let comment = || {
        let (request_id, text) = (request_id(), "farewell".to_owned());
        gateway::CommentRequest { request_id, post_id: root, text, in_reply_to_id: 0 }
    };
    let answer = system.gateway().comment(bob.asks(comment())).await;
    assert_refused("comment", answer, POST_NOT_FOUND);
    let cleo = system.join("cleo").await;
    // Also by way of a repost, by its author or by others.
    for (viewer, post_id) in [(&bob, root), (&cleo, root), (&bob, repost), (&cleo, repost)] {
        let (request_id, text) = (request_id(), String::new());
        let request = viewer.asks(gateway::RepostRequest { request_id, post_id, text });
        assert_refused("repost", system.gateway().repost(request).await, POST_NOT_FOUND);
    }
    let of_root = gateway::CommentRequest { post_id: repost, ..comment() };
    for viewer in [&bob, &cleo] {
        system.like(viewer, repost).await;
        system.gateway().comment(viewer.asks(of_root.clone())).await.unwrap();
    }
}

#[tokio::test]
async fn a_repeated_repost_is_answered_although_what_it_repeats_was_deleted() {
    let system = System::start().await;
    let (ann, bob, root, repost) = reposted(&system).await;
    let request = |post_id| gateway::RepostRequest {
        request_id: request_id(),
        post_id,
        text: "once more".to_owned(),
    };
    let requests = [request(repost), request(root)];
    let call = async |request: &gateway::RepostRequest| {
        system.gateway().repost(ann.asks(request.clone())).await
    };
    let mut made = Vec::new();
    for request in &requests {
        made.push(call(request).await.unwrap().into_inner().post.unwrap().id);
    }
    system.delete_post(&bob, repost).await;
    assert_eq!(call(&requests[0]).await.unwrap().into_inner().post.unwrap().id, made[0]);
    system.delete_post(&ann, root).await;
    for (request, made) in requests.iter().zip(made) {
        let repeated = call(request).await.unwrap().into_inner().post.unwrap();
        assert_eq!((repeated.id, repeated.root_deleted), (made, true));
        let another = gateway::RepostRequest { request_id: request_id(), ..request.clone() };
        assert_refused("another request", call(&another).await, POST_NOT_FOUND);
    }
}
