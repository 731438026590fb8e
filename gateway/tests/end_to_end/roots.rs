//! Reposts whose root, or its author, is deleted or hidden from the viewer.

use microblog_proto::{
    gateway::{self, RootState, ViewedPost},
    user,
};
use microblog_testkit::Topology;

use crate::{
    actions::request_id,
    errors::{POST_NOT_FOUND, assert_error},
    system::{Flags, Jobs, Member, PASSWORD, System},
};

/// Returns the root's author, the reposter, the root and the repost.
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
async fn a_block_or_mute_of_its_author_hides_a_root() {
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
    // ViewPost shows it, unless its author blocks the viewer.
    for viewer in [&blocker, &muter] {
        assert_eq!(system.view(Some(viewer), root).await.post.unwrap().text, "the root");
    }
}

#[tokio::test]
async fn a_repost_survives_the_deletion_of_its_root() {
    let system = System::start().await;
    let (ann, bob, root, repost) = reposted(&system).await;
    system.delete_post(&ann, root).await;
    for viewer in [Some(&ann), Some(&bob), None] {
        assert_without_root(system.view(viewer, repost).await, RootState::Deleted);
    }
    for post_id in [root, repost] {
        let (request_id, text) = (request_id(), String::new());
        let request = bob.request(gateway::RepostRequest { request_id, post_id, text });
        assert_error("no root", system.gateway().repost(request).await, POST_NOT_FOUND);
    }
    // It remains a normal post.
    assert_eq!(system.like(&ann, repost).await, 1);
    system.comment(&ann, repost, "deleted").await;
}

#[tokio::test]
async fn deleting_an_account_hides_its_roots() {
    // No background jobs, so the post service is not notified of the deletion.
    let system = System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await;
    let (ann, bob, root, repost) = reposted(&system).await;
    // The author's account is deleted, whether muted or not.
    system.mute(&bob, &ann).await;
    let request = user::DeleteUserRequest { user_id: ann.id, password: PASSWORD.to_owned() };
    system.user().delete_user(request).await.unwrap();
    for viewer in [Some(&bob), None] {
        assert_without_root(system.view(viewer, repost).await, RootState::Deleted);
    }
    macro_rules! check {
        ($method:ident, $request:ident) => {
            let request = gateway::$request { post_id: root, ..Default::default() };
            let answer = system.gateway().$method(bob.request(request)).await;
            assert_error(stringify!($method), answer, POST_NOT_FOUND);
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
    let answer = system.gateway().comment(bob.request(comment())).await;
    assert_error("comment", answer, POST_NOT_FOUND);
    let cleo = system.join("cleo").await;
    // Also through a repost, by its author or by others.
    for (viewer, post_id) in [(&bob, root), (&cleo, root), (&bob, repost), (&cleo, repost)] {
        let (request_id, text) = (request_id(), String::new());
        let request = viewer.request(gateway::RepostRequest { request_id, post_id, text });
        assert_error("repost", system.gateway().repost(request).await, POST_NOT_FOUND);
    }
    let of_root = gateway::CommentRequest { post_id: repost, ..comment() };
    for viewer in [&bob, &cleo] {
        system.like(viewer, repost).await;
        system.gateway().comment(viewer.request(of_root.clone())).await.unwrap();
    }
}

#[tokio::test]
async fn a_retried_repost_succeeds_after_its_target_was_deleted() {
    let system = System::start().await;
    let (ann, bob, root, repost) = reposted(&system).await;
    let request = |post_id| gateway::RepostRequest {
        request_id: request_id(),
        post_id,
        text: "once more".to_owned(),
    };
    let requests = [request(repost), request(root)];
    let call = async |request: &gateway::RepostRequest| {
        system.gateway().repost(ann.request(request.clone())).await
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
        assert_error("another request", call(&another).await, POST_NOT_FOUND);
    }
}
