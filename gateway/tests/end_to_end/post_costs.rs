//! The service calls of each call on posts, which do not depend on the number of entries of a
//! page. The sessions were verified shortly before.

use microblog_proto::gateway;
use microblog_testkit::Topology;

use crate::{
    actions::{request_as, request_id},
    system::{Flags, Jobs, Member, System},
};

const AUTHENTICATE: &str = "user.Authenticate";
const GET_USERS: &str = "user.BatchGetUsers";
const RESOLVE: &str = "user.BatchResolveNames";
const RELATIONS: &str = "relation.BatchGetRelations";
const GET_POST: &str = "post.GetPost";

/// A repost of Ann's post by Bob, with reactions of many accounts to each.
struct Fixture {
    system: System,
    ann: Member,
    bob: Member,
    root: u64,
    repost: u64,
}

impl Fixture {
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

    /// Checks the calls since the last check.
    #[track_caller]
    fn assert_called(&self, what: &str, expected: &[&str]) {
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(self.system.recorder.calls(), expected, "{what}");
    }
}

#[tokio::test]
async fn views_take_the_same_calls_for_every_page_size() {
    let fixture = Fixture::set(50).await;
    let (system, post_id) = (&fixture.system, fixture.root);
    for page_size in [1, 50] {
        for viewer in [Some(&fixture.bob), None] {
            let check = |what: &str, calls: &[&str]| {
                let mut calls = calls.to_vec();
                calls.extend(viewer.map(|_| RELATIONS));
                fixture.assert_called(what, &calls);
            };
            // A verification is recent for a minute, and the fixture may take longer.
            system.view(Some(&fixture.bob), post_id).await;
            system.recorder.calls();
            let likers = system.likers(viewer, post_id, page_size, "").await.users.len();
            check("likers", &[GET_POST, "post.ListLikers", GET_USERS]);
            let comments = system.comments(viewer, post_id, page_size, "").await.comments.len();
            check("comments", &[GET_POST, "post.ListComments", GET_USERS]);
            let reposts = system.reposts(viewer, post_id, page_size, "").await.posts.len();
            check("reposts", &[GET_POST, "post.ListReposts", GET_USERS]);
            assert_eq!([likers, comments, reposts], [page_size as usize; 3]);
            system.view(viewer, fixture.repost).await;
            check("view", &[GET_POST, GET_USERS]);
        }
    }
}

#[tokio::test]
async fn a_refilled_page_costs_each_of_its_skeletons() {
    let fixture = Fixture::set(6).await;
    let (system, post_id) = (&fixture.system, fixture.root);
    let muted = system.join("muted").await;
    for i in 0..20 {
        system.comment(&muted, post_id, &format!("unseen {i}")).await;
    }
    system.mute(&fixture.bob, &muted).await;
    let round = ["post.ListComments", GET_USERS, RELATIONS];
    for (page_size, rounds) in [(7, 5), (100, 1)] {
        system.recorder.calls();
        system.comments(Some(&fixture.bob), post_id, page_size, "").await;
        let rounds = std::iter::repeat_n(round, rounds).flatten();
        let calls: Vec<_> = [GET_POST].into_iter().chain(rounds).collect();
        fixture.assert_called("comments", &calls);
    }
}

#[tokio::test]
async fn writes_take_a_fixed_number_of_calls() {
    let fixture = Fixture::set(0).await;
    let (system, ann, bob) = (&fixture.system, &fixture.ann, &fixture.bob);
    let others = [AUTHENTICATE, GET_POST, GET_USERS, RELATIONS];
    let own = [AUTHENTICATE, GET_POST];
    for (text, resolved) in [("no names", None), ("dear @bob", Some(RESOLVE))] {
        let check =
            |what: &str, before: &[&str], act: &'static str, resolved: Option<&'static str>| {
                let calls: Vec<_> = before.iter().copied().chain([act]).chain(resolved).collect();
                fixture.assert_called(what, &calls);
            };
        system.recorder.calls();
        system.publish(ann, text).await;
        check("publish", &[AUTHENTICATE], "post.CreatePost", resolved);
        for (viewer, post_id, before) in [
            (bob, fixture.root, &others[..]),
            (ann, fixture.root, &own),
            (ann, fixture.repost, &others),
        ] {
            system.repost(viewer, post_id, text).await;
            check("repost", before, "post.Repost", resolved);
            let comment = system.comment(viewer, post_id, text).await;
            check("comment", before, "post.AddComment", resolved);
            let request = gateway::DeleteCommentRequest { post_id, comment_id: comment.id };
            system.gateway().delete_comment(viewer.request(request)).await.unwrap();
            check("delete_comment", &[AUTHENTICATE], "post.DeleteComment", None);
            system.like(viewer, post_id).await;
            check("like", before, "post.Like", None);
            system.unlike(viewer, post_id).await;
            check("unlike", &[AUTHENTICATE], "post.Unlike", None);
        }
        // A reply costs one more call.
        let comment = system.comment(bob, fixture.root, "what?").await;
        system.recorder.calls();
        for (viewer, before) in [(ann, &others[..]), (bob, &others)] {
            let request = gateway::CommentRequest {
                request_id: request_id(),
                post_id: fixture.root,
                text: text.to_owned(),
                in_reply_to_id: comment.id,
            };
            system.gateway().comment(viewer.request(request)).await.unwrap();
            let before: Vec<_> = before.iter().copied().chain(["post.GetComment"]).collect();
            check("answer", &before, "post.AddComment", resolved);
        }
        // The viewer's own repost, with a root of another author.
        system.repost(bob, fixture.repost, text).await;
        check("repost", &others, "post.Repost", resolved);
        system.like(bob, fixture.repost).await;
        check("like", &own, "post.Like", None);
    }
    let made = system.publish(ann, "to be deleted").await.id;
    system.recorder.calls();
    system.delete_post(ann, made).await;
    fixture.assert_called("delete_post", &[AUTHENTICATE, "post.DeletePost"]);
}

#[tokio::test]
async fn an_invalid_request_costs_the_fewest_calls() {
    let fixture = Fixture::set(0).await;
    let system = &fixture.system;
    system.recorder.calls();
    for viewer in [Some(&fixture.bob), None] {
        let request = gateway::ViewCommentsRequest { post_id: 0, ..Default::default() };
        system.gateway().view_comments(request_as(viewer, request)).await.unwrap_err();
        fixture.assert_called("view_comments", &[]);
    }
    let (request_id, text) = (request_id(), "hello".to_owned());
    let request = gateway::RepostRequest { request_id, post_id: 0, text };
    system.gateway().repost(fixture.bob.request(request)).await.unwrap_err();
    fixture.assert_called("repost", &[AUTHENTICATE, "post.Repost"]);
}
