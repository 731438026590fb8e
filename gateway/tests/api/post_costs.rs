//! Which calls of the services stand behind each call on posts: the same, however many entries a
//! page has.

use microblog_proto::gateway;
use microblog_testkit::Topology;

use crate::{
    acts::{asks, request_id},
    system::{Flags, Jobs, Member, System},
};

const AUTHENTICATE: &str = "user.Authenticate";
const GET_USERS: &str = "user.BatchGetUsers";
const RESOLVE: &str = "user.BatchResolveNames";
const RELATIONS: &str = "relation.BatchGetRelations";
const GET_POST: &str = "post.GetPost";
const LIKED: &str = "post.BatchGetLiked";

/// What there is to look at: a repost of Ann's post by Bob, with a crowd's reactions to each.
struct Scene {
    system: System,
    ann: Member,
    bob: Member,
    root: u64,
    repost: u64,
}

impl Scene {
    async fn set(crowd: usize) -> Self {
        let system = System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await;
        let ann = system.join("ann").await;
        let bob = system.join("bob").await;
        let root = system.publish(&ann, "the root, @bob").await.id;
        let repost = system.repost(&bob, root, "look, @ann").await.id;
        for i in 0..crowd {
            let fan = system.join(&format!("fan{i}")).await;
            system.like(&fan, root).await;
            system.comment(&fan, root, "as @ann says").await;
            let repost = system.repost(&fan, root, "as @ann says").await.id;
            system.like(&fan, repost).await;
        }
        Self { system, ann, bob, root, repost }
    }

    /// Checks which calls were made since this was last asked.
    #[track_caller]
    fn assert_called(&self, what: &str, expected: &[&str]) {
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(self.system.tap.calls(), expected, "{what}");
    }
}

#[tokio::test]
async fn what_shows_something_costs_the_same_whatever_the_size_of_the_page() {
    let scene = Scene::set(50).await;
    let (system, post_id) = (&scene.system, scene.root);
    let known = [AUTHENTICATE, RELATIONS];
    for page_size in [1, 50] {
        for viewer in [Some(&scene.bob), None] {
            let check = |what: &str, liked: bool, calls: &[&str]| {
                let mut calls = calls.to_vec();
                calls.extend(viewer.iter().flat_map(|_| known));
                calls.extend(viewer.filter(|_| liked).map(|_| LIKED));
                scene.assert_called(what, &calls);
            };
            system.tap.calls();
            let likers = system.likers(viewer, post_id, page_size, "").await.users.len();
            check("likers", false, &[GET_POST, "post.ListLikers", GET_USERS]);
            let comments = system.comments(viewer, post_id, page_size, "").await.comments.len();
            check("comments", false, &[GET_POST, "post.ListComments", GET_USERS, RESOLVE]);
            let reposts = system.reposts(viewer, post_id, page_size, "").await.posts.len();
            check("reposts", true, &[GET_POST, "post.ListReposts", GET_USERS, RESOLVE]);
            assert_eq!([likers, comments, reposts], [page_size as usize; 3]);
            system.view(viewer, scene.repost).await;
            check("view", true, &[GET_POST, GET_USERS, RESOLVE]);
        }
    }
}

#[tokio::test]
async fn a_page_that_is_filled_again_costs_its_rounds() {
    let scene = Scene::set(6).await;
    let (system, post_id) = (&scene.system, scene.root);
    let muted = system.join("muted").await;
    for i in 0..20 {
        system.comment(&muted, post_id, &format!("unseen {i}")).await;
    }
    system.mute(&scene.bob, &muted).await;
    let round = ["post.ListComments", GET_USERS, RELATIONS];
    for (page_size, rounds) in [(7, 5), (100, 1)] {
        system.tap.calls();
        system.comments(Some(&scene.bob), post_id, page_size, "").await;
        let rounds = std::iter::repeat_n(round, rounds).flatten();
        let calls: Vec<_> = [AUTHENTICATE, GET_POST, RESOLVE].into_iter().chain(rounds).collect();
        scene.assert_called("comments", &calls);
    }
}

#[tokio::test]
async fn what_writes_something_costs_a_fixed_number_of_calls() {
    let scene = Scene::set(0).await;
    let (system, ann, bob) = (&scene.system, &scene.ann, &scene.bob);
    let others = [AUTHENTICATE, GET_POST, GET_USERS, RELATIONS];
    let own = [AUTHENTICATE, GET_POST];
    for (text, resolved) in [("no names", None), ("dear @bob", Some(RESOLVE))] {
        let check =
            |what: &str, before: &[&str], act: &'static str, resolved: Option<&'static str>| {
                let calls: Vec<_> = before.iter().copied().chain([act]).chain(resolved).collect();
                scene.assert_called(what, &calls);
            };
        system.tap.calls();
        system.publish(ann, text).await;
        check("publish", &[AUTHENTICATE], "post.CreatePost", resolved);
        for (viewer, post_id, before) in
            [(bob, scene.root, &others[..]), (ann, scene.root, &own), (ann, scene.repost, &others)]
        {
            system.repost(viewer, post_id, text).await;
            check("repost", before, "post.Repost", resolved);
            let comment = system.comment(viewer, post_id, text).await;
            check("comment", before, "post.AddComment", resolved);
            let request = gateway::DeleteCommentRequest { post_id, comment_id: comment.id };
            system.gateway().delete_comment(viewer.asks(request)).await.unwrap();
            check("delete_comment", &[AUTHENTICATE], "post.DeleteComment", None);
            system.like(viewer, post_id).await;
            check("like", before, "post.Like", None);
            system.unlike(viewer, post_id).await;
            check("unlike", &[AUTHENTICATE], "post.Unlike", None);
        }
        // An answer costs one call more.
        let comment = system.comment(bob, scene.root, "what?").await;
        system.tap.calls();
        for (viewer, before) in [(ann, &others[..]), (bob, &others)] {
            let request = gateway::CommentRequest {
                request_id: request_id(),
                post_id: scene.root,
                text: text.to_owned(),
                in_reply_to_id: comment.id,
            };
            system.gateway().comment(viewer.asks(request)).await.unwrap();
            let before: Vec<_> = before.iter().copied().chain(["post.GetComment"]).collect();
            check("answer", &before, "post.AddComment", resolved);
        }
        // Its own repost, but another's root.
        system.repost(bob, scene.repost, text).await;
        check("repost", &others, "post.Repost", resolved);
        system.like(bob, scene.repost).await;
        check("like", &own, "post.Like", None);
    }
    let made = system.publish(ann, "to be deleted").await.id;
    system.tap.calls();
    system.delete_post(ann, made).await;
    scene.assert_called("delete_post", &[AUTHENTICATE, "post.DeletePost"]);
}

#[tokio::test]
async fn what_cannot_be_a_request_costs_as_little_as_it_can() {
    let scene = Scene::set(0).await;
    let system = &scene.system;
    system.tap.calls();
    for viewer in [Some(&scene.bob), None] {
        let request = gateway::ViewCommentsRequest { post_id: 0, ..Default::default() };
        system.gateway().view_comments(asks(viewer, request)).await.unwrap_err();
        scene.assert_called("view_comments", &[]);
    }
    let (request_id, text) = (request_id(), "hello".to_owned());
    let request = gateway::RepostRequest { request_id, post_id: 0, text };
    system.gateway().repost(scene.bob.asks(request)).await.unwrap_err();
    scene.assert_called("repost", &[AUTHENTICATE, "post.Repost"]);
}
