//! Posts and reposts as each viewer sees them.

use microblog_chassis::status;
use microblog_proto::{
    common::ErrorReason,
    gateway::{self, Author, RootState, user_ref::Ref},
    relation::RelationState,
};
use microblog_testkit::Topology;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::{
    actions::request_id,
    errors::{POST_NOT_FOUND, assert_error},
    system::{Flags, Jobs, System, by_id},
};

fn seen(author: Option<&Author>) -> (&str, RelationState) {
    let author = author.unwrap();
    (author.user.as_ref().unwrap().name.as_str(), author.relation())
}

/// Ann, a mutual, a follower, an account that she follows and an anonymous viewer view her post.
async fn a_post_has_the_viewers_relation_and_like(topology: Topology) {
    let system = System::start_on(topology, Jobs::Run, Flags::default()).await;
    let ann = system.join("Ann").await;
    let friend = system.join("friend").await;
    let follower = system.join("follower").await;
    let followed = system.join("followed").await;
    let follows = [(&ann, &friend), (&friend, &ann), (&follower, &ann), (&ann, &followed)];
    system.follows(follows.map(|(a, b)| (a.id, b.id))).await;

    let post = system.publish(&ann, "hello #microblog").await;
    assert_eq!((post.author_id, post.text.as_str()), (ann.id, "hello #microblog"));
    assert!(post.created_at.is_some());
    assert_eq!(system.like(&friend, post.id).await, 1);
    assert_eq!(system.like(&followed, post.id).await, 2);
    system.comment(&follower, post.id, "first").await;

    for (viewer, relation, liked) in [
        (Some(&friend), RelationState::Mutual, true),
        (Some(&follower), RelationState::Following, false),
        (Some(&followed), RelationState::Follower, true),
        (Some(&ann), RelationState::Self_, false),
        (None, RelationState::None, false),
    ] {
        let view = system.view(viewer, post.id).await;
        assert_eq!(seen(view.author.as_ref()), ("Ann", relation));
        assert_eq!((view.root_state(), &view.root), (RootState::None, &None));
        let shown = view.post.unwrap();
        assert_eq!((shown.likes, shown.comments, shown.reposts), (2, 1, 0));
        assert_eq!(shown.liked, liked, "{relation:?}");
        assert_eq!((&shown.text, &shown.entities), (&post.text, &post.entities));
    }
}

#[tokio::test]
async fn each_view_of_a_post_has_its_viewers_data() {
    a_post_has_the_viewers_relation_and_like(Topology::Single).await;
}

#[tokio::test]
async fn each_view_of_a_post_has_its_viewers_data_on_a_cluster() {
    a_post_has_the_viewers_relation_and_like(Topology::Cluster).await;
}

#[tokio::test]
async fn a_repost_shows_its_root_with_its_author() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let cleo = system.join("cleo").await;
    system.follows([(cleo.id, ann.id), (bob.id, cleo.id)]).await;
    let root = system.publish(&ann, "the root").await;
    let repost = system.repost(&bob, root.id, "look").await;
    assert_eq!((repost.root_id, repost.reposted_id), (root.id, root.id));
    assert_eq!(repost.root, None, "a view shows it");
    // A repost of a repost has the same root.
    let again = system.repost(&cleo, repost.id, "").await;
    assert_eq!((again.root_id, again.reposted_id), (root.id, repost.id));
    system.like(&cleo, root.id).await;

    let view = system.view(Some(&cleo), repost.id).await;
    assert_eq!(seen(view.author.as_ref()), ("bob", RelationState::Follower));
    assert_eq!(view.root_state(), RootState::Shown);
    let shown = view.post.unwrap();
    assert!(shown.root.is_none() && !shown.liked && !shown.root_deleted);
    let seen_root = view.root.unwrap();
    assert_eq!(seen(seen_root.author.as_ref()), ("ann", RelationState::Following));
    assert_eq!(seen_root.root_state(), RootState::None);
    let seen_root = seen_root.post.unwrap();
    assert_eq!((seen_root.id, seen_root.liked, seen_root.likes), (root.id, true, 1));
    let anonymous = system.view(None, again.id).await;
    let anonymous_root = anonymous.root.unwrap();
    assert_eq!(seen(anonymous_root.author.as_ref()), ("ann", RelationState::None));
    assert!(!anonymous_root.post.unwrap().liked);

    let of_root = system.reposts(Some(&cleo), root.id, 0, "").await;
    let authors: Vec<_> = of_root.posts.iter().map(|post| seen(post.author.as_ref())).collect();
    assert_eq!(authors, [("cleo", RelationState::Self_), ("bob", RelationState::Follower)]);
    for post in &of_root.posts {
        assert_eq!((post.root_state(), &post.root), (RootState::Omitted, &None));
    }
    let of_repost = system.reposts(None, repost.id, 0, "").await;
    assert_eq!(of_repost.posts.len(), 1);
    assert_eq!(of_repost.posts[0].post.as_ref().unwrap().id, again.id);
}

#[tokio::test]
async fn calls_with_a_repeated_request_id_run_once() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let reused = (Code::InvalidArgument, ErrorReason::RequestIdReused, &["request_id"][..]);

    let publish = |request_id: &str, text: &str| {
        let (request_id, text) = (request_id.to_owned(), text.to_owned());
        ann.request(gateway::PublishRequest { request_id, text })
    };
    let id = request_id();
    let first = system.gateway().publish(publish(&id, "hello @bob")).await.unwrap().into_inner();
    let second = system.gateway().publish(publish(&id, "hello @bob")).await.unwrap().into_inner();
    assert_eq!(first, second);
    let answer = system.gateway().publish(publish(&id, "another text")).await;
    assert_error("another text", answer, reused);
    let post_id = first.post.unwrap().id;

    let id = request_id();
    let repost = || {
        let (request_id, text) = (id.clone(), "look".to_owned());
        bob.request(gateway::RepostRequest { request_id, post_id, text })
    };
    let first = system.gateway().repost(repost()).await.unwrap().into_inner().post.unwrap();
    let second = system.gateway().repost(repost()).await.unwrap().into_inner().post.unwrap();
    assert_eq!(first.id, second.id);

    let id = request_id();
    let comment = || {
        let (request_id, text) = (id.clone(), "well said".to_owned());
        bob.request(gateway::CommentRequest { request_id, post_id, text, in_reply_to_id: 0 })
    };
    let first = system.gateway().comment(comment()).await.unwrap().into_inner();
    let second = system.gateway().comment(comment()).await.unwrap().into_inner();
    assert_eq!(first, second);
    assert_eq!(system.comments(None, post_id, 0, "").await.comments.len(), 1);
    assert_eq!(system.reposts(None, post_id, 0, "").await.posts.len(), 1);
}

#[tokio::test]
async fn only_the_author_deletes_a_post_and_deletion_is_idempotent() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let post_id = system.publish(&ann, "hello").await.id;
    let not_yours = (Code::PermissionDenied, ErrorReason::NotTheAuthor, &[][..]);
    let request = bob.request(gateway::DeletePostRequest { post_id });
    assert_error("bob's", system.gateway().delete_post(request).await, not_yours);
    system.view(None, post_id).await;
    for _ in 0..2 {
        system.delete_post(&ann, post_id).await;
        let request = gateway::ViewPostRequest { post_id };
        assert_error("deleted", system.gateway().view_post(request).await, POST_NOT_FOUND);
    }
}

#[tokio::test]
async fn rate_limited_posts_and_comments_return_a_retry_delay() {
    let post = &["--posts-per-minute", "1", "--comments-per-minute", "1"];
    let flags = Flags { post, ..Flags::default() };
    let system = System::start_on(Topology::Single, Jobs::Run, flags).await;
    let ann = system.join("ann").await;
    let post_id = system.publish(&ann, "the first").await.id;
    system.comment(&ann, post_id, "the first").await;

    let request = gateway::PublishRequest { request_id: request_id(), text: "again".to_owned() };
    let posts = system.gateway().publish(ann.request(request)).await.unwrap_err();
    let (request_id, text) = (request_id(), "again".to_owned());
    let request = gateway::CommentRequest { request_id, post_id, text, in_reply_to_id: 0 };
    let comments = system.gateway().comment(ann.request(request)).await.unwrap_err();
    for (error, reason) in
        [(posts, ErrorReason::PostsThrottled), (comments, ErrorReason::CommentsThrottled)]
    {
        assert_eq!(error.code(), Code::ResourceExhausted);
        assert_eq!(status::reason_of(&error), Some(reason));
        let wait = error.get_details_retry_info().unwrap().retry_delay.unwrap();
        assert!(!wait.is_zero() && wait.as_secs() <= 60, "{wait:?}");
    }
}

#[tokio::test]
async fn a_profile_has_the_number_of_posts() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let by_name = || Some(gateway::UserRef { r#ref: Some(Ref::Name("ann".to_owned())) });
    let counts = async || {
        let me =
            system.gateway().me(ann.request(gateway::MeRequest {})).await.unwrap().into_inner();
        let mut counts = vec![me.posts];
        for user in [by_id(ann.id), by_name()] {
            let request = gateway::ViewUserRequest { user };
            let anonymous = system.gateway().view_user(request.clone()).await.unwrap();
            let seen = system.gateway().view_user(bob.request(request)).await.unwrap();
            counts.extend([anonymous, seen].map(|answer| answer.into_inner().posts));
        }
        counts.dedup();
        counts
    };
    assert_eq!(counts().await, [Some(0)]);
    let post = system.publish(&bob, "root").await;
    let repost = system.repost(&ann, post.id, "").await;
    system.publish(&ann, "hello").await;
    assert_eq!(counts().await, [Some(2)]);
    for _ in 0..2 {
        system.delete_post(&ann, repost.id).await;
        assert_eq!(counts().await, [Some(1)]);
    }
}
