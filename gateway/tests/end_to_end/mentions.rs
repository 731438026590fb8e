//! Mentions in posts and comments, and the accounts that they refer to.

use microblog_proto::{
    gateway,
    post::{Entity, entity::Target},
    user,
};

use microblog_testkit::Topology;

use crate::{
    actions::request_id,
    system::{Flags, Jobs, PASSWORD, System},
};

/// Returns the names that a text mentions, as written, and their accounts.
fn mentioned(entities: &[Entity]) -> Vec<(&str, u64)> {
    let mentions = entities.iter().filter_map(|entity| match &entity.target {
        Some(Target::Mention(mention)) => Some((mention.name.as_str(), mention.user_id)),
        _ => None,
    });
    mentions.collect()
}

#[tokio::test]
async fn mentions_are_resolved_in_every_view() {
    let system = System::start().await;
    let ann = system.join("Ann").await;
    let bob = system.join("bob").await;
    let post = system.publish(&ann, "@BOB #and @unknown, @ann").await;
    let expected = [("BOB", bob.id), ("unknown", 0), ("ann", ann.id)];
    assert_eq!(mentioned(&post.entities), expected);
    let comment = system.comment(&bob, post.id, "no, @Ann!").await;
    assert_eq!(mentioned(&comment.entities), [("Ann", ann.id)]);
    let repost = system.repost(&bob, post.id, "by @Ann").await;
    assert_eq!(mentioned(&repost.entities), [("Ann", ann.id)]);

    for viewer in [Some(&ann), None] {
        let view = system.view(viewer, repost.id).await;
        assert_eq!(mentioned(&view.post.unwrap().entities), [("Ann", ann.id)]);
        let root = view.root.unwrap().post.unwrap();
        assert_eq!(root.entities.len(), 4, "hashtags are left as they are");
        assert_eq!(mentioned(&root.entities), expected);
        let comments = system.comments(viewer, post.id, 0, "").await.comments;
        let comment = comments[0].comment.as_ref().unwrap();
        assert_eq!(mentioned(&comment.entities), [("Ann", ann.id)]);
        let reposts = system.reposts(viewer, post.id, 0, "").await.posts;
        let repost = reposts[0].post.as_ref().unwrap();
        assert_eq!(mentioned(&repost.entities), [("Ann", ann.id)]);
    }
}

#[tokio::test]
async fn mentions_are_resolved_at_read_time() {
    let at_once = Flags { user: &["--freed-name-hold-s=0"], ..Flags::default() };
    let system = System::start_on(Topology::Single, Jobs::Run, at_once).await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let post_id = system.publish(&ann, "dear @bob").await.id;
    let whose = async || {
        let post = system.view(None, post_id).await.post.unwrap();
        mentioned(&post.entities)[0].1
    };
    assert_eq!(whose().await, bob.id);
    let request = user::DeleteUserRequest { user_id: bob.id, password: PASSWORD.to_owned() };
    system.user().delete_user(request).await.unwrap();
    assert_eq!(whose().await, 0);
    // The new owner of the name is mentioned by newer texts only.
    let next = system.join("BOB").await;
    assert_eq!(whose().await, 0);
    let (post, comment) = ("dear @bob", "no, @bob");
    let post = system.publish(&ann, post).await;
    assert_eq!(mentioned(&post.entities), [("bob", next.id)]);
    let comment = system.comment(&ann, post_id, comment).await;
    assert_eq!(mentioned(&comment.entities), [("bob", next.id)]);
}

#[tokio::test]
async fn a_mention_never_refers_to_an_account_newer_than_the_text() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let root = system.publish(&ann, "where is @bob?").await;
    let comment = system.comment(&ann, root.id, "@bob!").await;
    for entities in [&root.entities, &comment.entities] {
        assert_eq!(mentioned(entities), [("bob", 0)]);
    }
    let bob = system.join("bob").await;
    let repost = system.repost(&ann, root.id, "there: @bob").await;
    // The repost is newer than bob; its root and the comment are older.
    for viewer in [Some(&bob), None] {
        let view = system.view(viewer, repost.id).await;
        assert_eq!(mentioned(&view.post.unwrap().entities), [("bob", bob.id)]);
        assert_eq!(mentioned(&view.root.unwrap().post.unwrap().entities), [("bob", 0)]);
        let comments = system.comments(viewer, root.id, 0, "").await.comments;
        assert_eq!(mentioned(&comments[0].comment.as_ref().unwrap().entities), [("bob", 0)]);
    }
}

#[tokio::test]
async fn hundreds_of_mentions_in_a_text_are_resolved() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    // 499 different names of one or two letters.
    let letters = || ('a'..='z').chain('0'..='9');
    let pairs = letters().flat_map(|a| letters().map(move |b| format!("@{a}{b}")));
    let names = letters().map(|a| format!("@{a}")).chain(pairs).take(499);
    let text = names.collect::<Vec<_>>().join(" ");
    let post = system.publish(&ann, &format!("{text} @ann @bob")).await;
    let resolved = mentioned(&post.entities);
    assert_eq!(resolved.len(), 501);
    assert_eq!(resolved[499..], [("ann", ann.id), ("bob", 0)], "the first 500 are looked up");
    assert_eq!(system.view(None, post.id).await.post.unwrap().entities, post.entities);

    let (request_id, text) = (request_id(), format!("{text} @bob"));
    let request = gateway::CommentRequest { request_id, post_id: post.id, text, in_reply_to_id: 0 };
    system.gateway().comment(bob.request(request)).await.unwrap();
    system.comment(&bob, post.id, "thanks, @ann").await;
    let comments = system.comments(None, post.id, 0, "").await.comments;
    let last = comments[1].comment.as_ref().unwrap();
    assert_eq!(mentioned(&last.entities), [("ann", ann.id)], "it has its place among the 500");
}
