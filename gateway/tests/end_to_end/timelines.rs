//! Timelines as each viewer sees them.

use microblog_proto::{
    gateway::{self, RootState, ViewedPost},
    post::entity::Target,
    relation::RelationState,
};
use microblog_testkit::Topology;

use crate::{
    errors::{BLOCKED_BY_TARGET, USER_NOT_FOUND, assert_error},
    system::{Flags, Jobs, Member, System, by_id, by_name},
    timeline_actions::{post_ids, texts, without_jobs},
};

/// Returns the author of a post, and the author's relation to the viewer.
fn author(viewed: &ViewedPost) -> (&str, RelationState) {
    let author = viewed.author.as_ref().unwrap();
    (author.user.as_ref().unwrap().name.as_str(), author.relation())
}

/// Ann and Bob are mutuals, and Ann follows Carl. Carl and Dora are mutuals.
async fn a_timeline_has_hydrated_posts(topology: Topology) {
    let system = System::start_on(topology, Jobs::Run, Flags::default()).await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let [carl, dora] = [system.join("carl").await, system.join("dora").await];
    let follows = [(&ann, &bob), (&bob, &ann), (&ann, &carl), (&dora, &ann)];
    system.follows(follows.map(|(a, b)| (a.id, b.id))).await;

    let hello = system.publish(&bob, "hello @ann and @unknown").await.id;
    let root = system.publish(&dora, "the root").await.id;
    let repost = system.repost(&carl, root, "look, @dora").await.id;
    let own = system.publish(&ann, "my own").await.id;
    system.publish(&dora, "not for ann").await;
    system.like(&ann, hello).await;
    system.like(&dora, hello).await;
    system.comment(&carl, root, "yes").await;
    system.like(&ann, root).await;

    system.until_new(&ann, "", 3).await;
    let page = system.home(&ann, 0, "", "").await;
    assert_eq!(
        (post_ids(&page.posts), page.next_page_token.as_str()),
        (vec![own, repost, hello], "")
    );
    let [own, repost, hello] = &page.posts[..] else { panic!("three posts") };
    assert_eq!(author(own), ("ann", RelationState::Self_));
    assert_eq!(author(repost), ("carl", RelationState::Following));
    assert_eq!(author(hello), ("bob", RelationState::Mutual));
    assert_eq!((own.root_state(), hello.root_state()), (RootState::None, RootState::None));
    let root = repost.root.as_ref().unwrap();
    assert_eq!(
        (repost.root_state(), author(root)),
        (RootState::Shown, ("dora", RelationState::Follower))
    );
    let counts = |viewed: &ViewedPost| {
        let post = viewed.post.as_ref().unwrap();
        (post.likes, post.comments, post.reposts, post.liked)
    };
    assert_eq!(counts(root), (1, 1, 1, true));
    assert_eq!((counts(hello), counts(repost)), ((2, 0, 0, true), (0, 0, 0, false)));
    let mentioned =
        hello.post.as_ref().unwrap().entities.iter().map(|entity| match &entity.target {
            Some(Target::Mention(mention)) => mention.user_id,
            _ => panic!("a mention"),
        });
    assert_eq!(mentioned.collect::<Vec<_>>(), [ann.id, 0]);

    let friends = system.friends(&ann).await;
    assert_eq!(friends.posts, std::slice::from_ref(hello));
    let carls = system.user_timeline(Some(&ann), &carl, 0, "").await;
    assert_eq!(carls.posts, std::slice::from_ref(repost));
}

#[tokio::test]
async fn the_home_timeline_has_hydrated_posts() {
    a_timeline_has_hydrated_posts(Topology::Single).await;
}

#[tokio::test]
async fn the_home_timeline_has_hydrated_posts_on_a_cluster() {
    a_timeline_has_hydrated_posts(Topology::Cluster).await;
}

#[tokio::test]
async fn follows_mutes_and_blocks_apply_at_once() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let [muted, blocked] = [system.join("muted").await, system.join("blocked").await];
    let [blocker, left] = [system.join("blocker").await, system.join("left").await];
    let deleted = system.join("deleted").await;
    let others = [&muted, &blocked, &blocker, &left, &deleted];
    for other in others {
        system.publish(other, &format!("by {}", other.id)).await;
    }
    let shows = async |authors: &[&Member]| {
        let mut expected: Vec<_> =
            authors.iter().map(|author| format!("by {}", author.id)).collect();
        expected.reverse();
        assert_eq!(system.home_texts(&ann).await, expected);
    };
    shows(&[]).await;
    for (i, other) in others.into_iter().enumerate() {
        system.follow(&ann, other).await;
        shows(&others[..=i]).await;
    }
    system.mute(&ann, &muted).await;
    shows(&[&blocked, &blocker, &left, &deleted]).await;
    system.block(&ann, &blocked).await;
    shows(&[&blocker, &left, &deleted]).await;
    system.block(&blocker, &ann).await;
    shows(&[&left, &deleted]).await;
    let request = gateway::UnfollowRequest { user: by_id(left.id) };
    system.gateway().unfollow(ann.request(request)).await.unwrap();
    shows(&[&deleted]).await;
    system.delete_account_only(&deleted).await;
    shows(&[]).await;
}

#[tokio::test]
async fn each_page_has_current_relations_of_authors() {
    let system = without_jobs().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let carl = system.join("carl").await;
    system.follow(&ann, &bob).await;
    let root = system.publish(&carl, "the root").await.id;
    for text in ["first", "second", "third"] {
        system.repost(&bob, root, text).await;
    }
    let unfollow = async |viewer: &Member, target: &Member| {
        let request = gateway::UnfollowRequest { user: by_id(target.id) };
        system.gateway().unfollow(viewer.request(request)).await.unwrap();
    };
    let mut token = String::new();
    let mut shows = async |text: &str, bobs: RelationState, carls: RelationState| {
        let page = system.home(&ann, 1, &token, "").await;
        assert_eq!(texts(&page.posts), [text]);
        let [post] = &page.posts[..] else { panic!("one post") };
        assert_eq!(author(post), ("bob", bobs));
        assert_eq!(author(post.root.as_ref().unwrap()), ("carl", carls));
        token = page.next_page_token;
    };
    shows("third", RelationState::Following, RelationState::None).await;
    system.follow(&bob, &ann).await;
    system.follow(&carl, &ann).await;
    shows("second", RelationState::Mutual, RelationState::Follower).await;
    assert_eq!(system.friends(&ann).await.posts.len(), 3);
    unfollow(&bob, &ann).await;
    system.follow(&ann, &carl).await;
    shows("first", RelationState::Following, RelationState::Mutual).await;
    system.mute(&ann, &carl).await;
    let page = system.home(&ann, 0, "", "").await;
    assert_eq!(texts(&page.posts), ["third", "second", "first"]);
    assert!(page.posts.iter().all(|post| post.root_state() == RootState::Hidden));
    unfollow(&ann, &bob).await;
    assert_eq!(system.home_texts(&ann).await, [""; 0]);
}

#[tokio::test]
async fn hidden_roots_are_not_shown_in_timelines() {
    let system = without_jobs().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let [muted, left] = [system.join("muted").await, system.join("left").await];
    let deleted = system.join("deleted").await;
    for author in [&muted, &left, &deleted] {
        let root = system.publish(author, "the root").await.id;
        system.repost(&bob, root, "look").await;
        if author.id == deleted.id {
            system.delete_post(author, root).await;
        }
    }
    system.follow(&ann, &bob).await;
    system.mute(&ann, &muted).await;
    system.delete_account_only(&left).await;
    let expected = [RootState::Deleted, RootState::Deleted, RootState::Hidden];
    let home = system.home(&ann, 0, "", "").await.posts;
    let bobs = system.user_timeline(Some(&ann), &bob, 0, "").await.posts;
    assert_eq!(home, bobs);
    assert_eq!(home.iter().map(ViewedPost::root_state).collect::<Vec<_>>(), expected);
    assert!(home.iter().all(|viewed| viewed.root.is_none()));
}

#[tokio::test]
async fn a_suppressed_repost_replaces_a_deleted_one() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let author = system.join("author").await;
    let root = system.publish(&author, "the root").await.id;
    let mut reposts = Vec::new();
    for name in ["first", "second", "third", "fourth"] {
        let reposter = system.join(name).await;
        system.follow(&ann, &reposter).await;
        let post_id = system.repost(&reposter, root, "").await.id;
        reposts.push((reposter, post_id));
    }
    let shown = async || post_ids(&system.home(&ann, 0, "", "").await.posts);
    assert_eq!(shown().await, [reposts[0].1], "once, although four repost it");
    // Deleted, or its author deleted or muted.
    system.delete_post(&reposts[0].0, reposts[0].1).await;
    assert_eq!(shown().await, [reposts[1].1]);
    system.delete_account_only(&reposts[1].0).await;
    assert_eq!(shown().await, [reposts[2].1]);
    system.delete_post(&reposts[2].0, reposts[2].1).await;
    assert_eq!(shown().await, [reposts[3].1]);
    let page = system.home(&ann, 0, "", "").await;
    assert_eq!(page.posts[0].root_state(), RootState::Shown);
    system.delete_post(&reposts[3].0, reposts[3].1).await;
    assert_eq!(shown().await, [0; 0]);
    // Reposts near the root itself are suppressed in its favour.
    system.follow(&ann, &author).await;
    assert_eq!(shown().await, [root]);
}

#[tokio::test]
async fn a_user_timeline_is_shown_to_all_but_blocked_accounts() {
    let system = without_jobs().await;
    let [ann, stranger] = [system.join("ann").await, system.join("stranger").await];
    let [muter, blocker] = [system.join("muter").await, system.join("blocker").await];
    let [blocked, other] = [system.join("blocked").await, system.join("other").await];
    system.publish(&ann, "first").await;
    let root = system.publish(&other, "the root").await.id;
    system.repost(&ann, root, "second").await;
    system.mute(&muter, &ann).await;
    system.block(&blocker, &ann).await;
    system.block(&ann, &blocked).await;
    for viewer in [Some(&ann), Some(&stranger), Some(&muter), Some(&blocker), None] {
        let page = system.user_timeline(viewer, &ann, 0, "").await;
        assert_eq!(texts(&page.posts), ["second", "first"]);
        assert_eq!(page.posts[0].root_state(), RootState::Shown);
        let request =
            gateway::ViewUserTimelineRequest { user: by_name("ANN"), ..Default::default() };
        let request = crate::actions::request_as(viewer, request);
        let by_name = system.gateway().view_user_timeline(request).await.unwrap().into_inner();
        assert_eq!(by_name, page);
    }
    let view = async |viewer: &Member, user| {
        let request = gateway::ViewUserTimelineRequest { user, ..Default::default() };
        system.gateway().view_user_timeline(viewer.request(request)).await
    };
    assert_error("by id", view(&blocked, by_id(ann.id)).await, BLOCKED_BY_TARGET);
    assert_error("by name", view(&blocked, by_name("ann")).await, BLOCKED_BY_TARGET);
    // The timeline is empty, which a blocked account cannot detect.
    system.delete_many(&ann, &post_ids(&system.user_timeline(None, &ann, 0, "").await.posts)).await;
    assert_error("empty", view(&blocked, by_id(ann.id)).await, BLOCKED_BY_TARGET);
    assert!(system.user_timeline(Some(&stranger), &ann, 0, "").await.posts.is_empty());
    system.delete_account_only(&ann).await;
    assert_error("deleted", view(&stranger, by_id(ann.id)).await, USER_NOT_FOUND);
    assert_error("deleted", view(&stranger, by_name("ann")).await, USER_NOT_FOUND);
}
