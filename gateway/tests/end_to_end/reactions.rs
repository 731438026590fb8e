//! Likes and comments.

use microblog_proto::{
    common::ErrorReason,
    gateway::{self, ViewedComment},
    post::CommentOrder,
    relation::RelationState,
};
use microblog_testkit::Topology;
use tonic::Code;

use crate::{
    actions::{comment_texts, request_id},
    errors::{COMMENT_NOT_FOUND, POST_NOT_FOUND, assert_error},
    system::{Flags, Jobs, System, names},
};

#[tokio::test]
async fn a_like_counts_once_and_is_removed() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let post_id = system.publish(&ann, "hello").await.id;
    let like = || bob.request(gateway::LikeRequest { post_id });
    let first = system.gateway().like(like()).await.unwrap().into_inner();
    let second = system.gateway().like(like()).await.unwrap().into_inner();
    assert_eq!(first, second, "the first time counts");
    assert!(first.liked_at.is_some());
    assert_eq!(system.like(&ann, post_id).await, 2);
    for _ in 0..2 {
        system.unlike(&bob, post_id).await;
        assert_eq!(system.view(None, post_id).await.post.unwrap().likes, 1);
    }
    assert_eq!(names(&system.likers(None, post_id, 0, "").await.users), ["ann"]);
}

async fn likers_are_listed_with_their_relations(topology: Topology) {
    let system = System::start_on(topology, Jobs::Run, Flags::default()).await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let cleo = system.join("cleo").await;
    let dora = system.join("dora").await;
    system.follows([(bob.id, cleo.id), (cleo.id, bob.id), (dora.id, bob.id)]).await;
    let post_id = system.publish(&ann, "hello").await.id;
    for fan in [&ann, &cleo, &dora, &bob] {
        system.like(fan, post_id).await;
    }
    // A mute hides no entry of a list of accounts.
    system.mute(&bob, &dora).await;

    let page = system.likers(Some(&bob), post_id, 0, "").await;
    assert_eq!(names(&page.users), ["bob", "dora", "cleo", "ann"]);
    let states: Vec<_> = page.users.iter().map(gateway::ListedUser::relation).collect();
    let (none, follower, mutual) =
        (RelationState::None, RelationState::Follower, RelationState::Mutual);
    assert_eq!(states, [RelationState::Self_, follower, mutual, none]);
    let times: Vec<_> = page.users.iter().map(|user| user.since.unwrap()).collect();
    assert!(times.is_sorted_by_key(|time| std::cmp::Reverse((time.seconds, time.nanos))));
    assert_eq!(page.next_page_token, "");

    let anonymous = system.likers(None, post_id, 3, "").await;
    assert_eq!(names(&anonymous.users), ["bob", "dora", "cleo"]);
    assert!(anonymous.users.iter().all(|user| user.relation() == RelationState::None));
    let rest = system.likers(None, post_id, 3, &anonymous.next_page_token).await;
    assert_eq!((names(&rest.users), rest.next_page_token.as_str()), (vec!["ann"], ""));
}

#[tokio::test]
async fn each_liker_is_listed_with_the_relation_to_the_viewer() {
    likers_are_listed_with_their_relations(Topology::Single).await;
}

#[tokio::test]
async fn each_liker_is_listed_with_the_relation_to_the_viewer_on_a_cluster() {
    likers_are_listed_with_their_relations(Topology::Cluster).await;
}

#[tokio::test]
async fn comments_are_listed_in_either_order() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    system.follows([(ann.id, bob.id)]).await;
    let post_id = system.publish(&ann, "what do you think?").await.id;
    let question = system.comment(&bob, post_id, "of what?").await;
    let answer = gateway::CommentRequest {
        request_id: request_id(),
        post_id,
        text: "of this".to_owned(),
        in_reply_to_id: question.id,
    };
    let answer = system.gateway().comment(ann.request(answer)).await.unwrap().into_inner();
    let answer = answer.comment.unwrap();
    let about = (answer.post_id, answer.in_reply_to_id, answer.in_reply_to_author_id);
    assert_eq!(about, (post_id, question.id, bob.id));

    let page = system.comments(Some(&ann), post_id, 0, "").await;
    assert_eq!(comment_texts(&page), ["of what?", "of this"]);
    let seen = |viewed: &ViewedComment| {
        let author = viewed.author.clone().unwrap();
        (author.relation(), author.user.unwrap().name)
    };
    let seen: Vec<_> = page.comments.iter().map(seen).collect();
    let expected = [(RelationState::Following, "bob"), (RelationState::Self_, "ann")];
    assert_eq!(seen, expected.map(|(state, name)| (state, name.to_owned())));
    assert_eq!(page.comments[1].comment.as_ref(), Some(&answer));

    let order = CommentOrder::NewestFirst.into();
    let request = gateway::ViewCommentsRequest { post_id, order, ..Default::default() };
    let page = system.gateway().view_comments(request).await.unwrap().into_inner();
    assert_eq!(comment_texts(&page), ["of this", "of what?"]);
}

#[tokio::test]
async fn the_authors_of_a_comment_and_of_its_post_can_delete_it() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let cleo = system.join("cleo").await;
    let post_id = system.publish(&ann, "hello").await.id;
    let not_yours = (Code::PermissionDenied, ErrorReason::NotTheAuthor, &[][..]);
    for deleter in [&bob, &ann] {
        let comment_id = system.comment(&bob, post_id, "first").await.id;
        let request = gateway::DeleteCommentRequest { post_id, comment_id };
        let answer = system.gateway().delete_comment(cleo.request(request)).await;
        assert_error("neither's", answer, not_yours);
        for _ in 0..2 {
            system.gateway().delete_comment(deleter.request(request)).await.unwrap();
        }
        let view = system.view(None, post_id).await.post.unwrap();
        assert_eq!(view.comments, 0);
        let request = gateway::CommentRequest {
            request_id: request_id(),
            post_id,
            text: "what?".to_owned(),
            in_reply_to_id: comment_id,
        };
        let answer = system.gateway().comment(cleo.request(request)).await;
        assert_error("an answer to nothing", answer, COMMENT_NOT_FOUND);
    }
}

#[tokio::test]
async fn a_deleted_post_accepts_no_calls() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let post_id = system.publish(&ann, "hello").await.id;
    system.like(&bob, post_id).await;
    let comment_id = system.comment(&bob, post_id, "first").await.id;
    system.delete_post(&ann, post_id).await;

    let never = (1 << 40) | 8;
    for post_id in [post_id, never] {
        for viewer in [&ann, &bob] {
            macro_rules! check {
                ($method:ident, $request:expr) => {
                    let answer = system.gateway().$method(viewer.request($request)).await;
                    assert_error(stringify!($method), answer, POST_NOT_FOUND);
                };
            }
            let (request_id, text) = (request_id(), "too late".to_owned());
            check!(like, gateway::LikeRequest { post_id });
            check!(
                repost,
                gateway::RepostRequest {
                    request_id: request_id.clone(),
                    post_id,
                    text: text.clone()
                }
            );
            check!(
                comment,
                gateway::CommentRequest { request_id, post_id, text, in_reply_to_id: 0 }
            );
            check!(view_likers, gateway::ViewLikersRequest { post_id, ..Default::default() });
            check!(view_comments, gateway::ViewCommentsRequest { post_id, ..Default::default() });
            check!(view_reposts, gateway::ViewRepostsRequest { post_id, ..Default::default() });
        }
        // Removals find nothing, and succeed.
        system.unlike(&bob, post_id).await;
        let request = bob.request(gateway::DeleteCommentRequest { post_id, comment_id });
        system.gateway().delete_comment(request).await.unwrap();
    }
}
